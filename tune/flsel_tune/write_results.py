"""Write a sweep's results: ``trials.csv``, ``trials.json`` and ``best.yaml``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from optuna.trial import FrozenTrial, TrialState

from flsel.files import write_atomic
from flsel.files.escaping import csv_text
from flsel_tune.metric import SweepObjective
from flsel_tune.study import EARLIER, RESULT, SETTINGS, Study
from flsel_tune.trial import SweepJob

Row = dict[str, Any]


def trial_rows(study: Study, metrics: Sequence[SweepObjective]) -> list[Row]:
    """Describe every trial by plain values, in the order in which they were started."""
    return [_row(trial, metrics) for trial in study.trials()]


def best_trials(study: Study) -> list[FrozenTrial]:
    """Return the best complete trial, or with several metrics their Pareto front."""
    complete = study.trials(TrialState.COMPLETE)
    return sorted(study.study.best_trials, key=lambda trial: trial.number) if complete else []


def mean_rows(rows: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Average the evaluations of several seeds, round by round; what only some have is left out."""
    found = []
    for group in zip(*rows, strict=False):
        shared = set.intersection(*(set(row) for row in group))
        mean = {name: sum(row[name] for row in group) / len(group) for name in group[0] if name in shared}
        found.append({**mean, "round": group[0]["round"]})
    return found


def write_results(study: Study, job: SweepJob) -> None:
    """Write the tables and, once a trial is complete, ``best.yaml``.

    Args:
        study: The sweep's study.
        job: What its trials have in common.
    """
    folder = Path(job.folder)
    rows = trial_rows(study, job.metrics)
    write_atomic(folder / "trials.json", json.dumps(rows, indent=2) + "\n")
    write_atomic(folder / "trials.csv", _csv(rows))
    best = best_trials(study)
    if best:
        write_atomic(folder / "best.yaml", _best_yaml(best, job))


def _row(trial: FrozenTrial, metrics: Sequence[SweepObjective]) -> Row:
    result = trial.user_attrs.get(RESULT, {})
    last = max(trial.intermediate_values, default=None)
    values = trial.values or ([] if last is None else [trial.intermediate_values[last]])
    return {
        "trial": trial.number,
        "status": result.get("status", "running"),
        **{metric.text: values[n] if n < len(values) else None for n, metric in enumerate(metrics)},
        "spread": _finite(result.get("spread")),
        "seeds": [_finite(value) for value in result.get("seeds", [])],
        "round": result.get("round") or last or 0,
        "seconds": round(result.get("seconds", 0.0), 3),
        "error": result.get("error", ""),
        "from": trial.user_attrs.get(EARLIER, ""),
        "settings": trial.user_attrs.get(SETTINGS, {}),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _csv(rows: Sequence[Row]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    fields = [name for name in (rows[0] if rows else {}) if name != "settings"]
    lines = [[*fields, *keys]]
    for row in rows:
        cells = [";".join(map(repr, row[name])) if name == "seeds" else row[name] for name in fields]
        lines.append([*cells, *(row["settings"].get(key) for key in keys)])
    return csv_text(lines)


def _best_yaml(best: Sequence[FrozenTrial], job: SweepJob) -> str:
    chosen, seed = best[0], job.seeds[0]
    described = job.run_config(chosen.user_attrs[SETTINGS], seed)
    values = ", ".join(
        f"{metric.text} {value!r}" for metric, value in zip(job.metrics, chosen.values, strict=True)
    )
    lines = [f"# Trial {chosen.number} of {job.folder}: {values}, the mean of seeds {list(job.seeds)}."]
    found = chosen.user_attrs[RESULT]["seeds"]
    if found:
        lines.append(f"# Under seed {seed}, which stands below, {job.metrics[0].text} is {found[0]!r}.")
    if len(best) > 1:
        others = ", ".join(str(trial.number) for trial in best[1:])
        lines.append(
            f"# No trial is better in all metrics than this one, nor than {others}: choose by trials.csv."
        )
    return "\n".join(lines) + "\n" + yaml.safe_dump(described, sort_keys=False)
