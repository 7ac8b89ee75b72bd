"""How the visits of a call are divided: parts that do not depend on the worker, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch

from flsel.local.program import Program
from flsel.local.tasks import convolves
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, empty_ends, group_visits
from flsel.params import Params

Question = Literal["train", "losses", "gradients"]

# Visits that train together at most: where models are stacked, a few cost less than one by one.
_TOGETHER = 4
# A call has a multiple of so many parts, so that as many workers, or half of them, have equally much to do.
_SHARES = 4
# Examples that a part of a question holds at least; fewer are not worth a message.
EXAMPLES = 4096
# Parameters times examples of a call's steps, below which a stack of models is not worth a message: half of
# it takes as long as the whole, being calls more than arithmetic (benchmarks/results.md).
WORK = 50_000_000


class Part(NamedTuple):
    """Some visits of a call.

    Attributes:
        question: What is asked.
        rows: Their rows in the answers.
        starts: For each of them the row of its start in the stack of starts.
        asked: Their clients, rounds, turns and most steps.
        program: Index of their program in :func:`programs_of`.
    """

    question: Question
    rows: list[int]
    starts: list[int]
    asked: list[tuple[int, int, int | None, int | None]]
    program: int


def cut_visits(question: Question, visits: Sequence[Visit], together: int | None = None) -> list[Part]:
    """Cut a call into parts, in a way that does not depend on how many there are to take them.

    Args:
        question: What is asked.
        visits: The visits of the call.
        together: Most visits that train together; None chooses.

    Returns:
        Parts, those with most examples first, so that no long one is left for the end.
    """
    index = {id(program): i for i, program in enumerate(programs_of(visits))}
    where = {id(start): row for row, start in enumerate(distinct_starts(visits))}
    parts = []
    for rows in group_visits(visits, by="rate"):
        program = index[id(visits[rows[0]].program)]
        for some in _split(question, visits, rows, together):
            taken = [visits[row] for row in some]
            own = [where[id(visit.start)] for visit in taken]
            asked = [(v.client, v.round, v.turn, v.most) for v in taken]
            parts.append(Part(question, some, own, asked, program))
    return sorted(parts, key=lambda part: sum(examples(visits[row]) for row in part.rows), reverse=True)


def programs_of(visits: Sequence[Visit]) -> list[Program]:
    """Return the different programs of some visits, in the order of their first visit."""
    return list({id(visit.program): visit.program for visit in visits}.values())


def distinct_starts(visits: Sequence[Visit]) -> list[Params]:
    """Return the different starts of some visits, in the order of their first visit."""
    return list({id(visit.start): visit.start for visit in visits}.values())


def examples(visit: Visit) -> int:
    """Count the examples of a visit's client."""
    return len(visit.program.population.shards[visit.client])


def blank(question: Question, visits: Sequence[Visit]) -> Params:
    """Make the tensors that answers are written to, each ``[len(visits), ...]``."""
    if question == "losses":
        return {"loss": torch.empty(len(visits), dtype=torch.float64)}
    return empty_ends(visits, visits[0].program.trainable() if question == "gradients" else None)


def answer_part(trainer: LocalTrainer, program: Program, part: Part, starts: Params) -> Params:
    """Answer a part.

    Args:
        trainer: Who trains and measures.
        program: The part's program.
        part: What is asked.
        starts: The stack of starts.

    Returns:
        The answers, each ``[len(part.rows), ...]``.
    """
    # Copies begin where torch's own tensors do, on which the last bits of some sums depend.
    models = {row: {name: value[row].clone() for name, value in starts.items()} for row in set(part.starts)}
    visits = [
        Visit(models[start], client, round, program, turn, most)
        for start, (client, round, turn, most) in zip(part.starts, part.asked, strict=True)
    ]
    if part.question == "train":
        return trainer.train(visits)
    return trainer.gradients(visits) if part.question == "gradients" else {"loss": trainer.losses(visits)}


def worth(question: Question, visits: Sequence[Visit], stacks: bool) -> bool:
    """Tell whether a call is worth a message to more than one.

    Args:
        question: What is asked.
        visits: The visits of the call.
        stacks: Whether clients train as a stack of models.
    """
    if question != "train":
        return sum(map(examples, visits)) >= 2 * EXAMPLES
    program = visits[0].program
    if not stacks or convolves(program.task):
        return True
    numbers = sum(value.numel() for value in visits[0].start.values())
    steps = sum(visit.steps for visit in visits)
    return steps * program.spec.size * numbers >= WORK


def _split(
    question: Question, visits: Sequence[Visit], rows: list[int], together: int | None
) -> list[list[int]]:
    if question == "train":
        width = together or (1 if convolves(visits[rows[0]].program.task) else _TOGETHER)
        count = -(-len(rows) // width)
        if together is None and width > 1:
            count = min(len(rows), -(-count // _SHARES) * _SHARES)
        edges = [len(rows) * i // count for i in range(count + 1)]
        return [rows[first:last] for first, last in pairwise(edges)]
    parts: list[list[int]] = [[]]
    held = 0
    for row in rows:
        if held >= EXAMPLES:
            parts.append([])
            held = 0
        parts[-1].append(row)
        held += examples(visits[row])
    return parts
