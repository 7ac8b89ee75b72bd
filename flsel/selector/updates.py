"""The updates of a round, and the clients that were late, as a selector sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flsel.params import Params, whole
from flsel.selector.plan import Plan
from flsel.selector.view import Need, require


@dataclass(frozen=True)
class Late:
    """Clients that were asked and whose update came too late. Their losses and updates stay unknown.

    Attributes:
        clients: Their ids, int64 ``[L]``, ascending, without clients that are aggregated.
        durations: Simulated seconds of their training, float64 ``[L]``.
    """

    clients: Tensor
    durations: Tensor

    @classmethod
    def of(cls, durations: Mapping[int, float]) -> Late:
        """Make late clients from their durations."""
        seconds = torch.tensor([*durations.values()], dtype=torch.float64)
        return cls(torch.tensor([*durations], dtype=torch.int64), seconds)


@dataclass(frozen=True)
class Updates:
    """The updates of a round; row k belongs to path k.

    Paths that ended in a non-finite model have no row, because their update was dropped.

    Attributes:
        plan: The plan without the dropped paths.
        sizes: Training examples along each path, int64 ``[K]``.
        steps: Local optimizer steps along each path, int64 ``[K]``.
        needs: What the selector declared.
        answers: Named stacks behind the gated properties.
        travelled: Answers :attr:`travel`; None if every step goes as far as plain SGD's.
        late: Clients that were asked and came too late, or too stale; none without devices.
        steps_since: Answers :attr:`staleness`; None if all updates start from the present model.
        asked: First clients of all planned paths, int64 ``[A]``, whether or not their update is aggregated;
            None if all are.
    """

    plan: Plan
    sizes: Tensor
    steps: Tensor
    needs: Need
    answers: Mapping[str, Any]
    travelled: Callable[[], Tensor] | None = None
    late: Late = field(default_factory=lambda: Late.of({}))
    steps_since: Tensor | None = None
    asked: Tensor | None = None

    @property
    def clients(self) -> Tensor:
        """First client of every path, int64 ``[K]``."""
        return whole([visits[0] for visits in self.plan.visits])

    def passed_on(self, weights: Tensor) -> Tensor:
        """Let the updates share the weight of those that were asked for and are not aggregated.

        Weights that divide by probabilities belong to a whole cohort. Where m of n arrive, each counts n / m
        times, which is unbiased where chance says who is late. A share in proportion to the weights would
        favour clients with small ones.

        Args:
            weights: Weight of each client on one path, float64 ``[N]``; read for the clients of updates.

        Returns:
            Weights of the updates, float64 ``[K]``.
        """
        own = weights[self.clients]
        asked = len(own) if self.asked is None else len(self.asked)
        return own * (asked / max(len(own), 1))

    @property
    def staleness(self) -> Tensor:
        """Steps of the server since each update's start, int64 ``[K]``; zeros in a synchronous run."""
        return torch.zeros_like(self.sizes) if self.steps_since is None else self.steps_since

    @property
    def travel(self) -> Tensor:
        """Distance that a constant gradient moves the model along each path, in first steps, float64 ``[K]``.

        For plain SGD this is the number of steps. With momentum it is larger, because later steps go farther.
        Updates divided by it can be compared between clients with different numbers of steps.
        """
        return self.steps.double() if self.travelled is None else self.travelled()

    @property
    def own_loss(self) -> Tensor:
        """Loss of the received model on the data of ``clients``, float64 ``[K]`` (``Need.OWN_LOSS``)."""
        require(self.needs, Need.OWN_LOSS)
        own_loss: Tensor = self.answers["own_loss"]
        return own_loss

    @property
    def head(self) -> Params:
        """Output layer's update (``Need.HEAD``): ``weight [K, C, L]`` and ``bias [K, C]`` if it has one."""
        require(self.needs, Need.HEAD)
        head: Params = self.answers["head"]
        return head

    @property
    def deltas(self) -> Params:
        """End model minus the received model, each tensor ``[K, ...]`` (``Need.DELTAS``)."""
        require(self.needs, Need.DELTAS)
        deltas: Params = self.answers["deltas"]
        return deltas

    @property
    def squared_loss(self) -> Tensor:
        """Mean squared loss of the received model, float64 ``[K]`` (``Need.SQUARED_LOSS``).

        Over the distinct examples that each of ``clients`` trains on, at most ``view.examples`` of them; NaN
        without examples.
        """
        require(self.needs, Need.SQUARED_LOSS)
        squared_loss: Tensor = self.answers["squared_loss"]
        return squared_loss

    @property
    def durations(self) -> Tensor:
        """Simulated seconds of the trainings along each path, float64 ``[K]`` (``Need.DURATIONS``)."""
        require(self.needs, Need.DURATIONS)
        durations: Tensor = self.answers["durations"]
        return durations
