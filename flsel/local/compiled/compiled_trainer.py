"""Local training by a step that was traced once per shape."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import final
from weakref import WeakSet

from flsel.errors import UserError, say_once
from flsel.local.compiled.engine import Engine
from flsel.local.compiled.pool import Pool, forget, is_large, pooling_is_faster, signature, together
from flsel.local.compiled.refusals import Convolves, reason_of, require_compiled
from flsel.local.program import Program
from flsel.local.sequential import SequentialTrainer
from flsel.local.tasks import note_convolutions
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, empty_ends, group_visits
from flsel.params import Params

# Federations, or pools of them, that stay compiled.
_ENGINES = 8


@final
class CompiledTrainer(LocalTrainer):
    """Train clients by a compiled step: many models as one stack, or models with convolutions one at a time.

    A batch that is shorter than others is padded with examples of weight zero. A client that has finished
    stays in the stack after its model was copied out. Once half of the clients have finished, the others
    continue in a smaller stack. Clients of several federations share a stack where their steps compute the
    same and a wider stack is faster (:mod:`flsel.local.compiled.pool`). A step that cannot be traced is left
    to sequential, which is logged once.

    Args:
        chunk: Most clients in one stack, which bounds memory; None means all.
        tabled: Steps read what changes from tables on the device, so that a GPU can replay them from a
            recording; None means on every device but a CPU, where that is slower.
    """

    def __init__(self, chunk: int | None = None, *, tabled: bool | None = None) -> None:
        self._chunk, self._tabled = chunk, tabled
        self._engines: OrderedDict[tuple[Program, ...], Engine] = OrderedDict()
        self._refused: WeakSet[Program] = WeakSet()
        self._sized: WeakSet[Program] = WeakSet()
        self._sequential = SequentialTrainer()

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            UserError: If a program cannot be compiled; the message says why.
        """
        ends = empty_ends(visits)
        for group in _stacks(visits):
            left = self._compiled(group, visits, ends)
            if not left:
                continue
            trained = self._sequential.train([visits[row] for row in left])
            if len(left) == len(visits):
                return trained
            for name, value in trained.items():
                ends[name][left] = value
        return ends

    def pool_key(self, program: Program, clients: int) -> Hashable | None:
        """Describe which programs' clients share stacks (see :class:`flsel.local.trainer.LocalTrainer`)."""
        bounded = self._chunk is not None or program in self._refused
        return None if bounded or not pooling_is_faster(program, clients) else signature(program)

    def one_by_one(self, program: Program) -> bool:
        """Tell whether it leaves a program to sequential."""
        return program in self._refused

    def forget(self, program: Program) -> None:
        """Drop what was made of a program (see :class:`flsel.local.trainer.LocalTrainer`)."""
        self._drop((program,))
        self._refused.discard(program)
        self._sequential.forget(program)
        forget(program)

    def _compiled(self, rows: list[int], visits: Sequence[Visit], ends: Params) -> list[int]:
        """Train visits of one stack by compiled steps, their models in ``ends``; return the rows left."""
        programs = tuple({id(visits[row].program): visits[row].program for row in rows}.values())
        # On a CPU the states of more than two large models do not stay in the cache (benchmarks/backends.md).
        width = self._chunk or (2 if is_large(programs[0]) else len(rows))
        wanted, done = [visits[row] for row in rows], 0
        while done < len(rows) and programs[0] not in self._refused:
            part = slice(done, done + width)
            try:
                engine = self._engine(programs)
                if not engine.takes(wanted):
                    self._say_sizes(programs)
                    break
                engine.train(rows[part], wanted[part], ends)
                done += width
            except UserError:
                raise
            except Convolves:  # by functions, which no module showed: begin again, one model at a time
                self._drop(programs)
                for program in programs:
                    note_convolutions(program.task)
            except Exception as error:  # Anything that a user's step may raise when it is traced.
                self._give_up(programs, reason_of(error))
        return rows[done:]

    def _engine(self, programs: tuple[Program, ...]) -> Engine:
        """Return the compiled steps of programs, or of a pool that they belong to."""
        known = next((key for key in self._engines if set(programs) <= set(key)), None)
        if known is None:
            for program in programs:
                require_compiled(program)
            known, device = programs, programs[0].task.device
            tabled = device.type != "cpu" if self._tabled is None else self._tabled
            self._engines[known] = Engine(Pool.of(programs), tabled)
        self._engines.move_to_end(known)
        while len(self._engines) > _ENGINES:
            self._engines.popitem(last=False)
        return self._engines[known]

    def _drop(self, programs: Sequence[Program]) -> None:
        for key in [key for key in self._engines if set(programs) & set(key)]:
            del self._engines[key]

    def _say_sizes(self, programs: tuple[Program, ...]) -> None:
        """Leave visits whose batches have several sizes to sequential; it is logged once for each program."""
        if not self._sized.issuperset(programs):
            self._sized.update(programs)
            say_once(
                "local.backend: rounds whose batches have several sizes are not compiled, since the loss may "
                "not be a mean over examples; set local.last_batch to wrap, which makes all batches alike",
                logging.INFO,
            )

    def _give_up(self, programs: tuple[Program, ...], reason: str) -> None:
        say_once(f"local.backend: the step is not compiled, since {reason}; sequential trains instead")
        self._drop(programs)
        for program in programs:
            program.set_back()
        self._refused.update(programs)


def _stacks(visits: Sequence[Visit]) -> list[list[int]]:
    """Group visits that train in one stack: those of a program and learning rate, and of others like them."""
    groups = group_visits(visits, by="rate")
    if len(groups) == 1:
        return groups
    kinds: dict[Hashable, list[list[int]]] = {}
    for group in groups:
        first = visits[group[0]]
        kind = (signature(first.program), first.program.lr_factors[first.round])
        kinds.setdefault(kind, []).append(group)
    stacks: list[list[int]] = []
    for alikes in kinds.values():
        programs = list({id(p): p for p in (visits[group[0]].program for group in alikes)}.values())
        if len(alikes) > 1 and together(programs, max(map(len, alikes))):
            stacks.append(sorted(row for group in alikes for row in group))
        else:
            stacks += alikes
    return stacks
