"""The contract of an aggregate, and the weighted mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

from torch import Tensor

from flsel.arguments import Checked
from flsel.params import Params, rows, weighted_sum


class Aggregate(Checked, ABC):
    """How the server joins the updates of a round.

    Attributes:
        robust: Whether all updates with a positive weight count alike, whatever their weights. The result is
            then multiplied by the sum of the weights. Selectors whose weights correct for the probability
            that a client is chosen are refused.
        least: Fewest ``clients_per_round``.
    """

    robust: ClassVar[bool] = True

    @property
    def least(self) -> int:
        """Fewest ``clients_per_round`` for which the aggregate is defined."""
        return 1

    @abstractmethod
    def join(self, deltas: Params) -> Params:
        """Return one update in place of K >= 1 updates, without a leading dimension.

        Args:
            deltas: The updates, each tensor ``[K, ...]``. Do not write to them.
        """

    @final
    def combined(self, deltas: Params, weights: Tensor) -> Params:
        """Return the update of the global model.

        Args:
            deltas: The updates, each tensor ``[K, ...]``.
            weights: Their weights, float64 ``[K]``.
        """
        counted = weights.nonzero().flatten()
        if not self.robust or len(counted) == 0:
            return weighted_sum(deltas, weights)
        total = float(weights.sum())
        return {name: value * total for name, value in self.join(rows(deltas, counted)).items()}


@final
class Mean(Aggregate):
    """The sum of the selector's weights times the updates, as in federated averaging."""

    robust: ClassVar[bool] = False

    def join(self, deltas: Params) -> Params:
        """Return the plain mean."""
        return {name: value.mean(dim=0) for name, value in deltas.items()}
