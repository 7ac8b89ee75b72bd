"""The self-check: some of the visits that are trained fast are trained by sequential, too, and compared."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import final

import numpy as np
from torch import Tensor

from flsel.errors import UserError
from flsel.local import measure
from flsel.local.agreement import RUN_AGAIN, Disagreement
from flsel.local.answer_checks import check_gradients, check_losses, precision, set_back
from flsel.local.batches import BatchSpec, dealt
from flsel.local.gaps import Gap, gap, less, moved
from flsel.local.program import Program
from flsel.local.sequential import SequentialTrainer
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.params import Params, row

_LOG = logging.getLogger("flsel")
# Local steps up to which further visits of a program's first call are compared (benchmarks/self-check.md).
_STEPS = 60


@final
class CheckedTrainer(LocalTrainer):
    """Train clients by a fast trainer, and compare some of them with sequential training.

    A program whose end models are further apart than rounding explains is trained by sequential from the
    round on in which that was found, which is warned of once. What was compared belongs to the program
    (:class:`flsel.local.agreement.Agreement`).

    ``local.check: auto`` compares, of each program, in its first call a visit of every shape, and others
    while they take few local steps; later one visit of each new shape, one in rounds 1, 4, 16, ..., and one
    after the program was changed. The shape of a visit is the lengths of its batches and the number of the
    program's visits in the call, each to the next power of two.

    Args:
        fast: The trainer.
        backend: Its name, for messages.
    """

    def __init__(self, fast: LocalTrainer, backend: str) -> None:
        self._fast, self._backend = fast, backend
        self._reference = SequentialTrainer()

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`)."""
        chosen = [place for group in _by_program(visits) for place in self._chosen(visits, group)]
        # First, so that what fast training may leave in a user's module is not in what it is compared with.
        wanted = self._reference.train([visits[place] for place in chosen]) if chosen else {}
        fast = [place for place, visit in enumerate(visits) if not _disagreed(visit.program)]
        found = self._trained([visits[place] for place in fast]) if fast else {}
        at = {place: number for number, place in enumerate(fast)}
        for number, place in enumerate(chosen):
            if not _disagreed(visits[place].program):
                self._compare(visits[place], row(wanted, number), row(found, at[place]))
        for group in _by_program([visits[place] for place in chosen]):
            self._note([visits[chosen[number]] for number in group], visits)
        plain = [place for place, visit in enumerate(visits) if _disagreed(visit.program)]
        return self._merged(visits, fast, found, plain) if plain else found

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' losses (see :class:`flsel.local.trainer.LocalTrainer`)."""
        found = self._fast.losses(visits)
        for group in _by_program(visits):
            asked = [visits[place] for place in group]
            if check_losses(asked, found[group]):
                found[group] = measure.losses(asked, plain=True)
        return found

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the clients' gradients (see :class:`flsel.local.trainer.LocalTrainer`)."""
        found = self._fast.gradients(visits)
        for group in _by_program(visits):
            asked = [visits[place] for place in group]
            if check_gradients(asked, {name: value[group] for name, value in found.items()}):
                for name, value in measure.gradients(asked, plain=True).items():
                    found[name][group] = value
        return found

    def forget(self, program: Program) -> None:
        """Drop what was made of a program (see :class:`flsel.local.trainer.LocalTrainer`)."""
        for trainer in (self._fast, self._reference):
            trainer.forget(program)
        program.agreement.changed()

    def one_by_one(self, program: Program) -> bool:
        """Tell whether sequential trains a program (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return _disagreed(program) or self._fast.one_by_one(program)

    def kind(self, program: Program, clients: int) -> Hashable | None:
        """Describe which programs' clients share stacks (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return None if _disagreed(program) else self._fast.kind(program, clients)

    def _chosen(self, visits: Sequence[Visit], group: list[int]) -> list[int]:
        """Choose the visits of one program that are to be compared."""
        program = visits[group[0]].program
        agreement, round = program.agreement, visits[group[0]].round
        if agreement.check == "off" or _disagreed(program) or self._fast.one_by_one(program):
            return []
        if agreement.check == "every":
            return group
        chosen, seen = [], set(agreement.shapes_)
        for place in group:
            if new := _shapes(visits[place], len(group)) - seen:
                chosen.append(place)
                seen |= new
        if "train" not in agreement.compared_:
            steps = sum(_steps(visits[place]) for place in chosen)
            for place in group:
                if place not in chosen and steps + _steps(visits[place]) <= _STEPS:
                    chosen.append(place)
                    steps += _steps(visits[place])
        elif not chosen and (agreement.changed_ or (_regular(round) and round > agreement.last_)):
            chosen = [group[round.bit_length() % len(group)]]
        return chosen

    def _trained(self, visits: list[Visit]) -> Params:
        """Train visits by the fast trainer; what it cannot train at all is left to sequential."""
        try:
            return self._fast.train(visits)
        except UserError:
            raise
        except Exception as error:
            programs = {id(visit.program): visit.program for visit in visits}
            program = visits[0].program
            if len(programs) > 1 or program.agreement.check == "off":
                raise
            said = (str(error).splitlines() or [""])[0][:100]
            set_back(program)
            # What is wrong with the model itself is raised here.
            ends = self._reference.train(visits)
            self._disagree(visits[0], Gap(float("inf"), 0.0, f"{type(error).__name__}: {said}"))
            return ends

    def _compare(self, visit: Visit, plain: Params, fast: Params) -> None:
        def turned() -> Params:
            start = moved(visit.start, dtype)
            end = row(self._reference.train([visit._replace(start=start)]), 0)
            return less(less(end, start), update)

        dtype, update = precision(visit), less(plain, visit.start)
        found = gap(update, less(fast, plain), visit.start, dtype, turned)
        if found is not None:
            self._disagree(visit, found)

    def _disagree(self, visit: Visit, found: Gap) -> None:
        program, round = visit.program, visit.round
        late = "train" in program.agreement.compared_ and round > 0
        noted = Disagreement(round, found.size, found.tolerance, found.where, late)
        program.agreement.disagreed("train", noted)
        set_back(program)
        model, name = type(program.model).__name__, self._backend
        what = (
            f"{name} trains client {visit.client} to another model, {found.size:.2g} of the update away in "
            f"{found.where}, where rounding explains {found.tolerance:.0e}"
            if found.tolerance
            else f"{name} raised {found.where}"
        )
        after = f"R{noted.doubt[1:]}, or" if late else f"{RUN_AGAIN.capitalize()} to train so always, or"
        _LOG.warning(
            "local.check: sequential trains %s from round %d on, since %s. %s change the model: "
            "docs/models-and-data.md says what causes it.",
            model, round, what, after,
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

    def _merged(self, visits: Sequence[Visit], fast: list[int], found: Params, plain: list[int]) -> Params:
        """Let sequential train what fast training trains to other models."""
        ends = {n: value.new_empty((len(visits), *value.shape)) for n, value in visits[0].start.items()}
        trained = self._reference.train([visits[place] for place in plain])
        for places, part in ((fast, found), (plain, trained)):
            for name, value in part.items():
                ends[name][places] = value
        return ends


def _shard(visit: Visit) -> Tensor:
    return visit.program.population.shards[visit.client]


def _disagreed(program: Program) -> bool:
    return program.agreement.disagreement("train") is not None


def _by_program(visits: Sequence[Visit]) -> list[list[int]]:
    """Group visits by program: positions, ascending."""
    groups: dict[int, list[int]] = {}
    for place, visit in enumerate(visits):
        groups.setdefault(id(visit.program), []).append(place)
    return list(groups.values())


def _regular(round: int) -> bool:
    """Tell whether a round is a power of four."""
    return round > 0 and round & (round - 1) == 0 and round.bit_length() % 2 == 1


def _steps(visit: Visit) -> int:
    return visit.program.spec.num_steps(len(_shard(visit)))


def _shapes(visit: Visit, width: int) -> frozenset[int]:
    """Describe a visit by the lengths of its batches and the width of its stack, to powers of two."""
    lengths = _lengths(visit.program.spec, len(_shard(visit)))
    return lengths | {-width.bit_length()} if lengths else lengths


@lru_cache(maxsize=4096)
def _lengths(spec: BatchSpec, examples: int) -> frozenset[int]:
    table = dealt(spec, np.arange(examples), seed=0, round=0, client=0)
    return frozenset(int(length).bit_length() for length in (table >= 0).sum(axis=1))
