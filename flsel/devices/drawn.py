"""Devices whose speeds follow a formula."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Range, shown
from flsel.devices.base import DOWN, SECONDS, UP, Devices, Positive, Table, tied
from flsel.errors import UserError


@final
@dataclass(frozen=True)
class Equal(Devices):
    """All clients have the same device.

    Attributes:
        seconds: Seconds of a forward pass of one example.
        down: Bytes per second that a client receives.
        up: Bytes per second that a client sends.
        delay: Seconds before a request reaches a client.
        jitter: Standard deviation of the logarithm of the computing time of a training or evaluation request.
    """

    seconds: Positive = SECONDS
    down: Positive = DOWN
    up: Positive = UP
    _: KW_ONLY
    delay: Annotated[float, Range(0)] = 0.0
    jitter: Annotated[float, Range(0)] = 0.0

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Return one number for all."""
        return Table(self.seconds, self.down, self.up, self.delay, self.jitter)


@final
@dataclass(frozen=True)
class LogNormal(Devices):
    """Speeds and links are log-normal around their medians.

    A client's link has one factor for both directions.

    **Deviations.** The median and the spread of the speeds are those of the log-normal variant in FedScale's
    ``client_metadata.py``. There 0.0136 s are an example's share of training, here a forward pass. FedScale
    draws anew at each call, so that no client keeps its speed. The links' medians are FLASH's
    (``speed_distri.json``, 19 users).

    Attributes:
        median: Median seconds of a forward pass of one example.
        sigma: Standard deviation of the logarithm of these seconds.
        down: Median bytes per second that a client receives.
        up: Median bytes per second that a client sends.
        sigma_link: Standard deviation of the logarithm of a link's factor.
        delay: Seconds before a request reaches a client.
        jitter: Standard deviation of the logarithm of the computing time of a training or evaluation request.
        correlation: Rank correlation of a client's speed with its number of examples: at 1 the client with
            the most examples is the fastest.
    """

    median: Positive = SECONDS
    sigma: Annotated[float, Range(0, 10)] = 0.6
    down: Positive = DOWN
    up: Positive = UP
    sigma_link: Annotated[float, Range(0, 10)] = 0.5
    _: KW_ONLY
    delay: Annotated[float, Range(0)] = 0.0
    jitter: Annotated[float, Range(0)] = 0.0
    correlation: Annotated[float, Range(-1, 1)] = 0.0

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Draw speeds and links."""
        seconds = self.median * rng.lognormal(0.0, self.sigma, len(sizes))
        link = rng.lognormal(0.0, self.sigma_link, len(sizes))
        seconds = tied(seconds, sizes, self.correlation, rng)
        return Table(seconds, self.down * link, self.up * link, self.delay, self.jitter)


@final
@dataclass(frozen=True)
class Tiers(Devices):
    """Groups of equal devices, each a factor slower than the first.

    Attributes:
        shares: Share of the clients in each group; they sum to one. Group sizes are rounded by largest
            remainder.
        factors: Factor on the seconds in each group.
        seconds: Seconds of a forward pass of one example at factor 1.
        down: Bytes per second that a client receives.
        up: Bytes per second that a client sends.
        delay: Seconds before a request reaches a client.
        jitter: Standard deviation of the logarithm of the computing time of a training or evaluation request.
        correlation: Rank correlation of a client's speed with its number of examples.
    """

    shares: Annotated[tuple[float, ...], Range(above=0, high=1)] = (0.2, 0.2, 0.2, 0.2, 0.2)
    factors: Annotated[tuple[float, ...], Range(above=0)] = (1.0, 2.0, 4.0, 8.0, 16.0)
    seconds: Positive = SECONDS
    down: Positive = DOWN
    up: Positive = UP
    _: KW_ONLY
    delay: Annotated[float, Range(0)] = 0.0
    jitter: Annotated[float, Range(0)] = 0.0
    correlation: Annotated[float, Range(-1, 1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.factors) != len(self.shares):
            raise UserError(
                f"factors must be as many numbers as shares ({len(self.shares)}), got {shown(self.factors)}."
            )
        if abs(sum(self.shares) - 1) > 1e-6:
            raise UserError(
                f"shares must sum to 1, got {shown(self.shares)}, which sum to {sum(self.shares):g}."
            )

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Put clients in groups at random."""
        exact = np.array(self.shares, dtype=np.float64) * len(sizes)
        counts = np.floor(exact + 1e-9).astype(np.int64)
        largest_rest = np.argsort(counts - exact, kind="stable")
        counts[largest_rest[: len(sizes) - counts.sum()]] += 1
        seconds = self.seconds * np.repeat(np.array(self.factors, dtype=np.float64), counts)
        seconds = tied(rng.permutation(seconds), sizes, self.correlation, rng)
        return Table(seconds, self.down, self.up, self.delay, self.jitter)


@final
@dataclass(frozen=True)
class Zipf(Devices):
    """Seconds follow a capped Zipf law, as Plato's sleeping clients do: many fast and some very slow clients.

    **Deviations.** In Plato a client sleeps for the drawn number of seconds per epoch, whatever its number of
    examples. Here the draw is a factor on the seconds of an example.

    Attributes:
        s: Exponent of the law.
        unit: Seconds of a forward pass of one example on the fastest device.
        most: Largest factor; larger draws are set to it.
        down: Bytes per second that a client receives.
        up: Bytes per second that a client sends.
        correlation: Rank correlation of a client's speed with its number of examples.
    """

    s: Annotated[float, Range(above=1)] = 1.2
    unit: Positive = 0.001
    most: Annotated[float, Range(1)] = 60.0
    down: Positive = DOWN
    up: Positive = UP
    _: KW_ONLY
    correlation: Annotated[float, Range(-1, 1)] = 0.0

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Draw and cap the factors."""
        factor = np.minimum(rng.zipf(self.s, len(sizes)).astype(np.float64), self.most)
        return Table(tied(self.unit * factor, sizes, self.correlation, rng), self.down, self.up)


@final
@dataclass(frozen=True)
class HalfNormal(Devices):
    """Seconds are half-normal above the fastest device's, as FedBuff's paper and FLSim draw durations.

    Attributes:
        scale: Standard deviation of the normal distribution that is folded.
        least: Seconds of a forward pass of one example on the fastest device.
        down: Bytes per second that a client receives.
        up: Bytes per second that a client sends.
        correlation: Rank correlation of a client's speed with its number of examples.
    """

    scale: Annotated[float, Range(0)] = 0.02
    least: Positive = 0.002
    down: Positive = DOWN
    up: Positive = UP
    _: KW_ONLY
    correlation: Annotated[float, Range(-1, 1)] = 0.0

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Draw the seconds."""
        seconds = self.least + np.abs(rng.normal(0.0, self.scale, len(sizes)))
        return Table(tied(seconds, sizes, self.correlation, rng), self.down, self.up)
