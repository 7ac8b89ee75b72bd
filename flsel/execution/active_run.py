"""A run that this process executes: its failure is recorded and does not affect other runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flsel.errors import Interrupted, users_code
from flsel.execution.job import FAILURE, outcome_of, write_failure
from flsel.runner.lock import LockedError
from flsel.runner.session import Session


class ActiveRun:
    """A run that this process executes.

    Args:
        folder: Its folder.
        make: Builds its session.
        ended: Called once it has ended: complete, diverged or failed.
        asked_for: Whether the user named its folder: one that cannot be resumed then stays as it is.

    Attributes:
        folder: Its folder.
        error: Why it diverged or failed; None if it did neither.
        opened: Whether its folder is locked and its checkpoint restored.
        active: Whether it is built and has not ended.
    """

    def __init__(
        self,
        folder: Path,
        make: Callable[[], Session],
        ended: Callable[[], None] = lambda: None,
        *,
        asked_for: bool = False,
    ) -> None:
        self.folder = folder
        self.error: Exception | None = None
        self.opened = False
        self.active = True
        self._ended, self._asked_for = ended, asked_for
        self._saved: int | None = None
        self._session: Session | None = None
        with self.recorded():
            self._session = make()

    @property
    def session(self) -> Session:
        """Its session; there is none if it could not be built."""
        assert self._session is not None
        return self._session

    @property
    def round(self) -> int:
        """Communication rounds that it has completed."""
        return self.session.server.round

    @property
    def over(self) -> bool:
        """Whether nothing is left to train: see :attr:`flsel.runner.session.Session.over`."""
        return self.session.over

    @property
    def kind(self) -> Hashable | None:
        """What runs have in common whose clients share stacks; None if it shares with none."""
        if not self.active:
            return None
        if self.session.server.arrivals is not None:  # whose stacks have other widths in every call
            return None
        federation = self.session.server.federation
        return federation.trainer.pool_key(federation.program, federation.clients_per_round)

    def open(self) -> None:
        """Lock its folder and restore its checkpoint; a complete run ends here."""
        with self.recorded():
            self.session.open()
            self.opened = True
            (self.folder / FAILURE).unlink(missing_ok=True)
        if self.active and self.session.complete:
            self._end()

    def save(self) -> None:
        """Write a checkpoint, unless this round has one."""
        if self.active and self._saved != self.round:
            with self.recorded():
                self.session.save()
                self._saved = self.round

    def finish(self) -> None:
        """Write what a complete run leaves, and end."""
        with self.recorded():
            self.session.end()
        if self.active:
            self._end()

    def close(self) -> None:
        """Let others have its folder; it can be resumed if it has not ended."""
        if self.active:
            self.active = False
            self.session.close()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record how the block failed, if it did; the run has then ended."""
        try:
            with users_code("the run stopped", wide=True):
                yield
        except Interrupted:
            raise
        except Exception as error:
            self.error = error
            self._end()

    def _end(self) -> None:
        self.active = False
        if self._session is not None:
            self._session.close(self.error)
        # A folder that another process writes to is left alone; a new run without a round leaves none.
        stays = isinstance(self.error, LockedError) or (self._asked_for and not self.opened)
        if self.error is not None and not stays and self.folder.is_dir():
            write_failure(self.folder, outcome_of(self.error))
        self._ended()
