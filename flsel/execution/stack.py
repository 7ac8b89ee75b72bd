"""Runs that this process executes round by round together, so that their clients train in one call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from flsel.engine.round_job import OpenRound, train
from flsel.engine.server import RoundRecord
from flsel.errors import Interrupted, users_code
from flsel.execution.active_run import ActiveRun
from flsel.execution.signals import Interrupt
from flsel.local.trainer import LocalTrainer
from flsel.params import Params

_LOG = logging.getLogger("flsel")


def ignore_round(run: ActiveRun, record: RoundRecord) -> None:
    """Take note of no round."""


class Stack:
    """One or several runs that this process executes; a context manager, which restores their checkpoints.

    Args:
        runs: The runs; those that could not be built are left out.
        round_ended: Called after every round of every run.
        saved: Called with the rounds of the active runs, by folder, whenever all of them have checkpoints.
    """

    def __init__(
        self,
        runs: Sequence[ActiveRun],
        round_ended: Callable[[ActiveRun, RoundRecord], None] = ignore_round,
        saved: Callable[[Mapping[Path, int]], None] = lambda rounds: None,
    ) -> None:
        self._runs = [run for run in runs if run.active]
        # The first run's trainer trains all of them, also when that run has ended.
        self._trainers = [run.session.server.federation.trainer for run in self._runs]
        self._round_ended = round_ended
        self._saved = saved

    def __enter__(self) -> Stack:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Lock the runs' folders and restore their checkpoints."""
        try:
            for run in self._runs:
                run.open()
            self._saved(self._rounds())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others have the runs' folders; runs that have not ended can be resumed."""
        for run in self.active:
            run.close()

    @property
    def active(self) -> list[ActiveRun]:
        """The runs that have not ended."""
        return [run for run in self._runs if run.active]

    def execute(self, until: int | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        """Execute rounds, and write a checkpoint before it returns.

        Args:
            until: Communication round at which it returns; None goes on until all runs have ended.
            stop: Asked after every round whether it returns.
        """
        while runs := [run for run in self.active if until is None or run.over or run.round < until]:
            due = self._execute_round([run for run in runs if not run.over])
            stopping = stop()
            if due or stopping:
                self._save()
            for run in self.active:
                if run.over:
                    run.finish()
            if stopping:
                return
        self._save()

    def execute_until_signal(self) -> bool:
        """Execute all rounds unless a signal comes; tell whether one came in the last round.

        Raises:
            Interrupted: If a signal came before the runs had ended; their checkpoints are written.
        """
        with Interrupt() as interrupt:
            self.execute(stop=lambda: interrupt.requested)
            if interrupt.requested and self.active:
                server = self.active[0].session.server
                raise Interrupted(f"stopped after round {server.round} of {server.federation.rounds}")
            return interrupt.requested

    def _execute_round(self, runs: Sequence[ActiveRun]) -> bool:
        """Execute one round of every run; tell whether it is time for a checkpoint of one of them."""
        rounds: dict[ActiveRun, OpenRound] = {}
        for run in runs:
            with run.recorded():
                rounds[run] = run.session.open_round()
        started = time.perf_counter()
        ends = _train(rounds, self._trainers[0])
        seconds = time.perf_counter() - started
        visits = {run: len(rounds[run].plan) for run in ends}
        due = False
        for run, models in ends.items():
            with run.recorded():
                share = seconds * visits[run] / max(sum(visits.values()), 1)
                record = run.session.close_round(rounds[run], models, share)
                self._round_ended(run, record)
                every = run.session.config.output.checkpoint_every
                due |= run.over or record.completed // every > record.round // every
        return due

    def _save(self) -> None:
        for run in self.active:
            run.save()
        self._saved(self._rounds())

    def _rounds(self) -> dict[Path, int]:
        return {run.folder: run.round for run in self.active if not run.over}


def _train(rounds: dict[ActiveRun, OpenRound], trainer: LocalTrainer) -> dict[ActiveRun, Params]:
    """Train the clients of all runs in one call; if that fails, run by run, to see which one fails."""
    if len(rounds) > 1:
        try:
            return dict(zip(rounds, train(list(rounds.values()), trainer), strict=True))
        except Exception as error:  # raised again below, for the run that it belongs to
            _LOG.info("runs are trained one by one in this round, since together they failed: %s", error)
    ends: dict[ActiveRun, Params] = {}
    for run, opened in rounds.items():
        with run.recorded(), users_code(f"round {opened.view.round} failed"):
            (ends[run],) = train([opened], trainer)
    return ends
