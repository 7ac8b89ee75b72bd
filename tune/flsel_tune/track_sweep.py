"""The sweep's own run in the tracker: its table of trials, its best one, its pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker
from flsel_tune.space_file import to_plain
from flsel_tune.study import Study
from flsel_tune.sweep_plan import SweepPlan
from flsel_tune.write_results import best_trials, trial_rows


def track_sweep(plan: SweepPlan, study: Study, pictures: Sequence[Path]) -> None:
    """Log a finished sweep as one run of job type ``sweep``.

    Args:
        plan: The sweep.
        study: Its trials.
        pictures: Its figures.
    """
    folder, config = Path(plan.job.folder), plan.config
    loggers = make_loggers(
        replace(config.track, group=config.track.group or folder.name),
        run_dir=folder,
        name=folder.name,
        resolved_config={**config.to_dict(), "sweep": asdict(plan.sweep), "space": to_plain(plan.space)},
        tags=(type(config.selector).__name__, config.data.name),
        job_type="sweep",
    )
    tracker = Tracker(loggers)
    rows = trial_rows(study, plan.job.metrics)
    keys = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    fields = ["trial", "status", *(metric.text for metric in plan.job.metrics), "spread", "round", "seconds"]
    cells = [
        [row[name] for name in fields] + [_cell(row["settings"].get(key)) for key in keys] for row in rows
    ]
    tracker.table("sweep/trials", [*fields, *keys], cells)
    for path in pictures:
        tracker.image(f"sweep/{path.stem}", path, config.rounds)
    tracker.summary(_summary(plan, study, rows))
    tracker.close("success")


def _summary(plan: SweepPlan, study: Study, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    repeated = study.repeated()
    counts = Counter(row["status"] for row in rows if row["trial"] not in repeated)
    found: dict[str, Any] = {f"trials/{status}": count for status, count in counts.items()}
    for trial in best_trials(study)[:1]:
        found["best/trial"] = trial.number
        found |= {f"best/{m.text}": v for m, v in zip(plan.job.metrics, trial.values, strict=True)}
        found |= {f"best/{key}": value for key, value in rows[trial.number]["settings"].items()}
    return found


def _cell(value: Any) -> str | None:
    # A W&B column has one type, and a setting may be a number here and a name there.
    return None if value is None else str(value)
