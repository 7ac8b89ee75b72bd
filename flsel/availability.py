"""Which clients are available in which round: the seven availability modes of FedGS, as pure functions.

A mode gives the probability of each client to be available in a round. A *trace* draws the available clients.
It depends on the mode, the clients' label counts and the seed only, so it is the same for every selector.

Source: FedGS (Wang et al. 2023), Table 1. Symbols: n_k examples of client k, Y_k its labels, C labels,
t = 0, 1, ... the round, T_p the period, beta in [0, 1) the strength of the effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeAlias, final

import numpy as np

from flsel.arguments import Checked, Range
from flsel.errors import UserError, keep_whole, short
from flsel.rng import generator

Schedule: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Maps rounds, int64 ``[R]``, to probabilities, float64 ``[R, N]``."""

REDRAWS = 10_000


class Availability(Checked, ABC):
    """The probability of each client to be available; a mode overrides :meth:`formula`."""

    def __init_subclass__(cls) -> None:
        """Refuse subclasses that override ``bind`` or ``probabilities``."""
        keep_whole(cls, "bind", "probabilities")
        super().__init_subclass__()

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
@dataclass(frozen=True)
class IDL(Availability):
    """Ideal: all clients are always available."""

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Return ones."""
        return _constant(np.ones(len(counts)))


@final
@dataclass(frozen=True)
class MDF(Availability):
    """More data first: n_k^beta / max_i n_i^beta.

    Attributes:
        beta: Strength of the effect (beta); 0 makes all clients always available.
    """

    beta: Annotated[float, Range(0, below=1)] = 0.7

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Compare every client's size with the largest."""
        sizes = counts.sum(axis=1)
        return _constant((sizes / sizes.max()) ** self.beta)


@final
@dataclass(frozen=True)
class LDF(Availability):
    """Less data first: n_k^-beta / max_i n_i^-beta, over the clients that have data.

    Attributes:
        beta: Strength of the effect (beta); 0 makes all clients always available.
    """

    beta: Annotated[float, Range(0, below=1)] = 0.7

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Compare every client's size with the smallest."""
        sizes = counts.sum(axis=1)
        smallest = sizes[sizes > 0].min()
        return _constant((smallest / np.maximum(sizes, smallest)) ** self.beta)


@final
@dataclass(frozen=True)
class YMF(Availability):
    """Larger labels first: beta * min(Y_k) / max_i max(Y_i) + 1 - beta, labels counted from 0.

    If 0 is the only label, all clients have probability 1 - beta.

    Attributes:
        beta: Strength of the effect (beta); 0 makes all clients always available.
    """

    beta: Annotated[float, Range(0, below=1)] = 0.9

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Compare every client's smallest label with the largest of all."""
        smallest = (counts > 0).argmax(axis=1)
        largest = max(int(np.flatnonzero(counts.any(axis=0)).max()), 1)
        return _constant(self.beta * smallest / largest + 1 - self.beta)


@final
@dataclass(frozen=True)
class YC(Availability):
    """Label cycle: 1 while the cycle is at one of the client's labels, else 1 - beta.

    The cycle is at label y while (1 + t mod T_p) / T_p lies in (y/C, (y+1)/C].

    **Deviations.** The paper's interval is [y/C, (y+1)/C), which contains no client's label if t mod T_p =
    T_p - 1. This is the interval of the reference code, computed in whole numbers.

    Attributes:
        beta: Strength of the effect (beta); 0 makes all clients always available.
        period: Period in rounds (T_p); null means 10 C. This is 100 for ten labels, as in the reference code.
            The paper does not say. If the period is below C, the cycle skips some labels.
    """

    beta: Annotated[float, Range(0, below=1)] = 0.9
    period: Annotated[int | None, Range(1)] = None

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Follow the cycle of labels."""
        num_labels = counts.shape[1]
        owners = np.ascontiguousarray(counts.T > 0)  # [C, N]
        period = 10 * num_labels if self.period is None else self.period

        def schedule(rounds: np.ndarray) -> np.ndarray:
            turn = (num_labels * (1 + rounds % period) - 1) // period
            return np.where(owners[turn], 1.0, 1.0 - self.beta)

        return schedule


@final
@dataclass(frozen=True)
class LN(Availability):
    """Log-normal: c_k / max_i c_i, with c_k ~ lognormal(0, ln(1 / (1 - beta))) drawn once.

    The second parameter is the standard deviation of ln c_k.

    Attributes:
        beta: Strength of the effect (beta); 0 makes all clients always available.
    """

    beta: Annotated[float, Range(0, below=1)] = 0.5

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Draw the c_k and compare them with the largest."""
        return self.given(log_normal_scales(self.beta, len(counts), rng))

    def given(self, scales: np.ndarray) -> Schedule:
        """Return the probabilities for given c_k > 0, float64 ``[N]``."""
        return _constant(scales / scales.max())


@final
@dataclass(frozen=True)
class SLN(Availability):
    """Sine log-normal: c_k / max_i c_i, as LN, times 0.4 sin(2 pi (1 + t mod T_p) / T_p) + 0.5.

    **Deviations.** The paper gives no T_p. 24 is the reference code's. Its phase, t mod 24 over 23, is not
    reproduced.

    Attributes:
        beta: Strength of the difference between clients (beta); 0 makes all clients equally available.
        period: Period in rounds (T_p).
    """

    beta: Annotated[float, Range(0, below=1)] = 0.5
    period: Annotated[int, Range(1)] = 24

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Draw the c_k and multiply them by the wave."""
        return self.given(log_normal_scales(self.beta, len(counts), rng))

    def given(self, scales: np.ndarray) -> Schedule:
        """Return the probabilities for given c_k > 0, float64 ``[N]``."""
        relative = scales / scales.max()

        def schedule(rounds: np.ndarray) -> np.ndarray:
            phase = (1 + rounds % self.period) / self.period
            return np.outer(0.4 * np.sin(2 * np.pi * phase) + 0.5, relative)

        return schedule


def log_normal_scales(beta: float, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the c_k of LN and SLN, float64 ``[clients]``, > 0."""
    return rng.lognormal(0.0, -np.log1p(-beta), size=clients)


@final
class Trace:
    """Draw the clients that are active in a round.

    Equal arguments give equal rows, in any order of rounds and whatever else is drawn.
    ``counts`` are the examples per client and label, int64 ``[N, C]``; ``seed`` is the run's.
    """

    def __init__(self, mode: Availability, counts: np.ndarray, seed: int) -> None:
        self._schedule = mode.bind(counts, generator(seed, "availability-scale"))
        self._seed = seed

    def empty(self, rounds: int) -> np.ndarray:
        """Return the first so many rounds in which no client can be active, int64 ``[E]``."""
        possible = np.asarray(self._schedule(np.arange(rounds)).any(axis=1))
        return np.flatnonzero(~possible)

    def __call__(self, round: int) -> np.ndarray:
        """Draw the active clients of a round >= 0, bool ``[N]``.

        Clients are active independently of each other; the round is redrawn until at least one is. Nobody is
        active if all probabilities are zero, or so small that 10,000 draws give no client.
        """
        probabilities = self._schedule(np.array([round]))[0]
        if (probabilities >= 1).all():
            return np.ones(len(probabilities), dtype=bool)
        rng = generator(self._seed, "availability", round)
        for _ in range(REDRAWS if probabilities.any() else 0):
            active = rng.random(len(probabilities)) < probabilities
            if active.any():
                return np.asarray(active)
        return np.zeros(len(probabilities), dtype=bool)


def _constant(probabilities: np.ndarray) -> Schedule:
    return lambda rounds: probabilities[None].repeat(len(rounds), axis=0)
