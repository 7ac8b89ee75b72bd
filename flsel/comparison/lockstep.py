"""Play runs beside each other, round by round, so that their clients train in one call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from flsel.comparison.reading import FAILURE, write_failure, write_labels
from flsel.config import RunConfig
from flsel.data.population import Source
from flsel.engine.job import Job, train
from flsel.errors import DivergedError, Interrupted, UserError, raised_at, users_code
from flsel.local.compiled.trainer import CompiledTrainer
from flsel.local.trainer import LocalTrainer
from flsel.runner.build import build
from flsel.runner.interrupt import Interrupt
from flsel.runner.session import Session
from flsel.stack import Params

_LOG = logging.getLogger("flsel")


class Playing:
    """A run on its way; how it fails is written down, and costs no other run.

    Args:
        folder: Its folder, created if missing.
        ended: Called once it ended, one way or the other.
    """

    def __init__(self, folder: Path, ended: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._ended = ended
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """Its session; only while it is :attr:`going`."""
        assert self._session is not None
        return self._session

    @property
    def going(self) -> bool:
        """Whether it is built and has not ended."""
        return self._session is not None

    @property
    def kind(self) -> Hashable | None:
        """What runs have in common whose clients share stacks; None if it shares with none."""
        if self._session is None:
            return None
        federation = self._session.server.federation
        if not isinstance(federation.trainer, CompiledTrainer):
            return None
        return federation.trainer.kind(federation.program, federation.budget)

    def build(self, config: RunConfig, load: Callable[[RunConfig], Source]) -> None:
        """Build it, from a dataset that is loaded."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / FAILURE).unlink(missing_ok=True)
        with self.recorded():
            built = build(config, load(config))
            self._session = Session(config, self.folder, built, pictured=False)  # the report has them of all
            write_labels(self.folder, self._session.server.federation.labels.numpy())

    def open(self) -> None:
        """Go back to its checkpoint; a run that is finished ends here."""
        with self.recorded():
            self.session.open()
            if self.session.complete:
                self.end()

    def end(self) -> None:
        """Leave it."""
        if self._session is not None:
            self._session.close()
            self._session = None
            self._ended()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Write down how the block failed, if it did; the run has then ended."""
        try:
            yield
            return
        except Interrupted:
            raise
        except DivergedError as error:
            write_failure(self.folder, "diverged", str(error))
        except UserError as error:
            write_failure(self.folder, "failed", str(error))
        except Exception as error:  # the selector or the model may be the user's own
            write_failure(self.folder, "failed", raised_at(error))
        if self._session is None:
            self._ended()
        else:
            self.end()


def play_together(
    cells: Sequence[Playing],
    round_ended: Callable[[], None] = lambda: None,
    saved: Callable[[Mapping[Path, int]], None] = lambda rounds: None,
) -> bool:
    """Play runs to their ends.

    Args:
        cells: The runs, built; those that failed are left out.
        round_ended: Called after every round of every run.
        saved: Given the rounds of those that go on, by folder, whenever all of them were saved.

    Returns:
        Whether a signal asked to stop in the last round, so that nothing else should begin.

    Raises:
        Interrupted: If a signal stopped them between rounds; their states are saved.
    """
    cells = [cell for cell in cells if cell.going]
    trainers = [cell.session.server.federation.trainer for cell in cells]
    try:
        for cell in cells:
            cell.open()
        saved(_rounds(cells))
        with Interrupt() as interrupt:
            while cells := [cell for cell in cells if cell.going]:
                due = _round(cells, trainers[0], round_ended)
                if due or interrupt.requested:
                    _save(cells)
                    saved(_rounds(cells))
                _end(cells)
                if interrupt.requested and any(cell.going for cell in cells):
                    at = next(cell.session.server.round for cell in cells if cell.going)
                    raise Interrupted(f"stopped after round {at}")
            return interrupt.requested
    finally:
        for cell in cells:
            if cell.going:
                cell.session.close()


def _round(cells: Sequence[Playing], trainer: LocalTrainer, round_ended: Callable[[], None]) -> bool:
    """Play one round of every run, and tell whether they should be saved: all, if it is time for one."""
    jobs: dict[Playing, Job] = {}
    for cell in cells:
        with cell.recorded():
            if not cell.session.server.finished:
                jobs[cell] = cell.session.open_round()
    started = time.perf_counter()
    ends = _trained(jobs, trainer)
    seconds = time.perf_counter() - started
    visits = {cell: len(jobs[cell].plan) for cell in ends}
    due = False
    for cell, models in ends.items():
        with cell.recorded():
            cell.session.close_round(jobs[cell], models, seconds * visits[cell] / sum(visits.values()))
            round_ended()
            server, every = cell.session.server, cell.session.config.output.checkpoint_every
            due |= server.finished or server.round // every > jobs[cell].view.round // every
    return due


def _save(cells: Sequence[Playing]) -> None:
    for cell in cells:
        if cell.going:
            with cell.recorded():
                cell.session.save()


def _rounds(cells: Sequence[Playing]) -> dict[Path, int]:
    """Return the rounds that runs have reached, by folder, without those that have reached their ends."""
    servers = {cell.folder: cell.session.server for cell in cells if cell.going}
    return {folder: server.round for folder, server in servers.items() if not server.finished}


def _end(cells: Sequence[Playing]) -> None:
    for cell in cells:
        if cell.going and cell.session.server.finished:
            with cell.recorded():
                cell.session.end()
                cell.end()


def _trained(jobs: dict[Playing, Job], trainer: LocalTrainer) -> dict[Playing, Params]:
    """Train the clients of all in one call; if that fails, each run's own, to see whose fault it is."""
    if len(jobs) > 1:
        try:
            return dict(zip(jobs, train(list(jobs.values()), trainer), strict=True))
        except Exception as error:  # raised again below, for the run that it belongs to
            _LOG.info("runs are trained one by one in this round, since together they failed: %s", error)
    ends: dict[Playing, Params] = {}
    for cell, job in jobs.items():
        with cell.recorded(), users_code(f"round {job.view.round} failed"):
            (ends[cell],) = train([job], trainer)
    return ends
