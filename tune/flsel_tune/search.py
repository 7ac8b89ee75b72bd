"""Start a sweep from Python with :func:`tune`; the command uses :func:`start_sweep`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

from flsel.arguments import shown
from flsel.config import RunConfig, model_object
from flsel.errors import UserError
from flsel.execution.single_run import single_run
from flsel_tune.space_file import read_space
from flsel_tune.sweep import begin_sweep
from flsel_tune.sweep_config import Sampler, Scheduler, SweepConfig
from flsel_tune.sweep_plan import check_schedule, plan_sweep
from flsel_tune.sweep_result import Sweep


def tune(
    config: RunConfig,
    space: str | PathLike[str] | Mapping[str, Any] = "auto",
    *,
    trials: int = 32,
    metric: str = "validation/accuracy",
    mode: str = "auto",
    sampler: Sampler = "tpe",
    scheduler: Scheduler = "asha",
    grace_rounds: int | None = None,
    reduction: int = 3,
    seeds: Sequence[int] | None = None,
    max_concurrent: int | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    memory: float | None = None,
    address: str | None = None,
    retries: int = 2,
    report_every: int | None = None,
    name: str | None = None,
    folder: str = "sweeps",
    pictures: bool = False,
) -> Sweep:
    """Search for the settings of a run.

    The arguments are those of :class:`flsel_tune.sweep_config.SweepConfig`, which explains them.

    Args:
        config: The run's settings. Models, datasets and classes may be objects of a notebook.
        space: What is searched: a mapping from dotted keys to entries such as ``{"type": "uniform", "low": 0,
            "high": 1}``, a YAML file of them, a name that ``flsel configs`` lists, or ``auto``: the
            shipped space of the selector, or the ranges that a class without one declares.
        trials: Settings to try.
        metric: What to optimise.
        mode: ``max``, ``min`` or ``auto``.
        sampler: How settings are suggested.
        scheduler: What stops hopeless trials early.
        grace_rounds: Communication rounds before a trial may be stopped.
        reduction: ASHA keeps one of so many trials at each rung.
        seeds: Every trial runs under each of these seeds.
        max_concurrent: Most trials at a time.
        cpus: CPUs of a trial.
        gpus: GPUs of a trial.
        memory: Gigabytes reserved for a trial.
        address: Ray cluster to use.
        retries: How often a trial whose process died is resumed.
        report_every: Communication rounds between reports.
        name: Name of the sweep's folder.
        folder: Folder of all sweeps.
        pictures: Draw the figures into the sweep's folder; :meth:`Sweep.plot` draws one.

    Returns:
        The sweep, with its best settings.

    Raises:
        UserError: If something does not fit, or no trial was completed.
        Interrupted: If a signal stopped it; it can be resumed.
    """
    if not isinstance(config, RunConfig):
        raise UserError(f"tune takes a RunConfig, such as flsel.RunConfig(rounds=50), got {shown(config)}.")
    given = {key: value for key, value in locals().items() if key in SweepConfig.__dataclass_fields__}
    named = isinstance(space, str | PathLike)
    given |= {"space": fspath(space) if isinstance(space, str | PathLike) else "space.yaml"}
    given |= {"seeds": tuple(seeds) if isinstance(seeds, Sequence) else seeds}
    sweep = SweepConfig(**given)
    if not named and not isinstance(space, Mapping):
        raise UserError(f"space must be a mapping, a file or the name of a space, got {shown(space)}.")
    entries = _plain(space) if isinstance(space, Mapping) else None
    return start_sweep(config, sweep, entries, pictures=pictures)


def start_sweep(
    config: RunConfig, sweep: SweepConfig, entries: Mapping[Any, Any] | None = None, *, pictures: bool = True
) -> Sweep:
    """Run a new sweep.

    Args:
        config: The run's settings.
        sweep: The sweep's settings.
        entries: The space as a file of it has it; None reads the one that the sweep's settings name.
        pictures: Draw the figures into the sweep's folder.

    Raises:
        UserError: As :func:`tune`.
        Interrupted: As :func:`tune`.
    """
    check_schedule(sweep, config.rounds)
    if entries is None and sweep.space != "auto":
        entries = read_space(sweep.space)
    with single_run(), model_object.at_hand([config.model]):
        folder = begin_sweep(replace(plan_sweep(config, sweep, entries), pictures=pictures))
        return Sweep.load(folder).with_config(config)


def _plain(value: Any) -> Any:
    """Write a space given from Python as its file has it: classes by their import paths."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return f"{value.__module__}.{value.__qualname__}" if inspect.isclass(value) else value
