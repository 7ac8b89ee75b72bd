"""The contract of a local trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

from torch import Tensor

from flsel.data.population import Population
from flsel.local import measure
from flsel.local.program import Program
from flsel.local.visit import Visit
from flsel.params import Params


class LocalTrainer(ABC):
    """Trains each client from its start model. Implementations may batch clients.

    The visits of one call, at least one, may belong to different federations, rounds and starts; their
    models have the same names and shapes. Row i of an answer depends on visit i alone: not on the other
    visits, their order or earlier calls, beyond the rounding of sums.

    Attributes:
        unanswered: Whether no client answered the last training. The round then ends without an update. A
            trainer that asks other machines sets it.
    """

    unanswered = False

    @abstractmethod
    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start.

        Returns:
            New stack of end models, each tensor ``[len(visits), ...]``.
        """

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the mean loss of each start on its client's training data, in eval mode.

        Returns:
            Float64 ``[len(visits)]``, on the CPU; NaN for a client without examples.
        """
        return measure.losses(visits)

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the gradient of each start's mean loss on its client's training data, in eval mode.

        Returns:
            New stack over the trainable parameters, each ``[len(visits), ...]``; NaN for a client without
            examples.
        """
        return measure.gradients(visits)

    def squared_losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the mean squared loss of each start on the examples that its visit trains on, in eval mode.

        Returns:
            Float64 ``[len(visits)]``, on the CPU; NaN for a client without examples.
        """
        return measure.squared_losses(visits)

    def population(self, known: Population) -> Population:
        """Return the clients' data as far as it is known here.

        Args:
            known: What the dataset of the settings gives; all of it, unless clients have data of their own.
        """
        return known

    def reachable(self, round: int) -> Tensor | None:
        """Tell which clients can be asked in a round, bool ``[N]``; None: all that are available.

        It is asked once, when the round opens.
        """
        return None

    def forget(self, program: Program) -> None:  # noqa: B027
        """Drop what was made of a program, whose task or objective was changed between two rounds."""

    def pool_key(self, program: Program, clients: int) -> Hashable | None:
        """Describe which federations' clients would share stacks with those of a program.

        Args:
            program: The program.
            clients: Its clients in a call.

        Returns:
            A key that is equal for all of them; None if no stack is shared, or sharing is not faster.
        """
        return None

    def one_by_one(self, program: Program) -> bool:
        """Tell whether sequential trains a program, so that there is nothing to compare."""
        return False
