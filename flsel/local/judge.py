"""Judge training by behaviour: fast training against sequential, and sequential against itself.

Some of the visits that are trained fast are trained by sequential, too, and compared. One visit is trained
twice with others in between: if it ends elsewhere, the model keeps state outside of the module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor

from flsel.errors import UserError
from flsel.local import measure
from flsel.local.agreement import (
    RUN_AGAIN,
    Gap,
    Question,
    answer_gap,
    is_regular,
    perturb,
    subtract,
)
from flsel.local.program import Program
from flsel.local.schedule import BatchSpec, batch_table
from flsel.local.sequential import SequentialTrainer
from flsel.local.snapshot import equal
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, empty_ends, group_visits
from flsel.params import Params, row

_LOG = logging.getLogger("flsel")
# Local steps up to which further visits of a program's first call are compared (benchmarks/self-check.md).
_STEPS = 60
# Clients whose answer to a question is compared.
_ASKED = 8
_PLAIN = {
    "losses": "asks clients for losses one by one",
    "gradients": "asks clients for gradients one by one",
    "evaluation": "evaluates images with their channels first",
}
Ask = Callable[[Visit], Params]
"""Answers a question about a visit the plain way."""


@final
class CheckedTrainer(LocalTrainer):
    """Train clients by a trainer, and judge what it does.

    A program whose end models are further from sequential's than rounding explains is trained by sequential
    from the round on in which that was found, which is warned of once. What was compared belongs to the
    program (:class:`flsel.local.agreement.Agreement`).

    ``local.check: auto`` compares, of each program, in its first call a visit of every shape, and others
    while they take few local steps; later one visit of each new shape, one in rounds 1, 4, 16, ..., and one
    after the program was changed. The shape of a visit is the lengths of its batches and the number of the
    program's visits in the call, each to the next power of two. In the first call a visit is trained twice,
    and where clients are trained one by one also in rounds 1, 4, 16, ...

    Args:
        fast: The trainer.
        backend: Its name, for messages.
        reference: What it is compared with, and falls back to; None is sequential.
    """

    def __init__(self, fast: LocalTrainer, backend: str, reference: LocalTrainer | None = None) -> None:
        self._fast, self._backend = fast, backend
        self._reference = reference or SequentialTrainer()

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            UserError: If a model ends elsewhere when a client is trained again.
        """
        groups = group_visits(visits, by="program")
        chosen = [place for group in groups for place in self._choose(visits, group)]
        # First, so that what fast training may leave in a user's module is not in what it is compared with.
        plain = self._train_plain(visits, chosen) if chosen else {}
        ahead = self._train_ahead(visits, groups)
        fast = [place for place, visit in enumerate(visits) if not _disagreed(visit.program)]
        ends = self._train_fast([visits[place] for place in fast]) if fast else {}
        at = {place: number for number, place in enumerate(fast)}
        for place, end in ahead.items():
            self._require_same(visits[place], end, row(ends, at[place]))
        for place, end in plain.items():
            if not _disagreed(visits[place].program):
                self._compare(visits[place], end, row(ends, at[place]))
        for group in group_visits([visits[place] for place in chosen], by="program"):
            self._note([visits[chosen[number]] for number in group], visits)
        left = [place for place, visit in enumerate(visits) if _disagreed(visit.program)]
        return self._merge(visits, fast, ends, left) if left else ends

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' losses (see :class:`flsel.local.trainer.LocalTrainer`)."""
        answers = self._fast.losses(visits)
        for group in group_visits(visits, by="program"):
            asked = [visits[place] for place in group]
            if check_losses(asked, answers[group]):
                answers[group] = measure.losses(asked, plain=True)
        return answers

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the clients' gradients (see :class:`flsel.local.trainer.LocalTrainer`)."""

        def ask(visit: Visit) -> Params:
            return row(measure.gradients([visit], plain=True), 0)

        answers = self._fast.gradients(visits)
        for group in group_visits(visits, by="program"):
            asked = [visits[place] for place in group]
            if _check("gradients", asked, {name: value[group] for name, value in answers.items()}, ask):
                for name, value in measure.gradients(asked, plain=True).items():
                    answers[name][group] = value
        return answers

    def forget(self, program: Program) -> None:
        """Drop what was made of a program (see :class:`flsel.local.trainer.LocalTrainer`)."""
        for trainer in (self._fast, self._reference):
            trainer.forget(program)
        program.agreement.changed()

    def one_by_one(self, program: Program) -> bool:
        """Tell whether sequential trains a program (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return _disagreed(program) or self._fast.one_by_one(program)

    def pool_key(self, program: Program, clients: int) -> Hashable | None:
        """Describe which programs' clients share stacks (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return None if _disagreed(program) else self._fast.pool_key(program, clients)

    def _choose(self, visits: Sequence[Visit], group: list[int]) -> list[int]:
        """Choose the visits of one program that are to be compared."""
        program = visits[group[0]].program
        agreement, round = program.agreement, visits[group[0]].round
        if agreement.check == "off" or self.one_by_one(program):
            return []
        if agreement.check == "every":
            return group
        chosen, seen = [], set(agreement.shapes_)
        for place in group:
            if new := _shapes(visits[place], len(group)) - seen:
                chosen.append(place)
                seen |= new
        if "train" not in agreement.compared_:
            steps = sum(visits[place].steps for place in chosen)
            for place in group:
                if place not in chosen and steps + visits[place].steps <= _STEPS:
                    chosen.append(place)
                    steps += visits[place].steps
        elif not chosen and (agreement.changed_ or (is_regular(round) and round > agreement.last_)):
            chosen = [group[round.bit_length() % len(group)]]
        return chosen

    def _train_plain(self, visits: Sequence[Visit], chosen: list[int]) -> dict[int, Params]:
        """Train visits that are to be compared by the reference, one of a program's first call twice."""
        cheap = sorted(chosen, key=lambda place: visits[place].steps)
        again = []
        for group in group_visits([visits[place] for place in cheap], by="program"):
            places = [cheap[number] for number in group if visits[cheap[number]].steps]
            if places and "train" not in visits[places[0]].program.agreement.compared_:
                again.append(places[0])
        trained = self._reference.train([visits[place] for place in (*cheap, *again)])
        ends = {place: row(trained, number) for number, place in enumerate(cheap)}
        for number, place in enumerate(again, len(cheap)):
            self._require_same(visits[place], ends[place], row(trained, number))
        return ends

    def _train_ahead(self, visits: Sequence[Visit], groups: list[list[int]]) -> dict[int, Params]:
        """Train one visit of each program without stacks, before its clients train, to compare it later."""
        ends = {}
        for group in groups:
            program, round = visits[group[0]].program, visits[group[0]].round
            # The later one comes in the call, the more are between the two.
            places = [place for place in group[::-1] if visits[place].steps]
            if places and self._fast.one_by_one(program) and program.agreement.repeat_due(round):
                place = min(places[: max(1, len(places) - 1)], key=lambda place: visits[place].steps)
                ends[place] = row(self._reference.train([visits[place]]), 0)
        return ends

    def _train_fast(self, visits: list[Visit]) -> Params:
        """Train visits by the fast trainer; what it cannot train at all is left to the reference."""
        try:
            return self._fast.train(visits)
        except UserError:
            raise
        except Exception as error:
            programs = {id(visit.program): visit.program for visit in visits}
            program = visits[0].program
            if len(programs) > 1 or program.agreement.check == "off" or self._fast.one_by_one(program):
                raise
            said = (str(error).splitlines() or [""])[0][:100]
            program.set_back()
            # What is wrong with the model itself is raised here.
            ends = self._reference.train(visits)
            self._disagree(visits[0], Gap(float("inf"), 0.0, f"{type(error).__name__}: {said}"))
            return ends

    def _update(self, visit: Visit) -> Params:
        (end,) = _models(visit, row(self._reference.train([visit]), 0))
        return subtract(end, visit.start)

    def _compare(self, visit: Visit, plain: Params, fast: Params) -> None:
        plain, fast = _models(visit, plain, fast)
        update = subtract(plain, visit.start)
        gap = _gap(visit, update, subtract(fast, plain), self._update, visit.start)
        if gap is not None:
            self._require_same(visit, plain, row(self._reference.train([visit]), 0))
            self._disagree(visit, gap)

    def _require_same(self, visit: Visit, first: Params, second: Params) -> None:
        """Require that training a visit again ends in the same bits, or where rounding may do so, close by.

        Raises:
            UserError: If it does not.
        """
        if all(equal(first[name], second[name]) for name in visit.start):
            return
        exact = visit.program.task.device.type == "cpu" and torch.get_num_threads() == 1
        first, second = _models(visit, first, second)
        update, difference = subtract(first, visit.start), subtract(second, first)
        # Sums of several threads come in any order; so do those of a GPU.
        if not exact and _gap(visit, update, difference, self._update, visit.start) is None:
            return
        name = type(visit.program.model).__name__
        raise UserError(
            f"model {name} ends at other parameters when client {visit.client} trains a second time in round "
            f"{visit.round}, so it uses state outside the module: a global name, an attribute of a class, a "
            "variable of a closure, a clock. Keep that state in attributes or buffers of the module, which "
            "are put back before each client trains."
        )

    def _disagree(self, visit: Visit, gap: Gap) -> None:
        program, name = visit.program, self._backend
        disagreement = program.agreement.disagreed("train", visit.round, gap)
        program.set_back()
        what = (
            f"{name} trains client {visit.client} to another model, {gap.size:.2g} of the update away in "
            f"{gap.where}, where rounding explains {gap.tolerance:.0e}"
            if gap.tolerance
            else f"{name} raised {gap.where}"
        )
        doubt = disagreement.doubt
        after = f"R{doubt[1:]}, or" if doubt else f"{RUN_AGAIN.capitalize()} to train so always, or"
        _LOG.warning(
            "local.check: sequential trains %s from round %d on, since %s. %s change the model: "
            "docs/models-and-data.md says what causes it.",
            type(program.model).__name__, visit.round, what, after,
        )  # fmt: skip

    def _note(self, compared: list[Visit], visits: Sequence[Visit]) -> None:
        """Note which visits of a program were compared."""
        program = compared[0].program
        agreement, width = program.agreement, sum(visit.program is program for visit in visits)
        agreement.compared("train")
        shapes = set(agreement.shapes_).union(*(_shapes(visit, width) for visit in compared))
        agreement.shapes_ = sorted(shapes)
        agreement.last_ = max(agreement.last_, compared[0].round)
        agreement.changed_ = False

    def _merge(self, visits: Sequence[Visit], fast: list[int], fast_ends: Params, left: list[int]) -> Params:
        """Let the reference train what fast training trains to other models."""
        ends = empty_ends(visits)
        trained = self._reference.train([visits[place] for place in left])
        for places, part in ((fast, fast_ends), (left, trained)):
            for name, value in part.items():
                ends[name][places] = value
        return ends


def _models(visit: Visit, *ends: Params) -> list[Params]:
    """Return ends of a visit without what its client logged."""
    return [{name: end[name] for name in visit.start} for end in ends]


def check_losses(visits: Sequence[Visit], losses: Tensor) -> bool:
    """Compare some losses of a program's clients with those asked one by one.

    Args:
        visits: The clients.
        losses: Their losses, float64 ``[len(visits)]``.

    Returns:
        Whether clients have to be asked one by one; if that is new, it is warned of.
    """
    return _check(
        "losses", visits, {"loss": losses}, lambda visit: {"loss": measure.losses([visit], plain=True)[0]}
    )


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


def _check(question: Question, visits: Sequence[Visit], answers: Params, ask: Ask) -> bool:
    """Compare some answers of one program with the plain ones; tell whether those are to be taken."""
    program = visits[0].program
    agreement = program.agreement
    if agreement.due(question) and not measure.is_plain(question, program):
        shards = program.population.shards
        those = [n for n, visit in enumerate(visits) if question == "evaluation" or len(shards[visit.client])]
        several = 1 if agreement.check == "every" else max(1, len(those) // _ASKED)
        for place in those[::several]:
            plain = ask(visits[place])
            gap = _gap(visits[place], plain, subtract(row(answers, place), plain), ask)
            if gap is not None:
                _warn(question, visits[place], gap)
                break
        if those:
            agreement.compared(question)
    return agreement.disagreement(question) is not None


def _gap(
    visit: Visit, plain: Params, difference: Params, ask: Ask, units: Params | None = None
) -> Gap | None:
    """Judge how far an answer about a visit is from the plain one, see :func:`answer_gap`."""
    dtype = getattr(visit.program.task, "compute", None) or next(iter(visit.start.values())).dtype

    def sensitivity() -> Params:
        return subtract(ask(visit._replace(start=perturb(visit.start, dtype))), plain)

    return answer_gap(plain, difference, units, dtype, sensitivity)


def _warn(question: Question, visit: Visit, gap: Gap) -> None:
    visit.program.agreement.disagreed(question, visit.round, gap)
    visit.program.set_back()
    _LOG.warning(
        "local.check: flsel %s of %s from round %d on, since the faster way computes another value, %.2g of "
        "it away in %s, where rounding explains %.0e.",
        _PLAIN[question], type(visit.program.model).__name__, visit.round, gap.size, gap.where,
        gap.tolerance,
    )  # fmt: skip


def _disagreed(program: Program) -> bool:
    return program.agreement.disagreement("train") is not None


def _examples(visit: Visit) -> int:
    return len(visit.program.population.shards[visit.client])


def _shapes(visit: Visit, width: int) -> frozenset[int]:
    """Describe a visit by the lengths of its batches and the width of its stack, to powers of two."""
    lengths = _lengths(visit.program.spec, _examples(visit))
    return lengths | {-width.bit_length()} if lengths else lengths


@lru_cache(maxsize=4096)
def _lengths(spec: BatchSpec, examples: int) -> frozenset[int]:
    table = batch_table(spec, np.arange(examples), seed=0, round=0, client=0)
    return frozenset(int(length).bit_length() for length in (table >= 0).sum(axis=1))
