"""A sweep whose settings fit together: everything that is checked before a trial starts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from optuna.trial import FrozenTrial

from flsel.config import RunConfig
from flsel.data.population import Source
from flsel.data.sources import load_source
from flsel.engine.scores import declared_directions
from flsel.errors import UserError
from flsel.runner.build import build
from flsel_tune.metric import check_logged, parse_metrics
from flsel_tune.space import Space
from flsel_tune.space_checks import check_space
from flsel_tune.space_file import make_space
from flsel_tune.sweep_config import SweepConfig
from flsel_tune.trial import SweepJob

_REPORTS = 50
_MOST_POINTS = 100_000  # Optuna lists a grid's points.


@dataclass(frozen=True)
class SweepPlan:
    """A sweep whose settings fit together.

    Attributes:
        config: The run's settings, as given.
        sweep: The sweep's settings.
        space: What is searched.
        job: What all trials have in common.
        source: The dataset that they share, if they do.
        pictures: Whether figures are drawn into the sweep's folder.
        earlier: Finished trials of another sweep with which a new one starts.
    """

    config: RunConfig
    sweep: SweepConfig
    space: Space
    job: SweepJob
    source: Source | None
    pictures: bool = True
    earlier: tuple[FrozenTrial, ...] = ()


def plan_sweep(config: RunConfig, sweep: SweepConfig, entries: Mapping[Any, Any]) -> SweepPlan:
    """Check a sweep, down to a measurement of the initial model.

    Args:
        config: The run's settings.
        sweep: The sweep's settings.
        entries: The space as its file has it.

    Raises:
        UserError: If something does not fit.
    """
    base = base_config(config, sweep)
    space = make_space(entries, config.to_dict())
    check_space(space, lambda changes: RunConfig.from_dict(base, changes))
    source, seeds = _shared_source(config, space), sweep.seeds or (config.seed,)
    first = RunConfig.from_dict(base, {"seed": seeds[0]})
    # Only here: a cluster's machine may have more cores for a trial than this one.
    server = build(replace(first, threads=min(first.threads or 1, os.cpu_count() or 1)), source).server
    logged = server.evaluate(torch.empty(0, dtype=torch.int64))
    text = sweep.metric or f"validation/{server.score.name}"
    metrics = parse_metrics(text, sweep.mode, declared_directions(config.evaluation))
    if len(metrics) > 1 and sweep.scheduler != "none":
        raise UserError(
            f"scheduler must be none with several metrics, got {sweep.scheduler}: no order says who is last."
        )
    _check_sampler(space, sweep, len(metrics))
    check_logged(metrics, logged)
    every = config.evaluation.every
    report = sweep.report_every or math.ceil(config.rounds / _REPORTS)
    job = SweepJob(
        config=base,
        seeds=seeds,
        metrics=metrics,
        rounds=config.rounds,
        report_every=math.ceil(report / every) * every,
        folder="",
    )
    return SweepPlan(config, replace(sweep, metric=text), space, job, source)


def _shared_source(config: RunConfig, space: Space) -> Source | None:
    """Load the dataset that all trials have in common; None if each has its own.

    A generated dataset depends on the seed, and is small; a space may also vary the data.

    Raises:
        UserError: If the dataset is missing, unreadable or malformed.
    """
    varies = any(dimension.key.startswith("data.") for dimension in space.dimensions)
    if config.data.name == "synthetic" or varies:
        return None
    return load_source(config.data, clients=config.clients, seed=config.seed)


def check_schedule(sweep: SweepConfig, rounds: int) -> None:
    """Refuse a schedule by which no trial could be stopped early.

    Raises:
        UserError: If it begins with the last round, or later.
    """
    if sweep.scheduler == "none":
        return
    for name, asked in (("grace_rounds", sweep.grace_rounds), ("report_every", sweep.report_every)):
        if asked is not None and asked >= rounds > 1:
            raise UserError(
                f"{name} must be below the {rounds} rounds of a trial for scheduler {sweep.scheduler} "
                f"to stop any, got {asked}; --scheduler none stops none."
            )


def base_config(config: RunConfig, sweep: SweepConfig) -> dict[str, Any]:
    """Return the config of all trials: one device and its threads, and every round is run.

    Raises:
        UserError: If the sweep gives no GPU to runs that need one.
    """
    if sweep.gpus == 0 and config.accelerator not in ("auto", "cpu"):
        raise UserError(
            f"gpus must be above 0 for accelerator {config.accelerator}; 0.5 lets two trials share one."
        )
    config = replace(config, evaluation=replace(config.evaluation, stop_at_target=False))
    return sweep.resources.fit(config).to_dict()


def _check_sampler(space: Space, sweep: SweepConfig, metrics: int) -> None:
    if sweep.sampler == "grid":
        for dimension in space.dimensions:
            if dimension.when:
                raise UserError(f"space {dimension.key} must have no condition for the sampler grid.")
        points = math.prod(len(dimension.grid()) for dimension in space.dimensions)
        if points > _MOST_POINTS:
            raise UserError(
                f"space must have at most {_MOST_POINTS:,} points for the sampler grid, got {points:,}."
            )
    numbers = [dimension for dimension in space.dimensions if dimension.kind != "choice"]
    if sweep.sampler == "cmaes" and (metrics > 1 or len(numbers) < 2):
        raise UserError("sampler cmaes needs one metric and at least two dimensions that are numbers.")
    if sweep.sampler == "cmaes" and not find_spec("cmaes"):
        raise UserError('sampler cmaes needs a package that is missing: pip install "flsel[cmaes]".')
