"""Train visits by compiled steps: which clients form a stack, when it shrinks, and the order of steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from flsel.data.trees import mapped, tensors
from flsel.local.compiled.pool import Pool, is_large
from flsel.local.compiled.refusals import Convolves, weighs_examples
from flsel.local.compiled.step import CompiledStep, ExampleGatherer, StackedParams
from flsel.local.compiled.step_logs import ClientLogs
from flsel.local.compiled.trace import Example, kept_by
from flsel.local.dropout import step_keys, visit_key
from flsel.local.program import Program
from flsel.local.tasks import convolves
from flsel.local.visit import Visit, put_logs
from flsel.params import Params, padded_rows, repeated, row, stacked, whole

# Shapes that stay compiled; each keeps the memory of one stack of models and their activations.
_SHAPES = 16
# Bytes of what the labels and keys of several steps are turned into at a time; a CPU's cache holds few.
_TERMS, _TERMS_CPU = 2**25, 2**22


def round_up(count: int) -> int:
    """Round a count up, so that few shapes serve all: exact up to 16, by at most an eighth above."""
    grain = 1 << max((count - 1).bit_length() - 4, 0)
    return -(-count // grain) * grain


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


class Engine:
    """The compiled steps of programs that train together, by shape.

    Args:
        pool: The programs.
        tabled: Steps read what changes from tables on the device, as a GPU needs it.
    """

    def __init__(self, pool: Pool, tabled: bool) -> None:
        self.pool, self._tabled = pool, tabled
        self._program, self._device = pool.whole, pool.whole.task.device
        # A GPU is idle without stacked convolutions.
        self._single = convolves(self._program.task) and not tabled
        self._large = is_large(self._program)
        self._weighs = weighs_examples(self._program)
        self._targets = tensors(self._program.typed(self._program.population.y))
        self._steps: OrderedDict[tuple[int, int, int], CompiledStep] = OrderedDict()
        self._stacks: dict[int, StackedParams] = {}
        self._inputs: list[ExampleGatherer] = []

    def takes(self, visits: Sequence[Visit]) -> bool:
        """Tell whether the visits can be one stack: batches of one size, or ones that can be padded.

        A loss that may not be a mean over examples leaves no way to take a padded place out of it.
        """
        if self._weighs or self._single:
            return True
        tables = [visit.batch_table() for visit in visits]
        return len({int(length) for table in tables for length in (table >= 0).sum(axis=1)}) <= 1

    @torch.no_grad()
    def train(self, rows: list[int], visits: list[Visit], ends: Params) -> None:
        """Train visits of one learning rate and write their models into rows of ``ends``."""
        tables = [self.pool.batch_table(visit) for visit in visits]
        for place, visit, table in zip(rows, visits, tables, strict=True):
            if len(table) == 0:
                for name, value in visit.start.items():
                    ends[name][place] = value
        order = sorted((i for i, t in enumerate(tables) if len(t)), key=lambda i: -len(tables[i]))
        factor = visits[0].program.lr_factors[visits[0].round]
        for stack in [[i] for i in order] if self._single else [order] if order else []:
            chosen = [visits[i] for i in stack]
            cohort = Cohort(
                rows=[rows[i] for i in stack],
                starts=starts_of([visit.start for visit in chosen]),
                clients=whole([visit.client for visit in chosen]).to(self._device),
                visits=chosen,
                positions=stack_tables([tables[i] for i in stack]),
                targets=self._targets,
                drawn=padded_rows([v.program.drawn(v.client, v.round, v.draw) for v in chosen]),
            )
            self._visit(cohort, factor, ends)

    def _visit(self, cohort: Cohort, factor: float, ends: Params) -> None:
        """Train one stack of clients and write their models into ``ends``."""
        steps = cohort.steps
        heard = None
        if self._program.logs:
            shards = (visit.program.population.shards[visit.client] for visit in cohort.visits)
            passes = [self._program.spec.pass_length(len(shard)) for shard in shards]
            heard = ClientLogs(steps, passes)
        at = 0
        wider: StackedParams | None = None
        while at < steps[0]:
            count = round_up(sum(s > at for s in steps))
            now = cohort.resized(count)
            stack = self._stack(now)
            if wider is None:
                stack.load(now.starts, factor)
            else:
                stack.take_over(wider)
            until = self._until(stack, steps, at)
            self._run(stack, now, range(at, until), ends, heard)
            at, wider = until, stack

    @staticmethod
    def _until(stack: StackedParams, steps: list[int], at: int) -> int:
        """Return the step before which at most half of the stack is left."""
        if stack.rows == 1:
            return steps[0]
        half = steps[stack.rows // 2] if stack.rows // 2 < len(steps) else 0
        return max(half, at + 1)

    def _run(
        self,
        stack: StackedParams,
        cohort: Cohort,
        span: range,
        ends: Params,
        heard: ClientLogs | None,
    ) -> None:
        """Take some steps of a stack; models whose last step is among them are copied out."""
        leaving: dict[int, list[int]] = {}
        for place, count in enumerate(cohort.steps[: len(cohort.rows)]):
            if span.start < count <= span.stop:
                leaving.setdefault(count, []).append(place)
        models = self._program.opponents(cohort.starts, cohort.clients)
        for step, part in self._load_steps(stack, cohort, models, span):
            at = part.start
            for stop in sorted({n for n in leaving if n in part} | {part.stop}):
                if heard is None:
                    step.advance(stop - at)
                else:
                    _advance(step, range(at, stop), cohort, heard)
                at = stop
                if stop in leaving:
                    rows = leaving.pop(stop)
                    self._copy_out(stack, cohort, rows, ends)
                    if heard is not None:
                        for place in rows:
                            put_logs(ends, cohort.rows[place], heard.values(place))

    def _copy_out(self, stack: StackedParams, cohort: Cohort, rows: list[int], ends: Params) -> None:
        """Write models of a stack, which lie side by side since they take as many steps, into ``ends``."""
        there = cohort.rows[rows[0] : rows[-1] + 1]
        for name, param in stack.params.items():
            models = param[None] if self._single else param[rows[0] : rows[-1] + 1]
            if there == list(range(there[0], there[0] + len(there))):
                ends[name].narrow(0, there[0], len(there)).copy_(models)
            else:
                ends[name][there] = models

    def _load_steps(
        self, stack: StackedParams, cohort: Cohort, models: tuple[Params, ...], span: range
    ) -> Iterator[tuple[CompiledStep, range]]:
        """Yield steps that are ready to be taken, and for which part of the span."""
        begun: set[CompiledStep] = set()
        room = _TERMS_CPU if self._device.type == "cpu" else _TERMS
        sizes = self._sizes(cohort)
        at = span.start
        while at < span.stop:
            size = sizes[at]
            with self._program.fabric.autocast():
                step = self._step(stack, cohort, models, size)
                if step not in begun:
                    step.begin(cohort.starts, cohort.clients, models)
                    begun.add(step)
            most = min(span.stop, at + max(1, room // max(step.term_bytes, 1)))
            part = range(at, next((s for s in range(at + 1, most) if sizes[s] != size), most))
            places, weights = cohort.table(part, size)
            flat, shape = places.reshape(-1), weights.shape
            labels = [y.index_select(0, flat).view(*shape, *y.shape[1:]) for y in cohort.targets]
            labels.append(cohort.keys(part) if step.drops else places)  # unread
            labels += [weights] if self._weighs else []
            labels += [table[:, part.start : part.stop].transpose(0, 1) for table in cohort.drawn.values()]
            with self._program.fabric.autocast():
                step.load(part, places, [label.squeeze(1) for label in labels] if self._single else labels)
            yield step, part
            at = part.stop

    def _sizes(self, cohort: Cohort) -> list[int]:
        """Return the size of the batches that stand for those of each step."""
        if not self._weighs:
            return cohort.longest
        most = cohort.positions.shape[2]
        # In a stack of two hardly any two rounds have the same lengths, and each size takes a trace.
        up = _power_of_two if self._large else round_up
        return [min(up(longest), most) for longest in cohort.longest]

    def _stack(self, cohort: Cohort) -> StackedParams:
        rows = len(cohort.clients)
        if rows not in self._stacks:
            self._stacks[rows] = StackedParams(self._program, cohort.starts, self._single, self._tabled)
        return self._stacks[rows]

    def _step(
        self, stack: StackedParams, cohort: Cohort, models: tuple[Params, ...], size: int
    ) -> CompiledStep:
        """Return the compiled step of a shape, tracing it at first sight."""
        kept = kept_by(self._program.objective)
        key = (stack.rows, size, len(models) + len(cohort.drawn))
        known = self._steps.pop(key, None)
        if known is None or known.kept != kept:
            example, ready = self._example(stack, cohort, models, size), self._ready()
            with _blanked(self._program):
                known = CompiledStep(stack, ready, example, kept)
            if known.convolves and not (self._single or self._tabled):
                raise Convolves
        self._steps[key] = known
        while len(self._steps) > _SHAPES:
            self._steps.popitem(last=False)
        return known

    def _example(
        self, stack: StackedParams, cohort: Cohort, models: tuple[Params, ...], size: int
    ) -> Example:
        where = torch.from_numpy(cohort.positions[:, 0, :size].clip(min=0))
        x, y = self._program.batch(where)
        like = next(iter(stack.params.values()))
        weights = like.new_full(where.shape, 1.0 / size) if self._weighs else None
        keys, drawn = cohort.keys(range(1))[0], {name: table[:, 0] for name, table in cohort.drawn.items()}
        if self._single:
            x, y = mapped(lambda part: part[0], (x, y))
            keys, weights = keys[0], None if weights is None else weights[0]
            drawn = row(drawn, 0)
        return Example(stack.params, cohort.starts, cohort.clients, models, x, y, keys, weights, drawn)

    def _ready(self) -> list[ExampleGatherer]:
        if not self._inputs:
            data = self._program.population
            named = zip(tensors(data.x), data.normalize.of_tensors(data.x), strict=True)
            self._inputs = [ExampleGatherer(x, own, channels_last=self._single) for x, own in named]
        return self._inputs


def _advance(step: CompiledStep, span: range, cohort: Cohort, heard: ClientLogs) -> None:
    """Take steps, and hear what is logged in those that count."""
    for number in span:
        ear = heard.ear(number, cohort.longest[number], step.kinds)
        if ear is None:
            step.advance(1)
        else:
            step.advance_heard(ear)


@contextmanager
def _blanked(program: Program) -> Iterator[None]:
    """Let the module's own parameters be NaN, where others stand for them: a step that reads them shows.

    Such a step keeps them in a list or a closure, or runs parts of itself again in the backward pass. The
    self-check misses it where they seldom matter: ``RareStored`` in tests/local/test_rare_steps.py.
    """
    live = program.trainable()
    kept = {name: value.detach().clone() for name, value in live.items()}
    for value in live.values():
        value.data.fill_(torch.nan)
    try:
        yield
    finally:
        for name, value in live.items():
            value.data.copy_(kept[name])


@dataclass(frozen=True)
class Cohort:
    """Clients that train together, those with most steps first.

    Attributes:
        rows: Where their end models belong.
        starts: Models they start from, each ``[n, ...]``.
        clients: Ids, int64 ``[n]``.
        visits: Whose turns they are.
        positions: Examples of their batches, int64 ``[n, steps, size]``, -1 padded.
        targets: Targets of all examples, on the device that trains.
        drawn: What their steps draw for generated features, each ``[n, steps, ...]``; may be empty.
    """

    rows: list[int]
    starts: Params
    clients: Tensor
    visits: list[Visit]
    positions: np.ndarray
    targets: list[Tensor]
    drawn: Params

    @cached_property
    def lengths(self) -> np.ndarray:
        """Examples in each batch, int64 ``[n, steps]``."""
        lengths: np.ndarray = (self.positions >= 0).sum(axis=2)
        return lengths

    @cached_property
    def steps(self) -> list[int]:
        """Local steps of each client, descending."""
        counts: list[int] = np.count_nonzero(self.lengths, axis=1).tolist()
        return counts

    @cached_property
    def longest(self) -> list[int]:
        """Examples in the longest batch of each step."""
        sizes: list[int] = self.lengths.max(axis=0).tolist()
        return sizes

    def resized(self, count: int) -> Cohort:
        """Return the first clients, or all and as many more without examples as it takes to be ``count``."""
        missing = count - len(self.clients)
        if missing == 0:
            return self
        index = [*range(min(count, len(self.clients))), *[0] * missing]
        positions = self.positions[index]
        if missing > 0:
            positions[-missing:] = -1
        there = torch.tensor(index, device=self.clients.device)
        starts = {name: start[there] for name, start in self.starts.items()}
        visits = [self.visits[i] for i in index]
        drawn = {name: table[there.to(table.device)] for name, table in self.drawn.items()}
        clients = self.clients[there]
        return Cohort(self.rows[:count], starts, clients, visits, positions, self.targets, drawn)

    def keys(self, span: range) -> Tensor:
        """Return the keys of the dropout masks of S steps on the device that trains, int64 ``[S, n]``."""
        return step_keys(self.seeds, span).to(self.clients.device)

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds of the visits' masks and global generators."""
        return [visit_key(visit.program.seed, visit.draw, visit.client) for visit in self.visits]

    def table(self, span: range, size: int) -> tuple[Tensor, Tensor]:
        """Tabulate the examples of S steps on the device that trains.

        Returns:
            Their positions, int64 ``[S, n * size]``, one of the batch's where there is none; and how
            much each weighs in its batch's mean, ``[S, n, size]``, zero where there is none.
        """
        positions = self.positions[:, span.start : span.stop, :size].swapaxes(0, 1)
        lengths = self.lengths[:, span.start : span.stop].T[:, :, None]
        # In an empty place stands the batch's first example: another's may be one that a model makes NaN of.
        filled = np.where(positions >= 0, positions, np.maximum(positions[:, :, :1], 0))
        places = torch.from_numpy(filled.reshape(len(span), -1))
        # In double precision, from which a quotient of small numbers is rounded as if it were made in single.
        weights = torch.from_numpy((positions >= 0) / np.maximum(lengths, 1))
        like = next(iter(self.starts.values()))
        return places.to(self.clients.device), weights.to(like.dtype).to(self.clients.device)


def stack_tables(tables: list[np.ndarray]) -> np.ndarray:
    """Stack tables ``[steps, size]``, the longest first; -1 stands where the others have ended."""
    together = np.full((len(tables), *tables[0].shape), -1, dtype=np.int64)
    for table, place in zip(tables, together, strict=True):
        place[: len(table)] = table
    return together


def starts_of(models: list[Params]) -> Params:
    """Stack the models that clients start from; a view where it is one model for all, so never written to."""
    if all(model is models[0] for model in models):
        return repeated(models[0], len(models))
    return stacked(models)
