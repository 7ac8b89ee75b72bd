"""Made-up runs: folders as a run leaves them, with curves that are known."""

from __future__ import annotations

import copy
import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flsel.comparison.grid import Grid
from flsel.config import RunConfig
from flsel.execution.job import LABELS, Outcome, write_failure
from flsel.metrics import SCORE
from flsel.runner.diagnostics import FILE, Recorder
from flsel.runner.run_log import SUMMARY_FORMAT, JsonLines
from flsel.selector import Diagnostic

CLIENTS = 6
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def run(folder: Path, curve: Any, *, selector: str = "Uniform", seed: int = 1, **changes: Any) -> Path:
    """A finished run whose test accuracies are ``curve``, one a round from round 0.

    ``models`` is how many models a round sends down, ``round_seconds`` what a round takes on simulated
    devices, which the run has then; ``own`` holds constant values of metrics that
    are better the larger; ``score`` is what the run is judged by, and without ``labels`` it has no
    accuracy; other changes are settings, dotted or whole, and ``fingerprints``.
    """
    models, prints = changes.pop("models", 2), changes.pop("fingerprints", None)
    round_seconds, own = changes.pop("round_seconds", None), changes.pop("own", {})
    score, labels = changes.pop("score", SCORE), changes.pop("labels", True)
    folder.mkdir(parents=True)
    settings = copy.deepcopy(_usual()) | {"rounds": len(curve) - 1, "seed": seed}
    settings["selector"] = {"class_path": f"flsel.selectors.{selector.lower()}.{selector}"}
    for key, value in changes.items():
        *above, last = key.split("__")
        inner = settings
        for name in above:
            inner = inner[name]
        inner[last] = value
    (folder / "config.yaml").write_text(yaml.dump(settings, Dumper=_Dumper))
    names = ["test/loss", "test/accuracy", "ledger/models_down", "ledger/passes", "ledger/bytes_down",
             "ledger/bytes_up", "seconds/select", "seconds/train", "seconds/aggregate"]  # fmt: skip
    names += [] if round_seconds is None else ["clock/seconds"]
    names += [f"test/{name}" for name in own]
    lines = [",".join(["round", *names])]
    for round, value in enumerate(curve):
        sent = models * round
        cells = [round, 1 - value, value, sent, 0, 100 * sent, 200 * round, 0.1, 0.2, 0.3]
        cells += [] if round_seconds is None else [round_seconds * round]
        lines.append(",".join(map(str, [*cells, *own.values()])))
    if not labels:
        lines = [",".join(cell for at, cell in enumerate(line.split(",")) if at != 2) for line in lines]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    rounds = len(curve) - 1
    plans = [
        {"round": r, "plan": [[r % CLIENTS], [(r + 1) % CLIENTS]], "weights": [0.5, 0.5],
         "available": CLIENTS - r % 2, "dropped": [], "ledger": {}}
        for r in range(rounds)
    ]  # fmt: skip
    (folder / "rounds.jsonl").write_text("".join(json.dumps(plan) + "\n" for plan in plans))
    # As write_labels writes them, without a sync of the disk.
    (folder / LABELS).write_text("6,1,1\n1,6,1\n1,1,6\n" + "1,1,1\n" * (CLIENTS - 3))
    _tell(folder, selector, rounds)
    final = {"test/loss": 1 - float(curve[-1])} | {f"test/{name}": value for name, value in own.items()}
    final |= {"test/accuracy": float(curve[-1])} if labels else {}
    ways = {name: score.better if name == score.name else "max" for name in own}
    summary = {
        "format": SUMMARY_FORMAT, "name": folder.name, "selector": selector, "dataset": "synthetic",
        "seed": seed, "clients": CLIENTS, "rounds": rounds, "planned_rounds": rounds,
        "final": final, "best": {}, "target": None, "score": vars(score),
        "fingerprints": prints or {}, "data": {"num_classes": 3}, "directions": ways,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@functools.cache
def _usual() -> dict[str, Any]:
    return RunConfig(clients=CLIENTS, clients_per_round=2).to_dict()


def climb(end: float, rounds: int = 20) -> list[float]:
    """Test accuracies that climb from 0.1 and are at ``end`` for the second half."""
    half = rounds // 2
    return [0.1 + (end - 0.1) * min(1.0, r / half) for r in range(rounds + 1)]


class Executed:
    """Writes made-up runs in the place of executing cells, and counts them; they have no cell's settings.

    ``made`` returns the arguments of :func:`run`, ``curve`` among them, for a variant and a seed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, made: Callable[[str, int], dict[str, Any]]) -> None:
        self.executed: Counter[tuple[str, int]] = Counter()
        self.fails: set[tuple[str, int]] = set()
        self._made = made
        monkeypatch.setattr("flsel.comparison.compare._execute", self)
        monkeypatch.setattr("flsel.comparison.cells._was_run_with", lambda run, declared: True)

    def __call__(self, folder: Path, grid: Grid, executor: Any, runs: Any) -> None:
        for cell in grid.cells():
            place = folder / cell.folder
            if (place / "summary.json").is_file():
                continue
            self.executed[cell.variant, cell.seed] += 1
            if (cell.variant, cell.seed) in self.fails:
                place.mkdir(parents=True, exist_ok=True)
                write_failure(place, Outcome("failed", "out of memory"))
                continue
            (place / "failure.json").unlink(missing_ok=True)
            if place.is_dir():
                place.rmdir()
            run(place, selector=cell.variant, seed=cell.seed, **self._made(cell.variant, cell.seed))


class _Telling:
    """A selector that has something to tell of every kind, or of one."""

    def __init__(self, kind: str) -> None:
        self.kind, self.number = kind, 0

    def diagnostics(self, clients: np.ndarray) -> list[Diagnostic]:
        n = len(clients)
        values = {
            "entropy": np.linspace(0.1, 1, n), "client": np.linspace(0, self.number, n),
            "pair": np.eye(n), "visit": np.ones((n, 3)),
        }  # fmt: skip
        return [Diagnostic(f"{self.kind} of it", self.kind, values[self.kind])]


def _tell(folder: Path, selector: str, rounds: int) -> None:
    kind = {"HiCS": "entropy", "FedPNS": "client", "FedCor": "pair", "FedCat": "visit"}.get(selector)
    if kind is None:
        return
    recorder, telling = Recorder(JsonLines(folder / FILE), CLIENTS, rounds), _Telling(kind)
    for telling.number in range(1, rounds + 1):
        recorder.after(telling, telling.number - 1, telling.number)
    recorder.end(telling, rounds)
