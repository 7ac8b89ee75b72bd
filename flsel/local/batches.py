"""Which examples make up which local step: a pure function, the same for every trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flsel.errors import UserError
from flsel.rng import generator


@dataclass(frozen=True)
class BatchSpec:
    """How much a client trains in one visit.

    Attributes:
        size: Examples per batch (B), >= 1.
        epochs: Passes over the client's data (E), >= 1, or None if ``steps`` is given.
        steps: Optimizer steps, >= 1, or None if ``epochs`` is given.
        last: ``short``: the last batch of a pass has what is left; ``wrap``: batches are cut from an endless
            stream of reshuffled passes, so that all have ``size`` examples.

    Raises:
        UserError: If not exactly one of ``epochs`` and ``steps`` is given.
    """

    size: int
    epochs: int | None = None
    steps: int | None = None
    last: Literal["short", "wrap"] = "short"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise UserError(
                "exactly one of local.epochs and local.steps must be set, got "
                f"{self.epochs} and {self.steps}."
            )

    def num_steps(self, examples: int) -> int:
        """Count the optimizer steps of one visit to a client with ``examples`` examples (0 if none)."""
        if examples == 0:
            return 0
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        if self.last == "wrap":
            return -(-self.epochs * examples // self.size)
        return self.epochs * -(-examples // self.size)

    def num_examples(self, examples: int) -> int:
        """Count the examples in all batches of one visit; one that is in several of them counts as often."""
        steps = self.num_steps(examples)
        if self.last == "wrap":
            return steps * self.size
        passes, rest = divmod(steps, max(-(-examples // self.size), 1))
        return passes * examples + min(rest * self.size, examples)


def dealt(spec: BatchSpec, shard: np.ndarray, *, seed: int, round: int, client: int) -> np.ndarray:
    """Deal a client's examples to the batches of one visit.

    Args:
        spec: How much the client trains.
        shard: The client's examples, int64 ``[n_k]``.
        seed: The run's seed.
        round: Communication round.
        client: Client id.

    Returns:
        Entries of ``shard``, int64 ``[steps, size]``; -1 pads batches that are shorter, always at the end of
        the row. Each pass visits every example once.
    """
    steps, examples = spec.num_steps(len(shard)), len(shard)
    if steps == 0:
        return np.empty((0, spec.size), dtype=np.int64)
    rng = generator(seed, "batches", round, client)
    # Examples that one pass contributes to the rows of the table, padding included.
    width = examples if spec.last == "wrap" else -(-examples // spec.size) * spec.size
    passes = -(-steps * spec.size // width)
    table = np.empty((passes, width), dtype=np.int64)
    table[:, :examples], table[:, examples:] = shard, -1
    for row in table:
        rng.shuffle(row[:examples])
    return table.reshape(-1)[: steps * spec.size].reshape(steps, spec.size)
