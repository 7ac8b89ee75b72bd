"""Requests to clients, to train or to answer, and the tensors that trained models are written to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flsel.errors import say_once
from flsel.local.program import Program
from flsel.metrics import CLIENT_LOG
from flsel.params import Params, height, row


class Visit(NamedTuple):
    """One client's request: to train from a model, or to evaluate it.

    Attributes:
        start: The model that the client receives, not to be written to; visits share the dict where they
            share the model.
        client: Client id.
        round: Communication round of the start; the learning rate depends on it.
        program: The client's side of the federation that the client belongs to.
        turn: Earlier trainings of the client in an asynchronous run, where several may start from one model;
            None stands for ``round``.
        most: Most local steps that are taken; None takes all.
    """

    start: Params
    client: int
    round: int
    program: Program
    turn: int | None = None
    most: int | None = None

    @property
    def draw(self) -> int:
        """The number that the batches and the layers' randomness depend on, besides seed and client."""
        return self.round if self.turn is None else self.turn

    @property
    def steps(self) -> int:
        """Local steps that are taken."""
        return self.program.steps(self.client, self.draw, self.most)

    def batch_table(self) -> np.ndarray:
        """Return the batches of the steps (:meth:`Program.batch_table`)."""
        return self.program.batch_table(self.client, self.draw)[: self.steps]

    def batches(self) -> Tensor:
        """Return the batches of the steps, int64 ``[steps, size]``, -1 padded."""
        return torch.from_numpy(self.batch_table())


def empty_ends(visits: Sequence[Visit], like: Params | None = None) -> Params:
    """Make the tensors that end models, and what clients log, are written to, each ``[len(visits), ...]``.

    Args:
        visits: The visits of a call.
        like: Models like the answers, where these are no end models.
    """
    logs = {name for visit in visits for name in visit.program.logs or ()} if like is None else ()
    ends = {
        name: value.new_empty((len(visits), *value.shape))
        for name, value in (like or visits[0].start).items()
    }
    nothing = {
        CLIENT_LOG + name: torch.full((len(visits),), torch.nan, dtype=torch.float64) for name in sorted(logs)
    }
    return ends | nothing


@torch.no_grad()
def put_end(ends: Params, row: int, live: Params, logs: Mapping[str, float]) -> None:
    """Write a live model (:meth:`Program.state`), and what its client logged, into a row of ends."""
    for name, end in ends.items():
        if not name.startswith(CLIENT_LOG):
            end[row] = live[name]
    put_logs(ends, row, logs)


def put_logs(ends: Params, row: int, logs: Mapping[str, float]) -> None:
    """Write what a client logged into a row of ends."""
    for name, value in logs.items():
        if CLIENT_LOG + name in ends:
            ends[CLIENT_LOG + name][row] = value
        else:
            say_once(
                f"{name} has no column in metrics.csv, since the first step of training does not log it: log "
                "it in every step"
            )


def from_one(
    start: Params,
    clients: Sequence[int],
    round: int,
    program: Program,
    most: Mapping[int, int] | None = None,
) -> list[Visit]:
    """Let clients start from one model; ``most`` are the most local steps of some of them."""
    limits = most or {}
    return [
        Visit(program.of_client(start, int(c)), int(c), round, program, most=limits.get(int(c)))
        for c in clients
    ]


def from_rows(starts: Params, clients: Sequence[int], round: int, program: Program) -> list[Visit]:
    """Let each client start from its own row of a stack."""
    assert len(clients) == height(starts)
    return [Visit(row(starts, k), int(client), round, program) for k, client in enumerate(clients)]


_KEYS: dict[str, Callable[[Visit], Hashable]] = {
    "program": lambda visit: id(visit.program),
    "start": lambda visit: (id(visit.program), id(visit.start)),
    "rate": lambda visit: (id(visit.program), visit.program.lr_factors[visit.round]),
}


def group_visits(visits: Sequence[Visit], by: Literal["program", "start", "rate"]) -> list[list[int]]:
    """Group visits by program, and as is asked by start or by learning rate.

    Args:
        visits: The visits of a call.
        by: What a group shares besides the program: nothing, the start, as questions about one model do, or
            the factor on the learning rate, so that it may be one stack.

    Returns:
        Positions in ``visits``, ascending; groups come in the order of their first visit.
    """
    groups: dict[Hashable, list[int]] = {}
    for position, visit in enumerate(visits):
        groups.setdefault(_KEYS[by](visit), []).append(position)
    return list(groups.values())
