"""The contract of an availability mode, and the trace that draws the available clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

import numpy as np

from flsel.arguments import Checked
from flsel.availability.read_intervals import PlacedRecord
from flsel.errors import UserError, keep_whole, short
from flsel.rng import generator

Schedule: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Maps rounds, int64 ``[R]``, or seconds, float64 ``[R]``, to probabilities, float64 ``[R, N]``."""

REDRAWS = 10_000


class Availability(Checked, ABC):
    """The probability of each client to be available; a mode overrides :meth:`formula`.

    Attributes:
        reads_labels: Whether the mode reads labels. One that does is refused where data have neither class
            labels, nor groups, nor strata.
    """

    reads_labels = False

    def __init_subclass__(cls) -> None:
        """Refuse subclasses that override ``bind`` or ``probabilities``."""
        keep_whole(cls, "bind", "probabilities")
        super().__init_subclass__()

    @property
    def in_seconds(self) -> bool:
        """Whether availability changes with the simulated seconds, instead of with the round."""
        return False

    def records(self, clients: int, rng: np.random.Generator) -> Sequence[PlacedRecord] | None:
        """Return the intervals of each client, which it leaves at their ends; None if nobody leaves.

        Args:
            clients: N.
            rng: Generator for draws made once per run, as for :meth:`formula`.
        """
        return None

    @abstractmethod
    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Return the mode's probabilities for clients that have examples.

        Args:
            counts: Examples per client and label, int64 ``[N, C]``; at least one client has some.
            rng: Generator for draws made once per run.
        """

    @final
    def bind(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Return the probabilities in any round, computing once what does not depend on the round.

        Arguments and errors are those of :meth:`probabilities`.
        """
        has_examples = counts.any(axis=1)
        if not has_examples.any():
            raise UserError("no client has training examples, so none can be available.")
        schedule = self.formula(counts, rng)
        if not callable(schedule):
            raise UserError(
                f"{type(self).__name__}.formula must return a function of rounds, got {short(schedule)}."
            )
        name = type(self).__name__

        def checked(rounds: np.ndarray) -> np.ndarray:
            found, shape = np.asarray(schedule(rounds)), (len(rounds), len(counts))
            fits = found.shape == shape and found.dtype.kind in "biuf"
            if not fits or not (found.min() >= 0 and found.max() <= 1 + 1e-9):
                raise UserError(
                    f"{name}.formula must give probabilities in [0, 1] of shape {shape}, got "
                    f"{short(found, 100)} of shape {found.shape}."
                )
            return np.where(has_examples, found, 0.0)

        return checked

    @final
    def probabilities(self, counts: np.ndarray, rounds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the activity probability of every client in the given rounds.

        Args:
            counts: Examples per client and label, int64 ``[N, C]``.
            rounds: Round indices t >= 0, int64 ``[R]``.
            rng: Generator for draws made once per run (the scales c_k of LN and SLN).

        Returns:
            Float64 ``[R, N]`` in [0, 1]; zero for a client without examples.

        Raises:
            UserError: If no client has examples.
        """
        return self.bind(counts, rng)(np.asarray(rounds, dtype=np.int64))


@final
class Trace:
    """Draw the clients that are active in a round, or at a simulated second.

    Equal arguments give equal rows, in any order of rounds and whatever else is drawn.
    ``counts`` are the examples per client and label, int64 ``[N, C]``; ``seed`` is the run's.
    """

    def __init__(self, mode: Availability, counts: np.ndarray, seed: int) -> None:
        self._schedule = mode.bind(counts, generator(seed, "availability-scale"))
        self._seed = seed
        self.in_seconds = mode.in_seconds
        records = mode.records(len(counts), generator(seed, "availability-scale"))
        has_examples = [bool(own.any()) for own in counts]
        self.records = None if records is None else [*zip(records, has_examples, strict=True)]

    def empty(self, rounds: int) -> np.ndarray:
        """Return the first so many rounds in which no client can be active, int64 ``[E]``.

        None of them if availability changes with the seconds, because the server then waits.
        """
        if self.in_seconds:
            return np.empty(0, dtype=np.int64)
        possible = np.asarray(self._schedule(np.arange(rounds)).any(axis=1))
        return np.flatnonzero(~possible)

    def __call__(self, round: int, seconds: float = 0.0) -> np.ndarray:
        """Draw the active clients, bool ``[N]``.

        Clients are active independently of each other; the round is redrawn until at least one is. Nobody is
        active if all probabilities are zero, or so small that 10,000 draws give no client.

        Args:
            round: Round >= 0.
            seconds: Simulated seconds of the run, for a mode that changes with them.
        """
        probabilities = self._schedule(np.array([seconds if self.in_seconds else round]))[0]
        if (probabilities >= 1).all():
            return np.ones(len(probabilities), dtype=bool)
        rng = generator(self._seed, "availability", round)
        for _ in range(REDRAWS if probabilities.any() else 0):
            active = rng.random(len(probabilities)) < probabilities
            if active.any():
                return np.asarray(active)
        return np.zeros(len(probabilities), dtype=bool)

    def stays(self, clients: Sequence[int], round: int, seconds: float = 0.0) -> np.ndarray:
        """Return how long clients stay available, float64 ``[n]``, infinite without a record.

        Args:
            clients: Ids of n clients.
            round: Round, from whose start the time counts in rounds.
            seconds: Simulated seconds of the run, from which the time counts if the record is in seconds.
        """
        if self.records is None:
            return np.full(len(clients), np.inf)
        time = seconds if self.in_seconds else round
        return np.array([self.records[client][0].left(time) for client in clients], dtype=np.float64)

    def nobody(self) -> tuple[float, float]:
        """Return the seconds without a client, and all seconds, of the longest record in seconds."""
        records = [record for record, useful in self.records or () if useful]
        length = max((record.record.length for record in records), default=0.0)
        at = empty = 0.0
        while records and at < length:
            waits = min(min(record.until(at) for record in records), length - at)
            empty, at = empty + waits, at + waits
            at += max(record.left(at) for record in records)
        return empty, length

    def described(self) -> bytes:
        """Return the records as bytes, for a fingerprint."""
        parts = [
            np.array([record.start, record.record.length, record.repeats]).tobytes()
            + np.stack([record.record.starts, record.record.ends]).tobytes()
            for record, _ in self.records or ()
        ]
        return b"".join(parts)

    def check_stays(self, seconds: np.ndarray) -> None:
        """Refuse a record in seconds in which no client stays for a whole training.

        Args:
            seconds: Simulated seconds of one training of each client, float64 ``[N]``.

        Raises:
            UserError: Naming the longest stay.
        """
        if not self.in_seconds or self.records is None:
            return
        stays = np.array([record.longest if useful else 0.0 for record, useful in self.records])
        if not (stays >= seconds).any():
            raise UserError(
                "availability.path must have an interval that is as long as one local training, got at most "
                f"{stays.max():.4g} simulated seconds, and the shortest training takes {seconds.min():.4g}."
            )

    def wait(self, seconds: float) -> float:
        """Return the simulated seconds until a client is available.

        Zero if nobody ever will be, or if availability does not change with the seconds.

        Args:
            seconds: Simulated seconds of the run.
        """
        if not self.in_seconds or self.records is None:
            return 0.0
        waits = [record.until(seconds) for record, has_examples in self.records if has_examples]
        least = min(waits, default=0.0)
        return least if np.isfinite(least) else 0.0
