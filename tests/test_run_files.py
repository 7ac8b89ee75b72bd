"""The files in a run's folder: each declared, and each that grows marked, checked and cut on a resume."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import InterruptIn, left_behind, lines, resumed, same, settings

from flsel.errors import Interrupted, UserError
from flsel.execution.run import resume, run
from flsel.runner.run_files import FILES
from flsel.selector.diagnostic import Diagnostic
from flsel.selectors.uniform import Uniform

GROWING = [name for name, kind in FILES.items() if kind == "grows"]


class Tells(Uniform):
    """A selector with diagnostics of both kinds: over the rounds, and at the end."""

    def diagnostics(self, clients: Any) -> list[Diagnostic]:
        return [
            Diagnostic("belief", "client", clients / 3),
            Diagnostic("distance", "pair", clients[:, None] - clients[None, :]),
        ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(settings(tmp_path_factory.mktemp("whole"), selector=Tells())).folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Interrupted):
        run(settings(root, selector=Tells(), callbacks=(partial(InterruptIn, 2),)))
    text = (root / "run/config.yaml").read_text()
    (root / "run/config.yaml").write_text(text[: text.index("callbacks:")] + text[text.index("output:") :])
    return root / "run"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_leaves_files_that_are_declared(whole):
    assert {path.name for path in whole.iterdir()} <= FILES.keys()
    assert set(GROWING) <= {path.name for path in whole.iterdir()}


def test_every_file_that_grows_is_marked(whole):
    content = torch.load(whole / "checkpoints/last.ckpt", weights_only=True)
    assert content["files"].keys() == set(GROWING)
    assert all(mark["lines"] > 0 for mark in content["files"].values())


DAMAGES = {
    "removed": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "edited": lambda path: path.write_bytes(path.read_bytes().replace(b"0", b"1", 1)),
    "doubled": lambda path: path.write_bytes(path.read_bytes() * 2),
}


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("damage", ["removed", "cut", "edited"])
def test_damage_to_a_file_that_grows_is_refused_before_anything_is_written(name, damage, stopped, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "run")
    DAMAGES[damage](folder / name)
    before = files(folder)
    with pytest.raises(UserError, match=rf"{name} .*the checkpoint counts on its first \d+ lines; put the"):
        resume(folder)
    assert {name: data for name, data in files(folder).items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


@pytest.mark.parametrize("name", GROWING)
def test_what_was_written_after_the_checkpoint_is_cut(name, stopped, whole, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "run")
    DAMAGES["doubled"](folder / name)
    resume(folder)
    assert same(left_behind(folder), left_behind(whole))


def test_a_kill_at_the_end_leaves_no_line_twice(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "summary.json").unlink()
    resume(folder)
    assert lines(folder / "diagnostics.jsonl") == lines(whole / "diagnostics.jsonl")
    assert sum('"distance"' in line for line in lines(folder / "diagnostics.jsonl")) == 1


def test_a_complete_run_keeps_its_last_lines(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    resume(folder)
    assert same(left_behind(folder), left_behind(whole))


def test_a_resume_leaves_settings_that_say_the_same_as_they_are_written(stopped, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "run")
    path = folder / "config.yaml"
    plain = yaml.safe_load(path.read_text())
    del plain["quiet"]
    text = "# my notes\n" + yaml.safe_dump(plain).replace("server: 0.05", "server: 5.0e-2") + "quiet: true\n"
    path.write_text(text)
    with resumed(folder):
        pass
    assert path.read_text() == text
    with resumed(folder, 7):
        pass
    assert yaml.safe_load(path.read_text())["rounds"] == 7
