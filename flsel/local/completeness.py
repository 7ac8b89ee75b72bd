"""How much of its local training a client does: the completeness modes of FLGo (WwZzz/easyFL)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np

from flsel.arguments import Checked, Range, shown
from flsel.errors import UserError, short
from flsel.local.schedule import BatchSpec
from flsel.rng import generator


class Completeness(Checked, ABC):
    """The part of its local training that a client does; a mode overrides :meth:`steps`.

    Attributes:
        static: Whether a client's part is drawn once per run, instead of for each training.
    """

    static: ClassVar[bool] = False

    @abstractmethod
    def steps(self, batches: BatchSpec, examples: int, rng: np.random.Generator) -> int:
        """Return the local steps of a training, from 1 to all of them.

        Args:
            batches: The batches of a whole training.
            examples: Training examples of the client, at least one.
            rng: Generator of the client, or of the client's training unless the mode is static.
        """


@final
@dataclass(frozen=True)
class PDU(Completeness):
    """Part dynamic uniform: with the probability p max(1, s) of S steps, s even in 0..S - 1; else all.

    T. Li et al.: "Federated Optimization in Heterogeneous Networks", MLSys 2020, names such clients
    stragglers.

    **Deviations.** FLGo keeps what it draws as the client's number of steps, which so shrinks from round to
    round. Here each training draws from all steps.

    Attributes:
        p: Probability that a training is incomplete.
    """

    p: Annotated[float, Range(0, 1)] = 0.5

    def steps(self, batches: BatchSpec, examples: int, rng: np.random.Generator) -> int:
        """Draw whether the training is complete, and the steps of one that is not."""
        every = batches.num_steps(examples)
        return max(1, int(rng.integers(every))) if rng.random() < self.p else every


@final
@dataclass(frozen=True)
class FSU(Completeness):
    """Full static uniform: max(1, floor(u S)) of S steps, u even in [0, 1) for each client."""

    static = True

    def steps(self, batches: BatchSpec, examples: int, rng: np.random.Generator) -> int:
        """Draw the client's share of the steps."""
        return max(1, int(rng.random() * batches.num_steps(examples)))


@final
@dataclass(frozen=True)
class ADU(Completeness):
    """Arbitrary dynamic uniform: each training has e epochs, even in ``least``..``local.epochs``.

    J. Wang et al.: "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
    NeurIPS 2020.

    **Deviations.** FLGo never draws its largest number of epochs, and starts at one epoch at most.

    Attributes:
        least: Fewest epochs.
    """

    least: Annotated[int, Range(1)] = 1

    def steps(self, batches: BatchSpec, examples: int, rng: np.random.Generator) -> int:
        """Draw the epochs of the training."""
        return _of_epochs(self.least, batches, examples, rng)


@final
@dataclass(frozen=True)
class ASU(Completeness):
    """Arbitrary static uniform: as ``ADU``, but each client draws its epochs once.

    Attributes:
        least: Fewest epochs.
    """

    static = True
    least: Annotated[int, Range(1)] = 1

    def steps(self, batches: BatchSpec, examples: int, rng: np.random.Generator) -> int:
        """Draw the epochs of the client."""
        return _of_epochs(self.least, batches, examples, rng)


def _of_epochs(least: int, batches: BatchSpec, examples: int, rng: np.random.Generator) -> int:
    if batches.epochs is None or batches.epochs < least:
        raise UserError(
            f"local.epochs must be at least completeness.least, got {shown(batches.epochs)} and {least}: "
            "set it to the largest number of epochs that a client does."
        )
    return replace(batches, epochs=int(rng.integers(least, batches.epochs, endpoint=True))).num_steps(
        examples
    )


@final
@dataclass(frozen=True, eq=False)
class ClientWork:
    """The local steps of each training of a run.

    Attributes:
        mode: The part that clients do.
        batches: The batches of a whole training.
        seed: The run's seed.
    """

    mode: Completeness
    batches: BatchSpec
    seed: int

    def steps(self, client: int, turn: int, examples: int) -> int:
        """Return the local steps of a training.

        Args:
            client: Client id.
            turn: The round, or the client's earlier trainings in an asynchronous run.
            examples: Training examples of the client.

        Raises:
            UserError: If the mode gives no such number.
        """
        if not examples:
            return 0
        index = () if self.mode.static else (turn,)
        rng = generator(self.seed, "completeness", client, *index)
        steps, every = self.mode.steps(self.batches, examples, rng), self.batches.num_steps(examples)
        if not isinstance(steps, int) or not 1 <= steps <= every:
            raise UserError(
                f"{type(self.mode).__name__}.steps must return a whole number from 1 to the {every} steps of "
                f"a training, got {short(steps)}."
            )
        return steps

    def trained(self, client: int, turn: int, examples: int) -> int:
        """Return the examples in the batches of a training; arguments are those of :meth:`steps`."""
        return self.batches.examples_in(self.steps(client, turn, examples), examples)
