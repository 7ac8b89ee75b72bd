"""The answers of a round's participants, as selectors and objectives may see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.data.federate import labels_of
from flsel.data.population import Population
from flsel.local.batches import BatchSpec
from flsel.local.program import Program
from flsel.local.reach import Reach
from flsel.objectives import LocalUpdates
from flsel.params import Params, rows, whole
from flsel.rng import generator
from flsel.selector import Late, Need, Plan, Updates, View

ANY_UPDATE = Need.DELTAS | Need.HEAD
"""Needs of participants' updates."""


def returned(
    plan: Plan,
    answers: Mapping[str, Any],
    needs: Need,
    *,
    by: tuple[Population, BatchSpec, Reach],
    late: Mapping[int, float],
    steps_since: Tensor | None = None,
    asked: Tensor | None = None,
) -> Updates:
    """Describe the updates that a round aggregates.

    Args:
        plan: Their paths.
        answers: Named stacks behind the gated properties.
        needs: What the selector declared.
        by: The clients' data, the batches of a training, and how far a constant gradient comes in them.
        late: Seconds of the trainings that came too late, by client.
        steps_since: Staleness of each update, int64 ``[K]``; None where all start from one model.
        asked: First clients of all planned paths, int64 ``[A]``; None where all are aggregated.
    """
    population, spec, reach = by
    per_visit = [[len(population.shards[client]) for client in visits] for visits in plan.visits]
    steps = [[spec.num_steps(size) for size in sizes] for sizes in per_visit]
    return Updates(
        plan=plan,
        sizes=whole([sum(sizes) for sizes in per_visit]),
        steps=whole([sum(visits) for visits in steps]),
        needs=needs,
        answers=answers,
        travelled=partial(_travel, reach, steps),
        late=Late.of(late),
        steps_since=steps_since,
        asked=asked,
    )


def head_of(deltas: Params, names: tuple[str, str | None]) -> Params:
    """Return the output layer's part of a stack of updates: ``weight [K, C, L]`` and ``bias [K, C]``."""
    weight, bias = names
    # A 1x1 convolution's weight has two more dimensions, of length one.
    head = {"weight": deltas[weight].flatten(2)}
    return head if bias is None else head | {"bias": deltas[bias]}


def local_updates(
    view: View, updates: Updates, at: Tensor, deltas: Params, *, by: tuple[Population, Program, Reach]
) -> LocalUpdates:
    """Describe to the objective what the clients of a one-hop plan did, each client once.

    Args:
        view: What the selector saw.
        updates: The updates of the round.
        at: Their rows in ``deltas``, int64 ``[K]``.
        deltas: Stacks of updates.
        by: The clients' data and program, and how far a constant gradient comes in numbers of steps.
    """
    population, program, reach = by
    firsts: dict[int, int] = {}
    for row, client in enumerate(updates.clients.tolist()):
        firsts.setdefault(client, row)
    first = torch.tensor(list(firsts.values()))
    steps = updates.steps[first]
    return LocalUpdates(
        clients=updates.clients[first],
        starts=view.params,
        deltas=rows(deltas, at[first]),
        steps=steps,
        reach=partial(reach, view.round, steps),
        labels=partial(_trained_labels, program, population, view.round, [*firsts]),
        round=view.round,
        rng=generator(program.seed, "server objective", view.round),
    )


def _trained_labels(program: Program, population: Population, round: int, clients: Sequence[int]) -> Tensor:
    """Count the labels of the batches of some visits, int64 ``[K, C]``."""
    population.require_labels(f"objective {type(program.objective).__name__}")
    y = labels_of(population.examples)
    tables = (program.dealt(client, round) for client in clients)
    found = [np.bincount(y[table[table >= 0]], minlength=population.num_classes) for table in tables]
    return torch.from_numpy(np.stack(found))


def _travel(reach: Reach, steps: Sequence[Sequence[int]]) -> Tensor:
    """Add up how far a constant gradient comes in the visits of each path, float64 ``[K]``."""
    far = [float(reach.travel(torch.tensor(visits)).sum()) for visits in steps]
    return torch.tensor(far, dtype=torch.float64)
