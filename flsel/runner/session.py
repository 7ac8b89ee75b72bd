"""A run in steps: its server, and the files, trackers and callbacks that follow it, from start to close."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from types import TracebackType

import torch

from flsel.config import RunConfig
from flsel.engine.round_job import OpenRound, train
from flsel.engine.server import RoundRecord
from flsel.errors import UserError, blamed, short, users_code
from flsel.files import new_run_dir
from flsel.params import Params
from flsel.runner.build import Built
from flsel.runner.callbacks import Callbacks, RoundTrainer
from flsel.runner.checkpoint import Checkpoint, check_state
from flsel.runner.digest import check_data, data_digest, rounded_digest
from flsel.runner.extend_rounds import check_extension
from flsel.runner.lock import Lock
from flsel.runner.pictures import draw_curves, draw_partition
from flsel.runner.run_log import write_summary
from flsel.runner.run_writer import Journal
from flsel.runner.saved_settings import run_name
from flsel.runner.summary import summary
from flsel.runner.trackers.run_tracker import RunTracker


class Session:
    """One process's part of a run: it has the folder to itself, runs rounds, writes them down, and leaves.

    :meth:`start` makes a new run's folder. Then :meth:`open` or ``with``, :meth:`step` until the server is
    finished, and :meth:`end`. What drives it - the command line, a trial of a sweep - decides when to save
    and what to show.

    Args:
        config: The settings.
        folder: The run's folder, which exists.
        built: The run's server and what belongs to it.
        tracked: Open the trackers that the settings name.
        pictured: Draw its pictures even if no tracker wants them. A sweep or comparison draws pictures of all
            its runs instead.
        new: The folder is a new run's: it goes if the run never gets through a round.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        built: Built,
        *,
        tracked: bool = True,
        pictured: bool = True,
        new: bool = False,
    ) -> None:
        self.config = config
        self.folder = folder
        self.built = built
        self.server = built.server
        self.described = config.to_dict()
        self._initial_model, self._data = rounded_digest(built.server.params), data_digest(built.data)
        self._tracker = RunTracker()
        self._tracked = tracked
        self._pictured = pictured
        self._new = new
        self._lock = Lock(folder, "run")
        self._journal = Journal(folder, self.described, len(built.data.population))
        trainer = RoundTrainer(self.server, built.program.task, built.callbacks, folder, config.precision)
        self._callbacks = Callbacks(trainer, built.program.load)
        self._status = "failed"
        self._earlier = 0.0
        self._started = time.perf_counter()

    @classmethod
    def start(cls, config: RunConfig, built: Built, *, pictured: bool = True) -> Session:
        """Make the session of a new run, with a folder of its own below ``output.dir``.

        Args:
            config: The settings.
            built: What :func:`flsel.runner.build.build` made of them.
            pictured: Draw the pictures at the end; a run that is tracked has them in any case.

        Raises:
            UserError: If a setting cannot be written to a file, or the folder cannot be created.
        """
        config.to_dict()  # refuses what config.yaml could not hold, before there is a folder
        folder = new_run_dir(config.output.dir, run_name(config))
        return cls(config, folder, built, pictured=pictured, new=True)

    def __enter__(self) -> Session:
        try:
            self.open()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def open(self) -> None:
        """Take the folder, go back to the last checkpoint, and unless the run is complete, get ready to run.

        Raises:
            UserError: If another process writes to the folder, or its files are damaged or another run's.
        """
        self._lock.acquire()
        state = self._restore()
        if self.complete:
            self._status = "success"
            return
        self._journal.rewind(state)
        self._journal.summary.unlink(missing_ok=True)
        self._journal.write_settings(self.described)
        if self._tracked:
            self._tracker.open(
                self.config, self.built, self.folder, described=self.described, rows=self.rows()
            )
        trainer = self._callbacks.trainer
        trainer.loggers = list(self.built.program.fabric.loggers)
        self._callbacks.call("setup", stage="fit")
        if self.server.round == 0 and not self.rows():
            self._measure_initial_model()
            self.save()
        self._callbacks.call("on_fit_start")
        self._callbacks.call("on_train_start")

    def close(self, error: BaseException | None = None) -> None:
        """Finish the trackers and let others have the folder.

        Args:
            error: What ended the run, if something did.
        """
        # A run that never got through a round leaves nothing to look at or to go on with.
        refused = isinstance(error, UserError) or (error is not None and blamed(error) is not None)
        if self._new and refused and self.server.round == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._tracker.close(self._status)
        self._lock.release()

    @property
    def over(self) -> bool:
        """Whether all rounds are run, or the target or a callback ended the run."""
        return self.server.finished or self._callbacks.trainer.should_stop

    @property
    def complete(self) -> bool:
        """Whether the run is over and everything is written, so that nothing is left to resume."""
        return self.over and self._journal.summary.exists()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of all processes that ran this run."""
        return self._earlier + time.perf_counter() - self._started

    def rows(self, start: int = 0) -> list[dict[str, float]]:
        """Return the rows of ``metrics.csv`` from one on, of which the first is 0."""
        return self._journal.metrics.rows(start)

    def step(self) -> RoundRecord:
        """Run one round and write down what happened."""
        job = self.open_round()
        started = time.perf_counter()
        with users_code(f"round {self.server.round} failed"):
            (ends,) = train([job], self.server.federation.trainer)
        return self.close_round(job, ends, time.perf_counter() - started)

    def open_round(self) -> OpenRound:
        """Decide which clients train next; :meth:`close_round` takes their models, :meth:`step` does all."""
        self._callbacks.trainer.current_epoch = self.server.round
        self._callbacks.call("on_train_epoch_start")
        self._callbacks.tell("on_round_start")
        with users_code(f"round {self.server.round} failed"):
            return self.server.open()

    def close_round(self, job: OpenRound, ends: Params, seconds: float) -> RoundRecord:
        """Aggregate the trained models, and record the round.

        Args:
            job: What :meth:`open_round` returned.
            ends: End models of its paths; written to.
            seconds: Wall time that they took.
        """
        with users_code(f"round {self.server.round} failed"):
            record = self.server.close(job, ends, seconds)
        self._journal.write_round(record)
        self._journal.diagnostics.after(self.server.selector, record.round, self.server.round)
        if record.metrics is not None:
            self._evaluated(record.metrics)
        self._callbacks.tell("on_round_end", record=record)
        self._callbacks.call("on_train_epoch_end")
        return record

    def save(self) -> None:
        """Write the checkpoint that :meth:`open` goes back to."""
        self._journal.save(
            server=self.server.state_dict(),
            wall=self.seconds,
            rounds=self.config.rounds,
            stopped=self._callbacks.trainer.should_stop,
            callbacks=self._callbacks.state_dict(),
            data=self._data,
        )

    def end(self) -> None:
        """Tell the callbacks that training is over, draw the pictures, and write the summary."""
        self._callbacks.call("on_train_end")
        rows = self.rows()
        if self._pictured or self._tracker.alive:
            draw_curves(self.config, self.built, rows, self.folder)
            draw_partition(self.built, self.folder)
        self._journal.diagnostics.end(self.server.selector, self.server.round)
        content = summary(
            self.config,
            self.built,
            last=rows[-1],
            best=self._journal.best,
            seconds=self.seconds,
            initial_model=self._initial_model,
        )
        # The last file: a run that has it is finished.
        write_summary(self._journal.summary, {"name": self.folder.name, **content})
        self._tracker.end(self.folder)
        self._status = "success"

    def _restore(self) -> Checkpoint | None:
        """Go back to the last checkpoint, and check what the files hold; nothing is written."""
        state = self._journal.load()
        if state is not None:
            check_data(state.data, self._data, self.folder)
            try:
                check_state(state.server, self.server.state_dict())
                self.server.load_state_dict(state.server)
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
                raise UserError(
                    f"checkpoint {self._journal.last} does not fit this run ({short(error)}): restore the "
                    "model, the selector or the flsel that wrote it, or start a new run with --config."
                ) from error
            self._earlier = state.wall
            self._callbacks.load_state_dict(state.callbacks)
            self._callbacks.trainer.should_stop = state.stopped
            if state.rounds != self.config.rounds:
                check_extension(self.config, state, self.server)
        return state

    def _measure_initial_model(self) -> None:
        self._callbacks.trainer.sanity_checking = True
        with users_code("the initial model cannot be measured"):
            metrics = self.server.evaluate(torch.empty(0, dtype=torch.int64))
        self._evaluated(metrics)
        self._callbacks.trainer.sanity_checking = False

    def _evaluated(self, metrics: dict[str, float]) -> None:
        """Show an evaluation to the callbacks, and write it down with what they add to it."""
        metrics = self._callbacks.evaluated(metrics)
        self._journal.evaluated(self.server.round, metrics, self.server.score)
        self._tracker.log(metrics, self.server.round)
        self._callbacks.call("on_validation_end")
