"""Trials of another search space that a sweep keeps: its own before it was extended, or another sweep's."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FixedTrial, FrozenTrial, TrialState, create_trial

from flsel.comparison.config_differences import changes_between
from flsel.config import RunConfig
from flsel.config.fingerprint import PRESENTATION
from flsel.errors import UserError
from flsel.files import write_atomic
from flsel_tune.metric import SweepObjective
from flsel_tune.space import KEPT, Space, lookup, named
from flsel_tune.space_file import make_space, to_plain
from flsel_tune.study import BASELINE, DECLARED, EARLIER, JOURNAL, SETTINGS, Study, is_at, open_storage
from flsel_tune.sweep_plan import SweepPlan

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of trials with a result."""
# Trials differ in these without being other runs.
_APART = (*PRESENTATION, "seed", "accelerator", "device", "threads")
# What samplers and pruners keep of a trial: the former's is of a space, the latter's of the trial.
_RUNG = "completed_rung_"
_WAITS = "fixed_params"


def extend_space(folder: Path, study: Study, plan: SweepPlan) -> bool:
    """Let a sweep go on in a space that contains the one it had.

    Args:
        folder: Folder of the sweep, which nobody else writes to.
        study: Its trials.
        plan: The sweep with the space that it shall have.

    Returns:
        Whether the space is another one, so that the study must be opened again. The journal is replaced at
        once: a kill leaves either the old one or the new one, and the next resume extends the old one.

    Raises:
        UserError: If the space does not contain the one before, or a sweep by a grid is extended.
    """
    now = json.loads(json.dumps(to_plain(plan.space)))
    declared = study.study.user_attrs.get(DECLARED, {})
    if declared.get("space.yaml", now) == now:
        return False
    advice = f"widen it, or start a new sweep with the trials that fit: flsel tune --from {folder}."
    if plan.sweep.sampler == "grid":
        raise UserError(f"the space of {folder} cannot change, since its sampler is a grid; {advice}")
    lost = _lost(make_space(declared["space.yaml"], plan.config.to_dict()), plan.space)
    if lost is not None:
        raise UserError(f"the space must contain that with which {folder} began, which had {lost}; {advice}")
    trials = [_in_space(trial, plan, folder) for trial in study.study.get_trials()]
    for values, kept in plan.space.first_points(plan.config.to_dict()):
        if not any(is_at(trial, values, kept) for trial in trials):
            trials.append(_waiting(values, kept))
    write_atomic(folder / "space.yaml", yaml.safe_dump(to_plain(plan.space), sort_keys=False))
    known = {**study.study.user_attrs, DECLARED: {**declared, "space.yaml": now}}
    write_journal(folder, study.study.study_name, plan.job.metrics, trials, known)
    return True


def write_journal(
    folder: Path,
    name: str,
    metrics: Sequence[SweepObjective],
    trials: Sequence[FrozenTrial],
    attributes: Mapping[str, Any],
) -> None:
    """Write a study with trials in one piece, in the place of one that is there.

    Args:
        folder: Folder of the sweep.
        name: Name of the study.
        metrics: What is optimised.
        trials: Its trials, in the order of their numbers.
        attributes: Attributes of the study.
    """
    scratch = Path(tempfile.mkdtemp())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(
                storage=open_storage(scratch / JOURNAL),
                study_name=name,
                directions=["maximize" if metric.mode == "max" else "minimize" for metric in metrics],
            )
            study.set_metric_names([metric.text for metric in metrics])
            for key, value in attributes.items():
                study.set_user_attr(key, value)
            study.add_trials(trials)
        write_atomic(folder / JOURNAL, (scratch / JOURNAL).read_bytes())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _lost(before: Space, after: Space) -> str | None:
    """Return what a space had that another does not hold, in words."""
    for old in before.dimensions:
        new = [each for each in after.dimensions if each.key == old.key and each.kind == old.kind]
        if not new:
            return f"{old.key} of type {old.kind}"
        for value in old.ends():
            if not any(each.holds(value) for each in new):
                return f"{old.key} {value}"
    return None


def _in_space(trial: FrozenTrial, plan: SweepPlan, folder: Path) -> FrozenTrial:
    """Return a trial of the sweep's own as one of its space; one that has no result need not lie in it."""
    if trial.state is TrialState.WAITING:
        return trial
    found = fitted(trial, plan.job.config, plan) if SETTINGS in trial.user_attrs else ""
    if not isinstance(found, str):
        return with_attributes(found, trial.user_attrs, rungs=True)
    if trial.state in FINISHED or (trial.state is TrialState.RUNNING and found):
        raise UserError(f"the space must hold every trial of {folder}, and trial {trial.number} has {found}.")
    trial.params, trial.distributions = {}, {}
    return with_attributes(trial, trial.user_attrs, rungs=True)


def fitted(trial: FrozenTrial, tried: Mapping[str, Any], plan: SweepPlan) -> FrozenTrial | str:
    """Return a trial as the plan's space would have suggested it.

    Args:
        trial: The trial, of another space.
        tried: Settings of its sweep's runs, which it changed.
        plan: The sweep with the space.

    Returns:
        The trial; a text where the space could not have suggested it: a setting in which its runs differ.
    """
    chosen = trial.user_attrs[SETTINGS]
    try:
        theirs = RunConfig.from_dict(tried, chosen).to_dict()
        _, point, kept = plan.space.point(lambda d: chosen.get(d.key, named(d.key, lookup(theirs, d.key))))
        suggested = FixedTrial(point)
        suggested.set_user_attr(KEPT, kept)
        settings = plan.space(suggested)
        ours = RunConfig.from_dict(plan.job.config, settings).to_dict()
    except UserError as error:
        return f"settings that do not fit: {error}"
    for key, (_, value) in changes_between(ours, theirs).items():
        if key.partition(".")[0] not in _APART:
            return f"{key} {value}"
    trial.distributions, trial.params = suggested.distributions, suggested.params
    trial.set_user_attr(SETTINGS, settings)
    trial.set_user_attr(KEPT, kept)
    return trial


def with_attributes(trial: FrozenTrial, added: Mapping[str, Any], *, rungs: bool) -> FrozenTrial:
    """Return a trial without what a sampler kept of it, and without a pruner's rungs if they are others."""
    trial.system_attrs = {
        name: value
        for name, value in trial.system_attrs.items()
        if name == _WAITS or (rungs and name.startswith(_RUNG))
    }
    trial.user_attrs = {**trial.user_attrs, **added}
    if EARLIER in added:  # the sweep's own first point is what others are compared with
        trial.user_attrs.pop(BASELINE, None)
    return trial


def _waiting(values: dict[str, Any], kept: list[str]) -> FrozenTrial:
    """Return a point as Optuna has one that is to be tried."""
    return create_trial(state=TrialState.WAITING, system_attrs={_WAITS: values}, user_attrs={KEPT: kept})
