"""Imports go downwards only, and what is heavy or optional is imported by nobody who does not ask for it."""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forks import Forks

import flsel
import flsel.selectors

ROOT = Path(__file__).parents[1]
RUN = [
    "--rounds",
    "1",
    "--clients",
    "4",
    "--clients_per_round",
    "2",
    "--quiet",
    "true",
    "--output.name",
    "run",
]
SELECTORS = sorted(p.stem for p in Path(flsel.selectors.__file__).parent.glob("*.py") if p.stem != "__init__")

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name + " is blocked by this test")

sys.meta_path.insert(0, Blocked())
"""


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that has imported nothing yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)


LOADED = """
import importlib, json, sys
loaded = []
for name in {modules!r}:
    importlib.import_module(name)
    loaded.append(sorted(sys.modules))
print(json.dumps(loaded))
"""


def loaded(done: subprocess.CompletedProcess[str]) -> list[set[str]]:
    """What ``LOADED`` found after each import."""
    assert done.returncode == 0, done.stderr
    return [set(names) for names in json.loads(done.stdout)]


def test_commands_are_listed_without_torch_and_ready_without_what_a_run_may_never_need():
    package, command_line, command = loaded(
        fresh(LOADED.format(modules=("flsel", "flsel.commands.cli", "flsel.commands.train")))
    )
    for light in (package, command_line):
        heavy = {"torch", "numpy", "lightning", "jsonargparse", "rich", "matplotlib", "wandb", "ray"}
        assert not heavy & light
    assert "torch" in command
    heavy = {"lightning", "torchmetrics", "torchvision", "scipy", "matplotlib", "torch._dynamo"}
    assert not heavy & command


@pytest.mark.parametrize("before", ["", "import flsel.execution.run, flsel.selectors.powd"])
def test_names_of_the_package_stay_what_they_are(before, forks: Forks, tmp_path):
    """A submodule that was imported before takes nobody's name."""
    names = sorted(set(flsel.__all__) - {"__version__"})
    code = f"""
{before}
import flsel, inspect
from flsel import {", ".join(names)}
from flsel.selectors import PowD
for name, value in {{name: globals()[name] for name in {names!r}}}.items():
    assert not inspect.ismodule(value) and value.__name__ == name, (name, value)
assert inspect.isfunction(flsel.run) and inspect.isclass(flsel.Result) and inspect.isclass(PowD)
assert flsel.RunConfig(selector=PowD(d=3)).selector.d == 3
assert flsel.__version__
assert dir(flsel) == flsel.__all__ and "PowD" in dir(flsel.selectors)
"""
    done = forks.run(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_selector_is_offered_by_the_package():
    written = {
        node.name: path.stem
        for path in Path(flsel.selectors.__file__).parent.glob("[!_]*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        and any(isinstance(base, ast.Name) and base.id == "Selector" for base in node.bases)
    }  # fmt: skip
    assert sorted(written) == sorted(flsel.selectors.__all__)
    homes = {name: getattr(flsel.selectors, name).__module__ for name in written}
    assert homes == {name: f"flsel.selectors.{module}" for name, module in written.items()}


def test_selectors_know_the_contract_only(forks: Forks, tmp_path):
    modules = [f"flsel.selectors.{name}" for name in SELECTORS]
    known = loaded(forks.run(LOADED.format(modules=modules), tmp_path))[-1]
    heavy = {"lightning", "pytorch_lightning", "wandb", "ray", "optuna", "matplotlib", "torchvision"}
    assert not heavy & known
    allowed = {"flsel.selectors", "flsel._lazy"} | {
        f"flsel.{name}" for name in ("selector", "arguments", "errors", "files", "metrics", "params")
    }
    assert {".".join(name.split(".")[:2]) for name in known if name.startswith("flsel.")} <= allowed


# From the ground up: a package imports from those in lines above its own, and from nothing beside it.
LAYERS = (
    {"errors", "params", "_lazy"},
    {"files"},
    {"arguments", "rng", "metrics", "models"},
    {"selector", "data", "partition", "availability", "devices", "report"},
    {"selectors", "objectives", "updates"},
    {"local"},
    {"config"},
    {"engine"},
    {"testing"},
    {"runner"},
    {"execution"},
    {"comparison", "flower"},
    {"flsel_tune", "choosing", "placing"},
    {"commands"},
)


DOTTED = re.compile(r"(flsel|flsel_tune)(\.\w+)+")


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return what every module of ours imports of ours, for type checkers and inside functions included.

    A text that is the dotted name of a module, or of something in one, counts as an import of it.
    """
    homes = {"flsel": ROOT / "flsel", "flsel_tune": ROOT / "tune/flsel_tune"}
    files = {
        ".".join((name, *path.relative_to(home).with_suffix("").parts)).removesuffix(".__init__"): path
        for name, home in homes.items()
        for path in home.rglob("*.py")
    }
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [f"{node.module}.{alias.name}" for alias in node.names]
                found[name] |= {item if item in files else node.module for item in named}
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Constant) and DOTTED.fullmatch(str(node.value)):
                parts = str(node.value).split(".")
                found[name] |= {".".join(parts[:count]) for count in range(2, len(parts) + 1)} & files.keys()
    return {name: (known & files.keys()) - {name} for name, known in found.items()}


def test_no_import_circle():
    # Methods of RunConfig reach the modules that read and write it; they import them when they are called.
    own = {"flsel.config.run_config": {"flsel.config.fingerprint", "flsel.config.parser"}}
    known = {name: found - own.get(name, set()) for name, found in imports().items()}
    tuple(graphlib.TopologicalSorter(known).static_order())


def test_layers_import_downwards():
    depth = {package: row for row, packages in enumerate(LAYERS) for package in packages}

    def package(module: str) -> str:
        return module.split(".")[1] if module.startswith("flsel.") else module

    # `flsel` itself and `python -m flsel` load what they name on demand.
    outside = {"flsel", "__main__"}
    rooms = {name: package(name).split(".")[0] for name in imports()}
    assert set(rooms.values()) - outside == set(depth), "every package has a layer"
    upwards = [
        f"{name} imports {other}"
        for name, known in imports().items()
        for other in known
        if not {rooms[name], rooms[other]} & outside
        and rooms[name] != rooms[other]
        and depth[rooms[other]] >= depth[rooms[name]]
    ]
    assert not upwards


def test_a_comparison_is_judged_without_what_executes_and_shows_it():
    shared = {"flsel.comparison.grid", "flsel.comparison.run_table"}
    for name, known in imports().items():
        room = name.split(".")[2] if name.startswith("flsel.comparison.") else ""
        below = {
            "judging": (), "reporting": ("judging",),
        }.get(room)  # fmt: skip
        if below is None:
            continue
        homes = {".".join(other.split(".")[:3]) for other in known if other.startswith("flsel.comparison.")}
        fits = {f"flsel.comparison.{other}" for other in (room, *below)} | shared
        assert homes <= fits, name


def test_the_top_is_a_table_of_contents():
    entries = [p for p in (ROOT / "flsel").iterdir() if p.name[0] not in "_." and p.name != "py.typed"]
    assert len(entries) <= 27, sorted(p.name for p in entries)


@pytest.mark.parametrize("command", ["train", "data"])
def test_help_is_printed_without_torch(command):
    done = fresh(
        f"import sys; from flsel.commands.cli import main; code = main([{command!r}, '--help']); "
        "print(code, 'torch' in sys.modules)"
    )
    text, last = done.stdout.rsplit("\n", 2)[:2]
    assert text.startswith(f"usage: flsel {command}")
    assert last == "0 False"


def test_a_run_loads_nothing_optional(tmp_path, forks: Forks):
    code = f"""
import gc, json, sys
from flsel.commands.cli import main
code = main(["train", *{RUN!r}, "--local.lr_schedule", "torch.optim.lr_scheduler.ConstantLR"])
print(json.dumps([code, sorted(sys.modules), gc.isenabled(), gc.get_freeze_count()]))
"""
    done = forks.run(code, tmp_path)
    code, modules, collects, spared = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert collects
    assert spared > 100_000  # what imports left is not searched for garbage
    optional = {"ray", "optuna", "wandb", "tensorboard", "flsel_tune"}
    slow = {"lightning", "torchmetrics", "torchvision", "scipy", "sympy", "torch._dynamo"}
    # torch 2.6 imports its compiler with vmap.
    vmap = "import sys, torch; torch.func.vmap(torch.neg)(torch.zeros(1)); print(*sys.modules)"
    mapped = forks.run(vmap, tmp_path).stdout.split()
    assert "torch" in mapped
    assert not (optional | slow - set(mapped)) & set(modules)


@pytest.mark.parametrize(("tracker", "expected"), [("none", 0), ("wandb", 2)])
def test_a_run_works_without_optional_packages(tmp_path, tracker, expected, forks: Forks):
    blocked = ["wandb", "ray", "optuna", "tensorboard", "tensorboardX"]
    code = (
        BLOCK.format(blocked=blocked)
        + f"""
from flsel.commands.cli import main
sys.exit(main(["train", *{RUN!r}, "--track.tracker", "{tracker}"]))
"""
    )
    done = forks.run(code, tmp_path)
    assert done.returncode == expected, done.stderr
    if expected == 0:
        assert (tmp_path / "runs/run/summary.json").is_file()
    else:
        assert 'pip install "flsel[wandb]"' in done.stderr
        assert "Traceback" not in done.stderr
