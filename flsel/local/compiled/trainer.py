"""Local training by a step that was traced once per shape."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from flsel.errors import UserError
from flsel.local.compiled.cohort import Cohort
from flsel.local.compiled.inputs import Inputs
from flsel.local.compiled.refuse import Refused
from flsel.local.compiled.step import Bank, Step
from flsel.local.compiled.trace import Example, kept_by, weighs_examples
from flsel.local.program import Program
from flsel.local.sequential import SequentialTrainer
from flsel.local.trainer import LocalTrainer
from flsel.local.vectorised import VmapTrainer, require_vmap
from flsel.local.visit import Visit, alike
from flsel.stack import Params, stacked

_LOG = logging.getLogger("flsel")
# Shapes that stay compiled; each keeps the memory of one stack of models and their activations.
_SHAPES = 16
# Federations that stay compiled.
_PROGRAMS = 8
# Bytes of what the labels of several steps are turned into at a time.
_TERMS = 2**25


def rounded(count: int) -> int:
    """Round a count up, so that few shapes serve all: exact up to 16, by at most an eighth above."""
    grain = 1 << max((count - 1).bit_length() - 4, 0)
    return -(-count // grain) * grain


@final
class CompiledTrainer(LocalTrainer):
    """Train clients by a step that was compiled: a stack of models together, or convolutional ones in turn.

    A batch that is shorter than others is padded with examples that weigh nothing. Clients who have finished
    stay in the stack, their models already copied out, until half of it has finished; then the others go on
    in a smaller one. A step that cannot be traced is left to another trainer, which is logged once.

    Args:
        chunk: Most clients in one stack, which bounds memory; None means all.
    """

    def __init__(self, chunk: int | None = None) -> None:
        self._chunk = chunk
        self._engines: OrderedDict[Program, _Engine] = OrderedDict()
        self._others: WeakKeyDictionary[Program, LocalTrainer] = WeakKeyDictionary()
        self._vmap, self._sequential = VmapTrainer(chunk), SequentialTrainer()

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            UserError: If a program cannot be stacked; the message says why.
        """
        ends = {n: value.new_empty((len(visits), *value.shape)) for n, value in visits[0].start.items()}
        for group in alike(visits, start=False):
            width = self._chunk or len(group)
            for first in range(0, len(group), width):
                rows = group[first : first + width]
                self._train(rows, [visits[row] for row in rows], ends)
        return ends

    def _train(self, rows: list[int], visits: list[Visit], ends: Params) -> None:
        """Train visits of one program and round and write their models into rows of ``ends``."""
        program = visits[0].program
        other = self._others.get(program)
        if other is None:
            try:
                engine = self._engine(program)
                if engine.takes(visits):
                    engine.train(rows, visits, ends)
                    return
                other = self._vmap
            except UserError:
                raise
            except Refused as refusal:
                other = self._give_up(program, str(refusal), self._vmap)
            except Exception as error:  # Anything that a user's step may raise when it is traced.
                other = self._give_up(program, _reason(error), self._sequential)
        for name, value in other.train(visits).items():
            ends[name][rows] = value

    def _engine(self, program: Program) -> _Engine:
        if program not in self._engines:
            require_vmap(program)
            self._engines[program] = _Engine(program)
        self._engines.move_to_end(program)
        while len(self._engines) > _PROGRAMS:
            self._engines.popitem(last=False)
        return self._engines[program]

    def _give_up(self, program: Program, reason: str, other: LocalTrainer) -> LocalTrainer:
        name = "vmap" if other is self._vmap else "sequential"
        _LOG.warning("local.backend: the step is not compiled, since %s; %s trains instead", reason, name)
        self._engines.pop(program, None)
        self._others[program] = other
        return other


class _Engine:
    """The compiled steps of one program, by shape."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._single = any(isinstance(m, nn.modules.conv._ConvNd) for m in program.task.modules())
        self._weighs = weighs_examples(program)
        self._steps: OrderedDict[tuple[int, int, int], Step] = OrderedDict()
        self._banks: dict[int, Bank] = {}
        self._inputs: Inputs | None = None

    def takes(self, visits: Sequence[Visit]) -> bool:
        """Tell whether the visits can be one stack: batches of one size, or ones that can be padded.

        A loss that may not be a mean over examples leaves no way to take a padded place out of it.
        """
        if self._weighs or self._single:
            return True
        tables = [self._program.batches(visit.client, visit.round) for visit in visits]
        return len({int(length) for table in tables for length in (table >= 0).sum(dim=1)}) <= 1

    @torch.no_grad()
    def train(self, rows: list[int], visits: list[Visit], ends: Params) -> None:
        """Train visits of one round and write their models into rows of ``ends``."""
        tables = [self._program.batches(visit.client, visit.round) for visit in visits]
        for row, visit, table in zip(rows, visits, tables, strict=True):
            if len(table) == 0:
                for name, value in visit.start.items():
                    ends[name][row] = value
        order = sorted((i for i, t in enumerate(tables) if len(t)), key=lambda i: -len(tables[i]))
        self._program.task.train()
        for stack in [[i] for i in order] if self._single else [order] if order else []:
            cohort = Cohort(
                rows=[rows[i] for i in stack],
                starts=stacked([visits[i].start for i in stack]),
                clients=torch.tensor([visits[i].client for i in stack]),
                positions=pad_sequence([tables[i] for i in stack], batch_first=True, padding_value=-1),
            )
            self._visit(cohort, visits[0].round, ends)

    def _visit(self, cohort: Cohort, round: int, ends: Params) -> None:
        """Train one stack of clients and write their models into ``ends``."""
        steps = cohort.steps
        at = 0
        wider: Bank | None = None
        while at < steps[0]:
            bank = self._bank(rounded(sum(s > at for s in steps)), cohort)
            if wider is None:
                bank.load(cohort.resized(bank.rows).starts, self._program.lr_factors[round])
            else:
                bank.take_over(wider)
            until = self._until(bank, steps, at)
            self._run(bank, cohort.resized(bank.rows), range(at, until), ends)
            at, wider = until, bank

    @staticmethod
    def _until(bank: Bank, steps: list[int], at: int) -> int:
        """Return the step before which at most half of the stack is left."""
        if bank.rows == 1:
            return steps[0]
        half = steps[bank.rows // 2] if bank.rows // 2 < len(steps) else 0
        return max(half, at + 1)

    def _run(self, bank: Bank, cohort: Cohort, span: range, ends: Params) -> None:
        """Take some steps of a stack; models whose last step is among them are copied out."""
        leaving: dict[int, list[int]] = {}
        for row, count in enumerate(cohort.steps[: len(cohort.rows)]):
            if count in range(span.start + 1, span.stop + 1):
                leaving.setdefault(count - 1, []).append(row)
        models = self._program.objective.models(cohort.starts, cohort.clients)
        for number, step, terms in self._prepared(bank, cohort, models, span):
            assert self._inputs is not None
            self._inputs.gather(cohort.places(number, step.size), step.x)
            step(number, terms)
            for row in leaving.get(number, ()):
                for name, param in bank.params.items():
                    ends[name][cohort.rows[row]] = param if self._single else param[row]

    def _prepared(
        self, bank: Bank, cohort: Cohort, models: tuple[Params, ...], span: range
    ) -> Iterator[tuple[int, Step, tuple[Tensor, ...]]]:
        """Yield the numbers of steps, what is to run in each, and what of it depends on labels only."""
        begun: set[Step] = set()
        sizes = [self._size(cohort, step) for step in range(span.stop)]
        at = span.start
        while at < span.stop:
            step = self._step(bank, cohort, models, sizes[at])
            if step not in begun:
                step.begin(cohort.starts, cohort.clients, models)
                begun.add(step)
            most = min(span.stop, at + max(1, _TERMS // max(step.term_bytes, 1)))
            stop = next((s for s in range(at + 1, most) if sizes[s] != sizes[at]), most)
            labels = cohort.labels(self._program, range(at, stop), sizes[at], self._weighs)
            if self._single:
                labels = [label.squeeze(1) for label in labels]
            for number, terms in zip(range(at, stop), step.terms(*labels), strict=True):
                yield number, step, terms
            at = stop

    def _size(self, cohort: Cohort, step: int) -> int:
        """Return the size of the batches that stand for those of a step."""
        longest = cohort.longest[step]
        return min(rounded(longest), cohort.positions.shape[2]) if self._weighs else longest

    def _bank(self, rows: int, cohort: Cohort) -> Bank:
        if rows not in self._banks:
            starts = cohort.resized(rows).starts
            self._banks[rows] = Bank(self._program, starts, self._single)
        return self._banks[rows]

    def _step(self, bank: Bank, cohort: Cohort, models: tuple[Params, ...], size: int) -> Step:
        """Return the compiled step of a shape, tracing it at first sight."""
        kept = kept_by(self._program.objective)
        key = (bank.rows, size, len(models))
        known = self._steps.pop(key, None)
        if known is None or known.kept != kept:
            known = Step(bank, self._ready(), self._example(bank, cohort, models, size), kept)
        self._steps[key] = known
        while len(self._steps) > _SHAPES:
            self._steps.popitem(last=False)
        return known

    def _example(self, bank: Bank, cohort: Cohort, models: tuple[Params, ...], size: int) -> Example:
        x, y = self._program.batch(cohort.positions[:, 0, :size].clamp(min=0))
        weights = torch.full(y.shape, 1.0 / size, dtype=next(iter(bank.params.values())).dtype)
        if self._single:
            x, y, weights = x[0], y[0], weights[0]
        chosen = weights if self._weighs else None
        return Example(bank.params, cohort.starts, cohort.clients, models, x, y, chosen)

    def _ready(self) -> Inputs:
        if self._inputs is None:
            self._inputs = Inputs(self._program.population, channels_last=self._single)
        return self._inputs


def _reason(error: Exception) -> str:
    said = str(error).splitlines()[0] if str(error) else ""
    if "data-dependent control flow" in said:
        return "it branches on data"
    if "mutate a captured" in said:
        return "it writes to a buffer"
    return f"tracing it raised {type(error).__name__}: {said[:100]}"
