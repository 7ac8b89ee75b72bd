"""What participants report besides their update: their losses on the model that they received."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from flsel.local.program import Program
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, from_one
from flsel.metrics import NOTHING, Cost
from flsel.selector import IDLE, Need, Plan, View

_COSTS = {
    Need.OWN_LOSS: Cost(passes=1, scalars_up=1),
    # These losses come up in training, which takes no pass of its own.
    Need.SQUARED_LOSS: Cost(scalars_up=1),
}


@functools.cache
def told(needs: Need) -> Cost:
    """Return what a client's first training of a path costs besides, by what it has to tell."""
    costs = [cost for need, cost in _COSTS.items() if need in needs]
    return sum(costs[1:], start=costs[0]) if costs else NOTHING


def own_losses(trainer: LocalTrainer, program: Program, plan: Plan, view: View) -> Tensor | None:
    """Return the global model's loss on the data of each path's first client; None if not needed."""
    if Need.OWN_LOSS not in view.needs:
        return None
    clients = [visits[0] for visits in plan.visits]
    distinct = sorted(set(clients))
    losses = trainer.losses(from_one(view.params, distinct, view.round, program))
    return losses[torch.tensor([distinct.index(c) for c in clients])]


def squared(trainer: LocalTrainer, program: Program, plan: Plan, view: View) -> Tensor:
    """Return the global model's mean squared loss on what each path's first client trains on."""
    firsts = [next((c, hop) for hop, c in enumerate(path) if c != IDLE) for path in plan.paths]
    distinct = sorted(set(firsts))
    visits = [Visit(view.params, client, view.round + hop, program) for client, hop in distinct]
    return trainer.squared_losses(visits)[torch.tensor([distinct.index(first) for first in firsts])]
