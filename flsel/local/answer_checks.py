"""The self-check of losses, gradients and evaluations: are they the same one by one, and laid out plainly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flsel.local import measure
from flsel.local.agreement import Disagreement, Question
from flsel.local.gaps import Gap, gap, less, moved
from flsel.local.program import Program
from flsel.local.visit import Visit
from flsel.params import Params, row

_LOG = logging.getLogger("flsel")
# Clients whose answer to a question is compared.
_ASKED = 8
_PLAIN = {
    "losses": "asks clients for losses one by one",
    "gradients": "asks clients for gradients one by one",
    "evaluation": "evaluates images with their channels first",
}


def check_losses(visits: Sequence[Visit], losses: Tensor) -> bool:
    """Compare some losses of a program's clients with those asked one by one.

    Args:
        visits: The clients.
        losses: Their losses, float64 ``[len(visits)]``.

    Returns:
        Whether clients have to be asked one by one; if that is new, it is warned of.
    """

    def ask(visit: Visit) -> Params:
        return {"loss": measure.losses([visit], plain=True)[0]}

    return _check("losses", visits, {"loss": losses}, ask)


def check_gradients(visits: Sequence[Visit], gradients: Params) -> bool:
    """Compare some gradients of a program's clients with those asked one by one.

    Args:
        visits: The clients.
        gradients: Their gradients, each ``[len(visits), ...]``.

    Returns:
        Whether clients have to be asked one by one; if that is new, it is warned of.
    """

    def ask(visit: Visit) -> Params:
        return row(measure.gradients([visit], plain=True), 0)

    return _check("gradients", visits, gradients, ask)


def check_evaluation(visit: Visit, loss: float, plain: Callable[[Params], float]) -> bool:
    """Compare the loss of a model on a held-out set with that of images with their channels first.

    Args:
        visit: The model; the client is of no matter.
        loss: The loss.
        plain: Measures a model with channels first.

    Returns:
        Whether evaluations are to leave images as they are; if that is new, it is warned of.
    """

    def ask(visit: Visit) -> Params:
        return {"loss": torch.tensor(plain(visit.start), dtype=torch.float64)}

    return _check("evaluation", [visit], {"loss": torch.tensor([loss], dtype=torch.float64)}, ask)


def precision(visit: Visit) -> torch.dtype:
    """Return the precision of a program's arithmetic."""
    dtype: torch.dtype | None = getattr(visit.program.task, "compute", None)
    return dtype or next(iter(visit.start.values())).dtype


def set_back(program: Program) -> None:
    """Put back what fast training left in a program's module."""
    program.kept.restore()
    for param in program.task.parameters():
        param.grad = None


def _check(
    question: Question, visits: Sequence[Visit], answers: Params, ask: Callable[[Visit], Params]
) -> bool:
    """Compare some answers of one program with the plain ones; tell whether those are to be taken."""
    program = visits[0].program
    agreement = program.agreement
    if agreement.due(question) and not measure.is_plain(question, program):
        shards = program.population.shards
        those = [n for n, visit in enumerate(visits) if question == "evaluation" or len(shards[visit.client])]
        several = 1 if agreement.check == "every" else max(1, len(those) // _ASKED)
        for place in those[::several]:
            found = _apart(visits[place], row(answers, place), ask)
            if found is not None:
                _tell(question, visits[place], found)
                break
        if those:
            agreement.compared(question)
    return agreement.disagreement(question) is not None


def _apart(visit: Visit, answer: Params, ask: Callable[[Visit], Params]) -> Gap | None:
    def turned() -> Params:
        return less(ask(visit._replace(start=moved(visit.start, dtype))), plain)

    dtype, plain = precision(visit), ask(visit)
    return gap(plain, less(answer, plain), None, dtype, turned)


def _tell(question: Question, visit: Visit, found: Gap) -> None:
    agreement = visit.program.agreement
    late = question in agreement.compared_
    agreement.disagreed(question, Disagreement(visit.round, found.size, found.tolerance, found.where, late))
    set_back(visit.program)
    _LOG.warning(
        "local.check: flsel %s of %s from round %d on, since the faster way computes another value, %.2g of "
        "it away in %s, where rounding explains %.0e.",
        _PLAIN[question], type(visit.program.model).__name__, visit.round, found.size, found.where,
        found.tolerance,
    )  # fmt: skip
