"""Small trials for tests: what they have in common, and their reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import runs

from flsel.data.config import DataConfig
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
