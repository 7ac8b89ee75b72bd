"""``py.typed`` holds for a user: a script with the README's names passes mypy --strict against a clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What flsel uses is not looked at: a check of torch takes a minute.
SETTINGS = """
[mypy]
strict = true
follow_imports = silent

[mypy-torch.*,lightning.*,ray.*,optuna.*,matplotlib.*,pandas.*,scipy.*,torchmetrics.*,wandb.*,rich.*]
follow_imports = skip
ignore_missing_imports = true

[mypy-numpy.*]
ignore_missing_imports = true
"""
SCRIPT = """
import numpy as np
from torch import nn

import flsel
from flsel.availability import IDL, LN
from flsel.devices import Phones
from flsel.objectives import FedProx
from flsel.partition import Dirichlet
from flsel.selectors import PowD, Uniform

rng = np.random.default_rng(0)
config = flsel.RunConfig(
    rounds=50,
    selector=PowD(d=12),
    model=lambda: nn.Linear(2, 3),
    data=flsel.DataConfig(name=(rng.normal(size=(9, 2)), rng.integers(3, size=9)), validation=0.1),
    partition=Dirichlet(alpha=0.3),
    availability=LN(beta=0.5),
    devices=Phones(),
    objective=FedProx(mu=0.1),
    local=flsel.LocalConfig(steps=3),
    evaluation=flsel.EvaluationConfig(target=0.6),
    time=flsel.TimeConfig(over_selection=1.3),
    track=flsel.TrackConfig(),
    output=flsel.OutputConfig(),
)
result: flsel.Result = flsel.run(config)
rounds: float = result.to_target(0.6).value
accuracy: float = result.final["test/accuracy"]
again: flsel.Result = flsel.resume(result.folder, rounds=60)
loaded: flsel.RunConfig = flsel.Result.load("runs/x").config
grid = {"availability": [IDL(), LN()]}
found: flsel.Comparison = flsel.compare(config, [Uniform(), PowD(d=12)], seeds=5, grid=grid)
found = flsel.compare(config, {"prox": {"objective": FedProx(mu=0.1)}}, until_decided=True, margin=1.0)
found = flsel.compare([result, again])
found = flsel.compare(found, resume=True, seeds=8)
headline: str = found.headline
space = {"selector.d": {"type": "int", "low": 6, "high": 12}}
sweep: flsel.Sweep = flsel.tune(config, space, trials=24)
best: flsel.RunConfig = sweep.resume(trials=48).best
value: float = sweep.best_value
changed: flsel.RunConfig = best.with_changes({"rounds": 3})

flsel.RunConfig(rounds="many")  # type: ignore[arg-type]
flsel.run(50)  # type: ignore[arg-type]
flsel.tune(config, trails=3)  # type: ignore[call-arg]
"""


def checked(folder: Path, *options: str, path: str = "") -> str:
    """Check the script, in a folder of its own, and return what mypy says."""
    (folder / "mypy.ini").write_text(SETTINGS)
    (folder / "script.py").write_text(SCRIPT)
    # What both tests look at, such as NumPy, is looked at once where they share a process of pytest.
    cache = str(folder.parent / "mypy")
    arguments = ["--config-file", "mypy.ini", "--cache-dir", cache, *options, "script.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments], cwd=folder, env=os.environ | {"MYPYPATH": path},
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_users_script_passes_against_a_clone(tmp_path: Path) -> None:
    said = checked(tmp_path, path=f"{ROOT}{os.pathsep}{ROOT / 'tune'}")
    assert said == "Success: no issues found in 1 source file\n"
