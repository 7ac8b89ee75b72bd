"""What a selector learns after a round's training: the updates, and who was late."""

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
    """Clients that were asked and whose update came too late; what they know stays unknown.

    Attributes:
        clients: Their ids, int64 ``[L]``, ascending; without clients that are aggregated.
        durations: Simulated seconds of their training, float64 ``[L]``.
    """

    clients: Tensor
    durations: Tensor

    @classmethod
    def of(cls, durations: Mapping[int, float]) -> Late:
        """Make one of durations by client."""
        seconds = torch.tensor([*durations.values()], dtype=torch.float64)
        return cls(torch.tensor([*durations], dtype=torch.int64), seconds)


@dataclass(frozen=True)
class Updates:
    """What the participants of a round returned; row k belongs to path k.

    Paths that ended in a non-finite model are not in here: their update was dropped.

    Attributes:
        plan: The plan without the dropped paths.
        sizes: Training examples seen along each path, int64 ``[K]``.
        steps: Local optimizer steps taken along each path, int64 ``[K]``.
        needs: What the selector declared.
        answers: Named stacks behind the gated properties.
        travelled: Answers :attr:`travel`; None where every step goes as far as plain SGD's.
        late: Clients that were asked and came too late, or too stale; none without devices.
        steps_since: Answers :attr:`staleness`; None where all updates start from the present model.
    """

    plan: Plan
    sizes: Tensor
    steps: Tensor
    needs: Need
    answers: Mapping[str, Any]
    travelled: Callable[[], Tensor] | None = None
    late: Late = field(default_factory=lambda: Late.of({}))
    steps_since: Tensor | None = None

    @property
    def clients(self) -> Tensor:
        """First client that every path visits, int64 ``[K]`` (the client, where paths have length one)."""
        return whole([visits[0] for visits in self.plan.visits])

    @property
    def staleness(self) -> Tensor:
        """Steps of the server since each update's start, int64 ``[K]``; zeros in a synchronous run."""
        return torch.zeros_like(self.sizes) if self.steps_since is None else self.steps_since

    @property
    def travel(self) -> Tensor:
        """How far a constant gradient carries the model along each path, in first steps, float64 ``[K]``.

        For plain SGD the steps; with momentum more, as later steps go farther. An update divided by it
        compares with those of clients that take other numbers of steps.
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
