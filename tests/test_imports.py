"""Imports go downwards only, and what is heavy or optional is imported by nobody who does not ask for it."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import flsel.selectors

RUN = ["--rounds", "1", "--clients", "4", "--budget", "2", "--quiet", "true", "--output.name", "run"]
SELECTORS = sorted(p.stem for p in Path(flsel.selectors.__file__).parent.glob("*.py") if p.stem != "__init__")

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name + " is blocked by this test")

sys.meta_path.insert(0, Blocked())
"""


def fresh(code: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that has imported nothing yet."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=120
    )


def loaded_by(*modules: str) -> list[set[str]]:
    """Import modules one after another in one fresh interpreter; what is loaded after each."""
    code = f"""
import importlib, json, sys
loaded = []
for name in {modules!r}:
    importlib.import_module(name)
    loaded.append(sorted(sys.modules))
print(json.dumps(loaded))
"""
    done = fresh(code)
    assert done.returncode == 0, done.stderr
    return [set(names) for names in json.loads(done.stdout)]


def test_package_and_command_line_are_light():
    package, command_line = loaded_by("flsel", "flsel.cli")
    for loaded in (package, command_line):
        heavy = {"torch", "numpy", "lightning", "jsonargparse", "rich", "matplotlib", "wandb", "ray"}
        assert not heavy & loaded


def test_selectors_know_the_contract_only():
    loaded = loaded_by(*(f"flsel.selectors.{name}" for name in SELECTORS))[-1]
    heavy = {"lightning", "pytorch_lightning", "wandb", "ray", "optuna", "matplotlib", "torchvision"}
    assert not heavy & loaded
    allowed = {"flsel.selectors", "flsel.selector", "flsel.errors", "flsel.state"}
    known = {name for name in loaded if name.startswith("flsel.")}
    assert known <= allowed | {f"flsel.selectors.{name}" for name in SELECTORS}


def test_layers_import_downwards():
    layers = [
        ["flsel.rng"],
        [
            "flsel.data.federate",
            "flsel.data.sources",
            "flsel.partition",
            "flsel.availability",
            "flsel.selector",
        ],
        ["flsel.local.sequential", "flsel.local.vectorised"],
        ["flsel.federation"],
        ["flsel.server"],
        ["flsel.config", "flsel.build", "flsel.run"],
        ["flsel.parser", "flsel.cli", "tune"],
    ]
    loaded_after = iter(loaded_by(*chain(*layers)))
    for depth, layer in enumerate(layers):
        above = set(chain(*layers[depth + 1 :]))
        for name in layer:
            assert not above & next(loaded_after), f"{name} imports something above it"


def test_a_round_needs_no_lightning():
    (loaded,) = loaded_by("flsel.federation")
    assert not {"lightning", "pytorch_lightning"} & loaded


def test_a_run_loads_nothing_optional(tmp_path):
    code = f"""
import json, sys
from flsel.cli import main
code = main(["train", *{RUN!r}])
print(json.dumps([code, sorted(sys.modules)]))
"""
    done = fresh(code, tmp_path)
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert not {"ray", "optuna", "wandb", "tensorboard", "tune"} & set(loaded)


@pytest.mark.parametrize(("tracker", "expected"), [("none", 0), ("wandb", 2)])
def test_a_run_works_without_optional_packages(tmp_path, tracker, expected):
    blocked = ["wandb", "ray", "optuna", "tensorboard", "tensorboardX"]
    code = (
        BLOCK.format(blocked=blocked)
        + f"""
from flsel.cli import main
sys.exit(main(["train", *{RUN!r}, "--track.tracker", "{tracker}"]))
"""
    )
    done = fresh(code, tmp_path)
    assert done.returncode == expected, done.stderr
    if expected == 0:
        assert (tmp_path / "runs/run/summary.json").is_file()
    else:
        assert "pip install wandb" in done.stderr
        assert "Traceback" not in done.stderr
