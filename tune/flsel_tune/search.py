"""Start a sweep from Python with :func:`tune`; the command uses :func:`start_sweep`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

from optuna.trial import FrozenTrial

from flsel.arguments import shown
from flsel.config import RunConfig, model_object
from flsel.errors import UserError
from flsel.execution.single_run import single_run
from flsel_tune.earlier_trials import FINISHED, fitted, with_attributes
from flsel_tune.space_file import space_entries
from flsel_tune.study import EARLIER
from flsel_tune.sweep import begin_sweep
from flsel_tune.sweep_config import Sampler, Scheduler, SweepConfig
from flsel_tune.sweep_plan import SweepPlan, base_config, check_schedule, plan_sweep
from flsel_tune.sweep_result import Sweep


def tune(
    config: RunConfig,
    space: str | PathLike[str] | Mapping[str, Any] = "auto",
    *,
    trials: int = 32,
    metric: str | None = None,
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
    start_from: str | PathLike[str] | None = None,
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
        metric: What to optimise; None is the run's score on the validation set.
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
        start_from: Folder of another sweep, whose finished trials the new one starts with.
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
    name_of_space, entries = space_entries(space, config.to_dict())
    given |= {"space": name_of_space}
    given |= {"start_from": None if start_from is None else fspath(start_from)}
    given |= {"seeds": tuple(seeds) if isinstance(seeds, Sequence) else seeds}
    return start_sweep(config, SweepConfig(**given), entries, pictures=pictures)


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
    if entries is None:
        _, entries = space_entries(sweep.space, config.to_dict())
    with single_run(), model_object.at_hand([config.model]):
        plan = replace(plan_sweep(config, sweep, entries), pictures=pictures)
        if sweep.start_from is not None:
            earlier, said = _earlier_trials(Sweep.load(sweep.start_from), plan)
            plan = replace(plan, earlier=tuple(earlier))
            logging.getLogger("flsel").info("%s", said)
        folder = begin_sweep(plan)
        return Sweep.load(folder).with_config(config)


def _earlier_trials(other: Sweep, plan: SweepPlan) -> tuple[list[FrozenTrial], str]:
    """Return the finished trials of another sweep that a new one could have tried itself.

    Args:
        other: The other sweep.
        plan: The new one.

    Returns:
        The trials, with what the other sweep measured, and a sentence that says how many were taken and what
        kept the first of the others apart.

    Raises:
        UserError: If none fits, or they were measured by other metrics or under other seeds.
    """
    if plan.sweep.sampler == "grid":
        raise UserError(
            f"start_from must be null for the sampler grid, got {other.folder}: a grid tries every point."
        )
    metrics = [f"{each.text} ({each.mode})" for each in other.metrics]
    wanted = [f"{each.text} ({each.mode})" for each in plan.job.metrics]
    seeds = other.settings.seeds or (other.config.seed,)
    for name, theirs, ours in (("metric", metrics, wanted), ("seeds", list(seeds), list(plan.job.seeds))):
        if theirs != ours:
            raise UserError(
                f"{name} must be {theirs} as in {other.folder}, whose trials are taken, got {ours}."
            )
    names = ("scheduler", "grace_rounds", "reduction")
    alike = all(getattr(other.settings, name) == getattr(plan.sweep, name) for name in names)
    tried = base_config(other.config, other.settings)
    fitting, reasons = list[FrozenTrial](), list[str]()
    for trial in other.study.get_trials():
        if trial.state not in FINISHED:
            reasons.append(f"trial {trial.number} has no result")
            continue
        found = fitted(trial, tried, plan)
        if isinstance(found, str):
            reasons.append(f"trial {trial.number} has {found}")
            continue
        place = trial.user_attrs.get(EARLIER) or str(other.folder / "trials" / f"{trial.number:04d}")
        fitting.append(with_attributes(found, {EARLIER: place}, rungs=alike))
    why = f": {reasons[0]}" if reasons else ""
    if not fitting:
        raise UserError(f"no trial of {other.folder} can be taken{why or ', since it has none'}.")
    said = f"{len(fitting)} of {len(fitting) + len(reasons)} trials of {other.folder} are taken"
    return fitting, said + (f"; the others lie outside the space or have no result{why}" if reasons else "")
