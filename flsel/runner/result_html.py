"""Show a run in a notebook: its last accuracy, its metrics, the bytes sent, its curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flsel.metrics import METRICS, Score
from flsel.report.notebook import curve, fragment, table

_SENT = ("ledger/models_down", "ledger/models_up", "ledger/passes", "clock/seconds")


def result_html(
    summary: Mapping[str, Any],
    history: Mapping[str, np.ndarray],
    target: float | None,
    reached: float | None,
    folder: Path,
) -> str:
    """Write a finished run as HTML.

    Args:
        summary: ``summary.json``.
        history: Columns of ``metrics.csv``.
        target: Score to reach, if there is one.
        reached: The round that reached it, if one did.
        folder: The run's folder.
    """
    score = Score(**summary["score"])
    final, values = summary["final"], history[score.column]
    rows = [[_label(name), final[name], best] for name, best in summary["best"].items()]
    rows += [[_label(name), f"{final[name]:g}", None] for name in _SENT if final.get(name)]
    picture = ""
    if len(values) > 1 and np.isfinite(values).all():
        picture = curve(history["round"].tolist(), values.tolist(), across="rounds", up=score.words)
    last = f"{100 * values[-1]:.1f} %" if score.is_share else f"{values[-1]:.4g}"
    headline = (
        f"{summary['selector']} on {summary['dataset']}: {score.words} {last} after "
        f"{summary['rounds']} rounds."
    )
    if target is not None:
        reach = "not reached" if reached is None else f"reached in round {reached:.0f}"
        headline += f" The target {score.shown(target)} was {reach}."
    return fragment(headline, table(["metric", "last", "best"], rows), picture, str(folder))


def _label(name: str) -> str:
    return METRICS[name].axis() if name in METRICS else name
