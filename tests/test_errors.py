"""The one place that turns what users' code raises into a sentence."""

# ruff: noqa: E501 (sentences are quoted whole)

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import flsel.rng
from flsel.commands.cli import main
from flsel.errors import Interrupted, UserError, blamed, edits, imported, sentence, users_code


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def said(error: pytest.ExceptionInfo[UserError]) -> str:
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is not None
    return str(error.value)


class Broken:
    def method(self, error: BaseException) -> None:
        self._inner(error)

    def _inner(self, error: BaseException) -> None:
        raise error


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("a\nb"), r"Broken.method raised KeyError: 'a\nb' (test_errors.py, line 37)."),
        (ValueError("k must be\n 3."), "Broken.method raised k must be 3 (test_errors.py, line 37)."),
        (SystemExit(3), "Broken.method raised SystemExit: 3 (test_errors.py, line 37)."),
        (GeneratorExit(), "Broken.method raised GeneratorExit (test_errors.py, line 37)."),
        (BaseException("bare"), "Broken.method raised BaseException: bare (test_errors.py, line 37)."),
        (StopIteration(), "Broken.method raised StopIteration (test_errors.py, line 37)."),
        (FileNotFoundError(2, "nope", "x"), "Broken.method raised FileNotFoundError: [Errno 2] nope: 'x' ("),
        (Speechless(), "Broken.method raised Speechless: <exception str() failed> (test_errors.py, line 37)."),
        (ValueError("Expected more than 1 value per channel when training"), "batch normalisation takes no batch of"),
        (MemoryError(), "the memory is not enough; lower local.chunk, "),
        (ImportError("libtorch_cpu.so: failed to map segment"), "the memory is not enough (libtorch_cpu.so: "),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), "the accelerator's memory is not enough (CUDA out"),
    ],
)  # fmt: skip
def test_any_error_is_one_sentence(error: BaseException, reason: str) -> None:
    with pytest.raises(UserError) as caught, users_code("round 3 failed"):
        Broken().method(error)
    assert said(caught).startswith(f"round 3 failed: {reason}")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [UserError("mine."), Interrupted("later"), KeyboardInterrupt()])
def test_what_is_said_already_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, users_code("round 3 failed"):
        Broken().method(error)
    assert caught.value is error


def test_an_error_of_flsel_itself_is_no_fault_of_the_user() -> None:
    with pytest.raises(AttributeError), users_code("round 3 failed"):
        flsel.rng.generator(0, None)  # type: ignore[arg-type]


def test_an_error_inside_a_library_is_the_users() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with pytest.raises(UserError) as caught, users_code("the model failed"):
        torch.nn.Module.__call__(net, torch.zeros(1, 4))
    assert said(caught).startswith("the model failed: RuntimeError: mat1 and mat2 shapes cannot be mult")


def test_sentences_of_the_system_only() -> None:
    assert sentence(PermissionError(13, "Permission denied", "a/b")) == "a/b: permission denied."
    assert sentence(KeyError("x")) is None


MODULES = {
    "missing": ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package' (missing.py, line 1)."),
    "unclosed": ("x = 1\ny = (\n", "SyntaxError: '(' was never closed (unclosed.py, line 2)."),
    "leaves": ("import sys\nsys.exit('bye')\n", "SystemExit: bye (leaves.py, line 2)."),
    "divides": ("\n\n1 / 0\n", "ZeroDivisionError: division by zero (divides.py, line 3)."),
    "lazy": ("def __getattr__(name):\n    if name == 'Thing':\n        return {}[name]\n    raise AttributeError\n", "__getattr__ raised KeyError: 'Thing' (lazy.py, line 3)."),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_cannot_be_imported(name: str, tmp_path: Path) -> None:
    text, reason = MODULES[name]
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(UserError) as caught:
        imported("selector", f"{name}.Thing")
    assert said(caught) == f"selector cannot be {name}.Thing, whose import failed: {reason}"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nothere.Thing", ": there is no module nothere in the current folder or among the installed packages."),
        ("torch.nn.Linaer", ": torch.nn has no Linaer; did you mean torch.nn.Linear?"),
        ("torch.nn.zzz", ": torch.nn has no zzz."),
        ("", ", which is no import path, such as my_module.MyClass."),
        ("a..b", ", which is no import path, such as my_module.MyClass."),
        ("a\0b.c", ", which is no import path, such as my_module.MyClass."),
        (".a", ", which is no import path, such as my_module.MyClass."),
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere(path: str, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        imported("model", path)
    shown = path.replace("\0", "?")  # no control characters on a terminal
    assert str(caught.value) == f"model cannot be {shown}{reason}"


def test_what_a_path_may_name(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("thing = 'attribute'\n")
    (package / "thing.py").write_text("class A:\n    class B:\n        value = 3\n")
    assert imported("model", "torch.nn.Linear") is torch.nn.Linear
    assert imported("model", "mine.thing.A.B.value") == 3


def test_the_module_stays_light() -> None:
    code = "import sys, flsel.errors; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_library_outside_the_environment_is_a_library(tmp_path: Path) -> None:
    """With --system-site-packages or a PYTHONPATH, packages lie in folders that this environment lacks."""
    for folder, reason in [
        ("site-packages", None),
        ("mine", "leave raised SystemExit: 0 (somelib.py, line 2)."),
    ]:
        space: dict[str, Any] = {}
        code = "def leave():\n    raise SystemExit(0)\n"
        exec(compile(code, str(tmp_path / folder / "somelib.py"), "exec"), space)
        with pytest.raises(SystemExit) as caught:
            space["leave"]()
        # Without this test's own frame, which is a user's.
        assert blamed(caught.value.with_traceback(caught.tb.tb_next)) == reason


@pytest.mark.parametrize("name", ["n" * 5000, "n/" * 2500, "n " * 2500, "\u00e9" * 5000])
def test_a_sentence_is_bounded_whatever_it_names(name: str) -> None:
    error = UserError(
        f"variant {name} is wrong: {name} must be one of {name}; go on with: flsel train --resume x"
    )
    assert len(str(error)) <= 2010
    assert str(error).startswith("variant n" if name[0] == "n" else "variant \u00e9")
    assert str(error).endswith("go on with: flsel train --resume x")


WARNS = """
import sys, warnings
import flsel.errors.blame
flsel.errors.blame._LIBRARIES += (LIBRARY,)
sys.path.append(LIBRARY)
import computes
from flsel.commands import cli
from flsel.errors import UserError

def command(arguments):
    computes.f()
    warnings.warn("of my own")
    if arguments:
        raise UserError("it is refused.")
    return 0

cli.load = lambda name: type("Command", (), {"main": staticmethod(command)})
sys.exit(cli.main(["train", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("refused", [True, False])
def test_warnings_of_libraries_do_not_stand_before_the_sentence(refused: bool, tmp_path: Path) -> None:
    library = tmp_path / "site"
    library.mkdir()
    (library / "computes.py").write_text("import warnings\ndef f():\n    warnings.warn('of a library')\n")
    text = WARNS.replace("LIBRARY", repr(str(library)))
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "default", "program.py", *(["x"] if refused else [])],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == (2 if refused else 0)
    assert "UserWarning: of my own" in done.stderr
    assert ("of a library" in done.stderr) is not refused
    if refused:
        assert done.stderr.endswith("flsel: error: it is refused.\n")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--config", "n" * 5000],
        ["train", "--resume", "n" * 5000],
        ["data", "--picture", "n" * 5000 + "/p.png"],
        ["compare", "--selectors", "Uniform", "--variants", "n" * 5000],
        ["tune", "--resume", "n" * 5000],
        ["n" * 5000],
    ],
)
def test_what_the_command_line_says_is_bounded(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    *_, said = capfd.readouterr().err.splitlines()
    assert said.startswith("flsel: error: ")
    assert len(said) < 1000


def test_names_and_paths_that_may_be_are_said_whole() -> None:
    path = "/".join(["a" * 255] * 6)
    assert str(UserError(f"{path} is missing.")) == f"{path} is missing."


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [("seedz", "seeds", 1), ("seedz", "seed", 1), ("", "ab", 2), ("kitten", "sitting", 3)],
)
def test_letters_that_differ(one: str, other: str, count: int) -> None:
    assert edits(one, other) == edits(other, one) == count
