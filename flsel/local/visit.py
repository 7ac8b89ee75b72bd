"""One client's training or evaluation request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flsel.local.program import Program
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
    """

    start: Params
    client: int
    round: int
    program: Program
    turn: int | None = None

    @property
    def draw(self) -> int:
        """The number that the batches and the layers' randomness depend on, besides seed and client."""
        return self.round if self.turn is None else self.turn


def from_one(start: Params, clients: Sequence[int], round: int, program: Program) -> list[Visit]:
    """Let clients start from one model."""
    return [Visit(start, int(client), round, program) for client in clients]


def from_rows(starts: Params, clients: Sequence[int], round: int, program: Program) -> list[Visit]:
    """Let each client start from its own row of a stack."""
    assert len(clients) == height(starts)
    return [Visit(row(starts, k), int(client), round, program) for k, client in enumerate(clients)]


def alike(visits: Sequence[Visit], *, start: bool) -> Iterator[list[int]]:
    """Group visits by program and, as is asked, by start or by learning rate.

    Args:
        visits: The visits of a call.
        start: Whether a group shares the start, as questions about one model do; else it shares the factor
            on the learning rate, and so may be one stack.

    Yields:
        Positions in ``visits``, ascending; groups come in the order of their first visit.
    """
    groups: dict[tuple[int, float], list[int]] = {}
    for position, visit in enumerate(visits):
        key = (id(visit.program), id(visit.start) if start else visit.program.lr_factors[visit.round])
        groups.setdefault(key, []).append(position)
    yield from groups.values()
