"""The table of devices, and the base class of the classes that draw it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Checked, Range
from flsel.errors import UserError, keep_whole, short
from flsel.rng import generator

# FedScale's log-normal speeds: exp(1) times 0.005 s an example.
SECONDS = 0.0136
# Medians of FLASH's 19 measured users, 4,318 and 3,286 KiB a second.
DOWN, UP = 4318 * 1024.0, 3286 * 1024.0

Positive = Annotated[float, Range(above=0)]


@dataclass(frozen=True, eq=False)
class Table:
    """The devices of all clients, each field float64 ``[N]``, or one number for all of them.

    Attributes:
        seconds: Seconds that a forward pass of one example takes, > 0.
        down: Bytes per second that the client receives, > 0.
        up: Bytes per second that the client sends, > 0.
        delay: Seconds before a request reaches the client, >= 0.
        jitter: Standard deviation of the logarithm of a request's computing time, >= 0; the mean is kept.
        down_jitter: The same of the bytes per second that a request receives.
        up_jitter: The same of the bytes per second that a request sends.
    """

    seconds: np.ndarray | float
    down: np.ndarray | float
    up: np.ndarray | float
    delay: np.ndarray | float = 0.0
    jitter: np.ndarray | float = 0.0
    down_jitter: np.ndarray | float = 0.0
    up_jitter: np.ndarray | float = 0.0


class Devices(Checked, ABC):
    """The devices of the clients; a class overrides :meth:`formula`."""

    def __init_subclass__(cls) -> None:
        """Keep the checks of a table in one place."""
        keep_whole(cls, "table")
        super().__init_subclass__()

    @abstractmethod
    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Draw the clients' devices.

        Args:
            sizes: Training examples of each client, int64 ``[N]``.
            rng: The run's generator for devices.
        """

    @final
    def table(self, sizes: np.ndarray, seed: int) -> Table:
        """Return the checked table of a run.

        Args:
            sizes: Training examples of each client, int64 ``[N]``.
            seed: The run's seed.

        Raises:
            UserError: If a number is missing, negative or not finite.
        """
        name, made = type(self).__name__, self.formula(sizes, generator(seed, "devices"))
        if not isinstance(made, Table):
            raise UserError(f"devices {name}.formula must return a Table, got {short(made)}.")
        return Table(
            **{key: _column(f"{name} {key}", value, len(sizes)) for key, value in vars(made).items()}
        )


def tied(seconds: np.ndarray, sizes: np.ndarray, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """Reorder drawn seconds so that speed and size are rank correlated; their distribution stays.

    A Gaussian copula: the ranks of ``correlation`` times a normal score of the size plus independent noise
    decide which client gets which speed.

    Args:
        seconds: Drawn seconds, float64 ``[N]``.
        sizes: Training examples of each client, int64 ``[N]``; ties are ranked at random.
        correlation: In [-1, 1]; 0 leaves the order as it is.
        rng: The run's generator for devices.
    """
    if correlation == 0:
        return seconds
    scores, noise, ties = rng.standard_normal((3, len(sizes)))
    by_size = np.empty(len(sizes))
    by_size[np.lexsort((ties, sizes))] = np.sort(scores)
    latent = correlation * by_size + np.sqrt(1 - correlation**2) * noise
    found = np.empty(len(sizes))
    found[np.argsort(latent, kind="stable")] = -np.sort(-seconds)  # The largest is the fastest.
    return found


def _column(name: str, value: np.ndarray | float, clients: int) -> np.ndarray:
    found = np.asarray(value)
    zero = name.endswith((" delay", "jitter"))
    fits = found.shape in ((), (clients,)) and found.dtype.kind in "biuf"
    if not fits or not (np.isfinite(found).all() and (found >= 0 if zero else found > 0).all()):
        rule = f"{'>= 0' if zero else '> 0'} and finite, one for each of {clients} clients"
        raise UserError(f"devices {name} must be {rule}, got {short(value, 100)}.")
    return np.broadcast_to(found.astype(np.float64), (clients,))
