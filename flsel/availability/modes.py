"""The availability modes of FedGS and of FLGo.

Sources: FedGS (Wang et al. 2023), Table 1; FLGo (WwZzz/easyFL). Symbols: n_k examples of client k, Y_k its
labels, C labels, t = 0, 1, ... the round, T_p the period, beta in [0, 1) the strength of the effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Range
from flsel.availability.base import Availability, Schedule


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

    reads_labels = True
    beta: Annotated[float, Range(0, below=1)] = 0.9

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Compare every client's smallest label with the largest of all."""
        smallest = (counts > 0).argmax(axis=1)
        largest = max(int(np.flatnonzero(counts.any(axis=0)).max()), 1)
        return _constant(self.beta * smallest / largest + 1 - self.beta)


@final
@dataclass(frozen=True)
class YFF(Availability):
    """Many labels first: beta * |set of Y_k| / C + 1 - beta, as in FLGo.

    **Deviations.** FLGo calls the mode "y fewer first", and its formula prefers clients with more labels.
    C is the number of labels of the dataset instead of those in the test set.

    Attributes:
        beta: Strength of the effect (beta); 0 makes all clients always available.
    """

    reads_labels = True
    beta: Annotated[float, Range(0, below=1)] = 0.2

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Count every client's labels."""
        return _constant(self.beta * (counts > 0).sum(axis=1) / counts.shape[1] + 1 - self.beta)


@final
@dataclass(frozen=True)
class HOMO(Availability):
    """Homogeneous: 1 - beta for all clients, as in FLGo.

    Attributes:
        beta: Probability of a client to be unavailable (beta).
    """

    beta: Annotated[float, Range(0, below=1)] = 0.2

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Return the same probability for all."""
        return _constant(np.full(len(counts), 1 - self.beta))


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

    reads_labels = True
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


def _constant(probabilities: np.ndarray) -> Schedule:
    return lambda rounds: probabilities[None].repeat(len(rounds), axis=0)
