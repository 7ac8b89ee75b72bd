"""The closing of every round: end models become updates, and updates a change of the global model.

A :class:`Closing` belongs to a federation. Synchronous, asynchronous and deployed rounds do this in order:

1. :meth:`Closing.updates` subtracts the start models. ``on_client`` then changes the updates as their clients
   do before they send them, and before the selector or the server sees them. What a client keeps between
   rounds is the state of what it calls. What it saves in bytes is the matter of
   :meth:`flsel.engine.respondents.Respondents.upload`.
2. :meth:`Closing.weigh` describes the updates to the selector, which weighs and observes them.
3. ``aggregate`` makes one update of the stack and the weights: their weighted sum, or a robust one. What the
   server does to the aggregate, such as adding noise, belongs into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from flsel.engine.check_plans import check_weights
from flsel.engine.watches import remembered, unwritten
from flsel.errors import DivergedError, short
from flsel.params import Params, rows, weighted_sum
from flsel.selector import Late, Need, Plan, Selector, Updates, View

OnClient = Callable[[Params, Sequence[int], Sequence[int]], Params]
"""Maps updates ``[K, ...]``, the clients that send them, and a turn for each to what is sent.

A turn is the round, or the client's earlier trainings in an asynchronous run. Rows that are not finite are
dropped afterwards.
"""
Combine = Callable[[Params, Tensor, Sequence[int], int], Params]
"""Maps finite updates ``[K, ...]``, weights ``[K]``, the clients that sent them and the round to the change
of the global model."""
ANY_UPDATE = Need.DELTAS | Need.HEAD
"""Needs of participants' updates."""


def summed(deltas: Params, weights: Tensor, clients: Sequence[int], round: int) -> Params:
    """Return the weighted sum of updates (see :data:`Combine`)."""
    return weighted_sum(deltas, weights)


@dataclass(frozen=True)
class Returned:
    """What comes with the updates of a round; row k belongs to path k.

    Attributes:
        plan: The paths that are aggregated.
        work: ``sizes`` and ``steps`` along each path, int64 ``[K]``, and ``travelled`` if it is known.
        reports: What participants tell, by need.
        late: Seconds of the trainings that came too late, by client.
        steps_since: Staleness of each update, int64 ``[K]``; None where all start from one model.
        asked: First clients of all planned paths, int64 ``[A]``; None where all are aggregated.
    """

    plan: Plan
    work: Mapping[str, Any]
    reports: Mapping[Need, Any] = field(default_factory=dict)
    late: Mapping[int, float] = field(default_factory=dict)
    steps_since: Tensor | None = None
    asked: Tensor | None = None


@dataclass(frozen=True)
class Closing:
    """Turn end models into updates, let the selector weigh them, and aggregate.

    Attributes:
        head: Names of the output layer's weight and bias; None where no selector reads it.
        on_client: What happens to updates on their clients; None sends them as they are.
        aggregate: Makes one update of all.
    """

    head: tuple[str, str | None] | None = None
    on_client: OnClient | None = None
    aggregate: Combine = summed

    def updates(self, ends: Params, starts: Params, plan: Plan, turns: Sequence[int]) -> Params:
        """Return the updates that the server receives, each tensor ``[K, ...]``.

        Args:
            ends: End models of the paths, each tensor ``[K, ...]``; written to.
            starts: The model that they started from, or a stack of models.
            plan: The paths.
            turns: The round, or the client's earlier trainings in an asynchronous run, for each path.
        """
        # What clients keep has no start, and is not sent.
        deltas = {name: ends[name].sub_(start) for name, start in starts.items()}
        if self.on_client is None:
            return deltas
        # A client that is drawn twice trains and sends once.
        first: dict[tuple[tuple[int, ...], int], int] = {}
        at = [first.setdefault(pair, k) for k, pair in enumerate(zip(plan.paths, turns, strict=True))]
        distinct = list(first.values())
        clients = [plan.visits[k][-1] for k in distinct]
        sent = self.on_client(rows(deltas, torch.tensor(distinct)), clients, [turns[k] for k in distinct])
        if len(distinct) == len(at):
            return sent
        where = torch.tensor([distinct.index(k) for k in at])
        return {name: value[where.to(value.device)] for name, value in sent.items()}

    def describe(self, deltas: Params, returned: Returned, needs: Need) -> Updates:
        """Return the updates as a selector may see them.

        Args:
            deltas: The updates that are aggregated, each tensor ``[K, ...]``.
            returned: What comes with them.
            needs: What the selector declares.
        """
        answers = {need: value for need, value in returned.reports.items() if need in needs}
        if Need.DELTAS in needs:
            answers[Need.DELTAS] = deltas
        if Need.HEAD in needs:
            assert self.head is not None  # see runner.build and flower.selection
            answers[Need.HEAD] = head_of(deltas, self.head)
        return Updates(
            plan=returned.plan,
            needs=needs,
            answers={str(need.name).lower(): value for need, value in answers.items()},
            late=Late.of(returned.late),
            steps_since=returned.steps_since,
            asked=returned.asked,
            **returned.work,
        )

    def weigh(
        self, selector: Selector, view: View, deltas: Params, returned: Returned
    ) -> tuple[Updates, Tensor]:
        """Let the selector weigh the updates and learn from them.

        Args:
            selector: The selector.
            view: What it may know.
            deltas: The updates that are aggregated, each tensor ``[K, ...]``; empty if nobody looks at them.
            returned: What comes with them.

        Returns:
            The updates as it sees them, and their weights, float64 ``[K]``.

        Raises:
            UserError: If the weights break the contract, or the selector writes to what it is shown.
        """
        updates, name = self.describe(deltas, returned, view.needs), type(selector).__name__
        shown = [*view.params.values(), *(deltas.values() if selector.needs & ANY_UPDATE else ())]
        with unwritten(f"{name}.weigh", shown):
            weights = check_weights(selector.weigh(view, updates), len(updates.plan), name)
        if type(selector).observe is not Selector.observe:
            with remembered(selector, view.round), unwritten(f"{name}.observe", [*shown, weights]):
                selector.observe(view, updates, weights)
        return updates, weights


def head_of(deltas: Params, names: tuple[str, str | None]) -> Params:
    """Return the output layer's part of a stack of updates: ``weight [K, C, L]`` and ``bias [K, C]``."""
    weight, bias = names
    # A 1x1 convolution's weight has two more dimensions, of length one.
    head = {"weight": deltas[weight].flatten(2)}
    return head if bias is None else head | {"bias": deltas[bias]}


def divergence_error(who: str, model: nn.Module, start: Params, ends: Params) -> DivergedError:
    """Say that no client returned a finite model, and what to do about it.

    Args:
        who: The clients.
        model: The model of the run.
        start: What the clients were sent.
        ends: What they returned, each tensor ``[K, ...]``.
    """
    before = [name for name, value in start.items() if not bool(value.isfinite().all())]
    after = [name for name, value in ends.items() if not bool(value.isfinite().all())]
    # Frozen parameters and constant buffers may hold infinities, as causal masks do, and NaN in no use.
    kept = [
        name for name, value in model.state_dict().items() if name not in start and bool(value.isnan().any())
    ]
    advice = "lower the learning rate of local.optimizer or check the data"
    if before:
        advice = f"before it trains, the model has such numbers in {_listed(before)}"
    elif not {name for name, _ in model.named_parameters()}.intersection(after):
        advice = f"the module writes such numbers to its buffers {_listed(after)}"
    elif kept:
        advice += f", and see whether the model uses {_listed(kept)}, which is NaN before it trains"
    return DivergedError(f"{who} returned a non-finite model; {advice}.")


def _listed(names: Sequence[str]) -> str:
    return short(", ".join(names), 80)
