"""What ``summary.json`` holds of a run that is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flsel.config import RunConfig
from flsel.runner.build import Built
from flsel.runner.digest import fingerprints
from flsel.runner.privacy import privacy
from flsel.runner.provenance import device_name, git_commit, versions
from flsel.runner.trained import describe_inputs


def sequential_since(check: Mapping[str, Any]) -> str:
    """Say since when sequential trained a run's clients, and what may be wrong before.

    Args:
        check: What ``self_check`` holds of ``train``.
    """
    gap = check["gap"]
    what = "failed" if gap is None else f"was {gap:.2g} of an update away"
    said = f"sequential since round {check['round']}: the fast trainer {what}"
    return f"{said}; {check['doubt']}" if check.get("doubt") else said


def summary(
    config: RunConfig,
    built: Built,
    *,
    last: Mapping[str, float],
    best: Mapping[str, float],
    seconds: float,
    initial_model: str,
) -> dict[str, Any]:
    """Sum up a run.

    Args:
        config: The settings.
        built: The run's server and what belongs to it.
        last: The last row of ``metrics.csv``.
        best: The best values of the held-out metrics.
        seconds: Wall-clock seconds of all processes that ran it.
        initial_model: Fingerprint of the model that it began with.
    """
    data, server, device = built.data, built.server, str(built.program.task.device)
    return {
        "selector": type(config.selector).__name__,
        "dataset": data.name,
        "seed": config.seed,
        "clients": len(data.population),
        "rounds": server.round,
        "planned_rounds": config.rounds,
        "final": {name: value for name, value in last.items() if not name.startswith("seconds/")},
        "best": best,
        "directions": server.directions,
        "score": {"column": server.score.column, "better": server.score.better},
        "target": config.evaluation.target,
        "rounds_to_target": server.rounds_to_target,
        "dropped_updates": server.ledger["dropped_updates"],
        "self_check": built.program.agreement.summary(),
        "privacy": privacy(server.federation.steps, server.selector),
        "wall_seconds": seconds,
        "device": device,
        "device_name": device_name(device),
        "fingerprints": fingerprints(server.federation, initial_model),
        "data": describe_inputs(data.population),
        "test_examples": len(data.test),
        "versions": versions(),
        "git_commit": git_commit(),
    }
