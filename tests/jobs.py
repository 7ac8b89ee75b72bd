"""Small trials for tests, their reports, and a sweep that this process executes without Ray."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import runs

from flsel.data.data_config import DataConfig
from flsel.execution.on_ray.shared_data import unpack
from flsel_tune.metric import parse_metrics
from flsel_tune.trial import Report, SweepJob


def job(folder: Path, *, metric: str = "validation/accuracy", every: int = 2, **changes: Any) -> SweepJob:
    """Trials of six rounds with a validation set, under seeds 3 and 4 unless ``seeds`` says others."""
    seeds = changes.pop("seeds", (3, 4))
    data = DataConfig(synthetic=runs.SMALL, validation=0.2)
    config = replace(runs.settings(folder, data=data, threads=1), **changes)
    return SweepJob(
        config=config.to_dict(),
        seeds=seeds,
        metrics=parse_metrics(metric, "auto"),
        rounds=config.rounds,
        report_every=every,
        folder=str(folder),
    )


def untimed(report: Report) -> dict[str, Any]:
    """A report without what depends on the clock."""
    rows = [[{k: v for k, v in row.items() if not k.startswith("seconds/")} for row in rows]
            for rows in report["rows"]]  # fmt: skip
    return {key: value for key, value in report.items() if key != "seconds"} | {"rows": rows}


def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sweeps execute their trials one after the other in this process."""
    monkeypatch.setattr("flsel_tune.sweep.cluster", lambda *given: nullcontext())
    monkeypatch.setattr("flsel.execution.on_ray.tune_loop.execute_with_tune", _execute)


def _execute(workload: Any, begin: Any, packed: Any, *given: Any, **named: Any) -> None:
    source = None if packed is None else unpack(packed)
    while asked := workload.next():
        number, settings = asked
        steps = begin(number, settings, source)
        stopped = False
        while not stopped:
            report = steps.advance()
            workload.reported(number, settings, report)
            stopped = report["done"] or workload.stops(number, report)
        steps.close()
        workload.ended(number, report, None)
