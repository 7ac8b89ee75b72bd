"""The Optuna study of a sweep: a journal in the sweep's folder, which holds all that a resume needs."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from flsel.comparison.config_differences import pairs
from flsel.comparison.config_differences import shown as differences
from flsel.errors import UserError, short
from flsel.rng import torch_seed
from flsel.runner.trackers.values import flat
from flsel_tune.metric import SweepObjective
from flsel_tune.space import KEPT, Settings, Space, Value
from flsel_tune.sweep_config import Sampler, SweepConfig

SETTINGS, RESULT, BASELINE, STOPPED = "settings", "result", "baseline", "stopped"
REPEATS = "repeats"
EARLIER = "from"
"""Attribute of a trial that another sweep ran: the folder of its runs."""
DECLARED = "declared"
JOURNAL = "study.journal"
_LOG = logging.getLogger("flsel")


class Study:
    """A sweep's trials, on disk.

    Args:
        folder: Folder of the sweep.
        name: Name of a new study; one that is there keeps its own, so that a sweep's folder may be renamed.
        metrics: What is optimised.
        config: The sweep's settings.
        rounds: Communication rounds of a run (T).
        seed: Seed of all suggestions. A trial's draws depend on it, on the trial's number and on the trials
            that ended before, so that an interruption leaves no trace in them.

    Attributes:
        study: Optuna's own object.
        exhausted: Whether a grid was found to have no points left.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        metrics: Sequence[SweepObjective],
        config: SweepConfig,
        rounds: int,
        seed: int,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = folder / JOURNAL
        self._storage = open_storage(path)
        self._kind: Sampler = config.sampler
        self._seed = seed
        self.exhausted = False
        known = optuna.get_all_study_names(self._storage)
        pruner = _pruner(config, rounds)
        if known:  # read, not written: what is refused below leaves the journal as it is
            self.study = optuna.load_study(study_name=known[0], storage=self._storage, pruner=pruner)
        else:
            self.study = optuna.create_study(
                storage=self._storage,
                study_name=name,
                directions=["maximize" if metric.mode == "max" else "minimize" for metric in metrics],
                pruner=pruner,
            )
        asked = [metric.text for metric in metrics]
        stored = self.study.metric_names or asked
        if stored != asked:
            raise UserError(
                f"{path} is of a sweep of {', '.join(stored)}, not of {', '.join(asked)}: "
                "restore it, or the sweep's metric."
            )
        if not self.study.metric_names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.study.set_metric_names(asked)

    def hold_to(self, folder: Path, declared: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what the sweep's files say when it begins, and refuse a sweep whose files say something else.

        Args:
            folder: Folder of the sweep.
            declared: By name of a file what it says that trials depend on, as plain values.

        Raises:
            UserError: Naming the file and the first entry that was changed.
        """
        now = json.loads(json.dumps(declared))
        stored = self.study.user_attrs.get(DECLARED)
        if stored is None:
            self.study.set_user_attr(DECLARED, now)
            return
        for file, says in now.items():
            if changed := pairs(flat(stored.get(file, says)), flat(says)):
                raise UserError(
                    f"{folder / file} was changed since the sweep began ({short(differences(changed))}): "
                    "restore it, or start a new sweep, since trials of both are not one search."
                )

    def enqueue(self, points: Iterable[tuple[dict[str, Value], list[str]]]) -> None:
        """Have points tried before anything is searched; the first is what others are compared with.

        A sweep that was killed before its first trial may have some of them already, and one that starts with
        another's trials, too; those are not doubled.

        Args:
            points: Values by dimension's name, and the names of dimensions left as the config has them.
        """
        known = self.study.get_trials(deepcopy=False)
        earlier = [trial for trial in known if EARLIER in trial.user_attrs]
        own = [trial for trial in known if EARLIER not in trial.user_attrs]
        if any(trial.state is not TrialState.WAITING for trial in own):
            return
        numbered = [(position, *point) for position, point in enumerate(points)]
        new = [each for each in numbered if not any(is_at(trial, *each[1:]) for trial in earlier)]
        for position, values, kept in new[len(own) :]:
            self.study.enqueue_trial(
                values, user_attrs={KEPT: kept} | ({BASELINE: True} if position == 0 else {})
            )

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in some states, or all that were started."""
        wanted = states or tuple(state for state in TrialState if state is not TrialState.WAITING)
        return self.study.get_trials(states=wanted)

    def unfinished(self) -> list[tuple[int, Settings]]:
        """Return the numbers and settings of trials that an earlier driver left running."""
        running = self.trials(TrialState.RUNNING)
        return [(t.number, t.user_attrs[SETTINGS]) for t in running if SETTINGS in t.user_attrs]

    def retry(self, reason: str) -> int:
        """Have trials that failed for a reason tried again, under new numbers.

        Args:
            reason: ``machine`` (a full disk, say), or ``failed`` for every trial that failed.

        Returns:
            How many there are.
        """
        failed = [
            trial
            for trial in self.trials(TrialState.FAIL)
            if SETTINGS in trial.user_attrs and _failed(trial.user_attrs.get(RESULT, {}), reason)
        ]
        again = [trial for trial in failed if trial.number not in self.repeated()]
        for trial in again:
            kept = {KEPT: trial.user_attrs[KEPT]} if KEPT in trial.user_attrs else {}
            self.study.enqueue_trial(trial.params, user_attrs={**kept, REPEATS: trial.number})
        return len(again)

    def left(self, trials: int) -> int:
        """Return how many trials are still to be run or to be finished, of so many in all."""
        begun, uncounted = self.unfinished(), self.uncounted()
        ended = self.trials(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return max(trials - sum(trial.number not in uncounted for trial in ended), len(begun))

    def uncounted(self) -> set[int]:
        """Return the numbers of trials that are none of those to be run: repeated, or another sweep's."""
        return self.repeated() | {trial.number for trial in self.trials() if EARLIER in trial.user_attrs}

    def repeated(self) -> set[int]:
        """Return the numbers of trials that others repeat, or are to repeat: they do not count."""
        trials = self.study.get_trials(deepcopy=False)
        return {trial.user_attrs[REPEATS] for trial in trials if REPEATS in trial.user_attrs}

    def ask(self, space: Space) -> tuple[int, Settings] | None:
        """Start a trial; None if a grid has no points left."""
        asked = [trial for trial in self.trials(TrialState.RUNNING) if SETTINGS not in trial.user_attrs]
        turn = len(self.trials()) - len(asked)
        if self._kind == "grid":
            if turn - len(self.repeated()) >= math.prod(
                len(dimension.grid()) for dimension in space.dimensions
            ):
                self.exhausted = True
                return None
            turn = 0  # the seed numbers a grid's points, and must stay
        sampler = _sampler(self._kind, torch_seed(self._seed, "search", turn) % 2**32, space)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.study.sampler = sampler
            trial = self._again(asked[0].number) if asked else self.study.ask()
            settings = space(trial)
        # Ask no sampler what follows a trial: a grid would stop an optimize loop that does not exist.
        self.study.sampler = optuna.samplers.RandomSampler(0)
        trial.set_user_attr(SETTINGS, settings)
        return trial.number, settings

    def _again(self, number: int) -> optuna.Trial:
        """Return a trial whose driver was killed before it had all its settings, to draw the same ones."""
        known = self._find(number)  # what the storage has read; samplers would look at what it had drawn
        for drawn in (known.params, known.distributions):
            drawn.clear()
        for name in [name for name in known.system_attrs if "relative_params" in name]:
            del known.system_attrs[name]
        return optuna.Trial(self.study, self._id(number))

    def report(self, number: int, round: int, value: float) -> bool:
        """Note the value at a communication round, once, and tell whether the trial should be stopped.

        The first point is never stopped: it shows what the search has gained.
        """
        trial = self._find(number)
        if STOPPED in trial.user_attrs:  # by a driver that was killed before it could tell
            return True
        if round in trial.intermediate_values or not math.isfinite(value):
            return False
        self._storage.set_trial_intermediate_value(self._id(number), round, value)
        stop = self.study.pruner.prune(self.study, self._find(number)) and BASELINE not in trial.user_attrs
        if stop:
            self._storage.set_trial_user_attr(self._id(number), STOPPED, True)
        return stop

    def tell(
        self, number: int, state: TrialState, values: Sequence[float], result: Mapping[str, Any]
    ) -> None:
        """Note how a trial ended, unless that was noted before.

        Args:
            number: Number of the trial.
            state: Complete, pruned or failed.
            values: The metrics' values, for a complete trial.
            result: What else is known of it: plain values.
        """
        trial = self._find(number)
        if not trial.state.is_finished():
            self._storage.set_trial_user_attr(self._id(number), RESULT, dict(result))
            self.study.tell(number, list(values) if state == TrialState.COMPLETE else None, state)

    def _id(self, number: int) -> int:
        """Return what the storage calls a trial."""
        study = self._storage.get_study_id_from_name(self.study.study_name)
        return self._storage.get_trial_id_from_study_id_trial_number(study, number)

    def _find(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]


def open_storage(path: Path) -> BaseStorage:
    """Open a journal of a study; one that is not there is made when a study is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A lock file by O_EXCL works on shared file systems, where symbolic links may not.
        return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))


def is_at(trial: FrozenTrial, values: Mapping[str, Value], kept: Sequence[str]) -> bool:
    """Tell whether a trial has, or waits to be tried with, a point's values, and keeps the same settings."""
    waits = trial.state is TrialState.WAITING
    has = trial.system_attrs.get("fixed_params", {}) if waits else trial.params
    return values.items() <= has.items() and set(kept) == set(trial.user_attrs.get(KEPT, ()))


def _failed(result: Mapping[str, Any], reason: str) -> bool:
    """Tell whether a trial failed for a reason; one that diverged did not."""
    return bool(result.get(reason) or result.get("status") == reason)


def _pruner(config: SweepConfig, rounds: int) -> BasePruner:
    grace = config.grace_rounds or max(1, rounds // 5)
    if config.scheduler == "asha":
        return SuccessiveHalvingPruner(min_resource=grace, reduction_factor=config.reduction)
    if config.scheduler == "median":
        return MedianPruner(n_startup_trials=3, n_warmup_steps=grace)
    return NopPruner()


def _sampler(kind: Sampler, seed: int, space: Space) -> BaseSampler:
    samplers = optuna.samplers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "cmaes":
            return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        if kind == "gp":
            return samplers.GPSampler(seed=seed, independent_sampler=samplers.RandomSampler(seed))
        if kind == "random":
            return samplers.RandomSampler(seed=seed)
        if kind == "grid":
            return samplers.GridSampler({d.name: d.grid() for d in space.dimensions}, seed=seed)
        return samplers.TPESampler(seed=seed, multivariate=True, group=True)
