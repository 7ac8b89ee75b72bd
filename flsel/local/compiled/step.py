"""The compiled step that trains a stack of models on batches of one size, and the memory that it works in.

SGD's update is written out as part of the replayed step; other optimizers step by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.optim import SGD, Optimizer

from flsel.data.trees import tensors
from flsel.local.compiled.fuse_graph import GraphParts, fuse_graph, split
from flsel.local.compiled.record_graph import Recording, record, root
from flsel.local.compiled.replay import FlatCode, HostRunner, Run, TableRunner, called
from flsel.local.compiled.trace import Example, Traced, trace, visit_inputs
from flsel.local.optimizers import groups_of, made_like
from flsel.local.program import Program
from flsel.local.schedule import scale_lr
from flsel.local.torch_internals import foreach_add_, foreach_mul, foreach_mul_
from flsel.params import Params

aten = torch.ops.aten

# How often a number of steps comes before what depends on their labels is traced, and for how many numbers.
_OFTEN, _FLAT = 3, 8


class CompiledStep:
    """The local step of a stack's models on batches of one size.

    Args:
        stack: The models.
        inputs: The clients' examples, each tensor of their inputs.
        example: A visit of the stack's clients, with a batch.
        kept: What the objective kept (:func:`kept_by`) when the step was traced.

    Raises:
        Refused: If the step cannot be traced.
    """

    def __init__(
        self, stack: StackedParams, inputs: list[ExampleGatherer], example: Example, kept: tuple[Any, ...]
    ) -> None:
        self._stack, self._example, self.kept = stack, example, kept
        self._inputs = inputs
        # A batch from the first, since planning runs the step: what lies in fresh memory is no token.
        given = zip(inputs, tensors(example.x), strict=True)
        self.x = [own.buffer(value).copy_(value) for own, value in given]
        traced = trace(stack.program, example)
        traced.inputs[-len(self.x) :] = self.x
        fuse_graph(traced.graph, stack.program.device)
        parts = split(traced)
        with torch.no_grad():
            constants = list(parts.visit(*traced.inputs[traced.params :][: traced.visit]))
            self._constants = [value.clone() for value in constants]
        self._labels = parts.labels
        self._visit = parts.visit
        self._names = traced.names
        self.drops, self.convolves, self.kinds = traced.drops, traced.convolves, traced.kinds
        self._met: Counter[int] = Counter()
        self._flat: dict[int, Any] = {}
        self._runner = self._bind(parts, traced)

    def begin(self, starts: Params, clients: Tensor, models: tuple[Params, ...]) -> None:
        """Compute what stays the same in a visit."""
        if not self._constants:
            return
        now = replace(self._example, starts=starts, clients=clients, models=models)
        values = self._visit(*visit_inputs(self._stack.program, now))
        for mine, value in zip(self._constants, values, strict=True):
            mine.copy_(value)

    def load(self, span: range, places: Tensor, labels: list[Tensor]) -> None:
        """Get ready for S steps of a visit.

        Args:
            span: Their numbers.
            places: Positions of their examples, int64 ``[S, n * size]``.
            labels: Their targets, keys (and weights), and what they draw, ``[S, ...]`` each.
        """
        self._runner.load(self._stack.numbers(span), places, self._terms(labels))

    def advance(self, count: int) -> None:
        """Take the next steps of those that were loaded."""
        self._runner.advance(count)

    def advance_heard(self, ear: Callable[[Sequence[Tensor]], None]) -> None:
        """Take the next step, and let what it logs be heard."""
        assert isinstance(self._runner, HostRunner)
        self._runner.step(lambda *terms: ear(self._logs(*terms)))

    def _terms(self, labels: list[Tensor]) -> list[Tensor]:
        """Compute, for each of S steps at once, what depends on labels only."""
        inputs, count = (*self._constants, *labels), len(labels[0])
        flat = self._flat.get(count)
        if flat is None:
            along = (*(None for _ in self._constants), *(0 for _ in labels))
            flat = torch.func.vmap(self._labels, in_dims=along)
            self._met[count] += 1
            # Tracing pays for numbers of steps that come again and again.
            if self._met[count] == _OFTEN and len(self._flat) < _FLAT:
                flat = self._flat[count] = called(record(flat, *inputs))
        return list(flat(*inputs))

    def _bind(self, parts: GraphParts, traced: Traced) -> HostRunner | TableRunner:
        """Write the code of a step, and decide how it is fed."""
        stack = self._stack
        copy_parameters(parts.step, parts.params)
        labels = traced.inputs[traced.params + traced.visit :][: traced.labels]
        with torch.no_grad():
            terms = [term.clone() for term in parts.labels(*self._constants, *labels)]
        self.term_bytes = sum(term.numel() * term.element_size() for term in terms)
        first = parts.params + parts.constants
        inputs = [*stack.params.values(), *self._constants, *terms, *self.x]
        moving = range(first, first + (0 if stack.tabled else parts.terms))
        flat = FlatCode(parts.step, inputs, moving)
        if traced.kinds:
            logs = FlatCode(parts.logs, inputs, moving)
            self._logs = logs.finish([logs.argument(value) for value in logs.emit()], [])
        like = next(iter(stack.params.values()))
        fixed = like.new_zeros(len(stack.numbers(range(1))[0])) if stack.tabled else None
        sums = Sums(flat) if fixed is None else DeviceSums(flat, fixed)
        gradients = dict(zip(self._names, flat.emit(), strict=True))
        if not stack.sgd:
            run = flat.finish([flat.argument(gradients[name]) for name in self._names], [])
            return self._make_runner(
                lambda *changing: stack.update(self._names, run(*changing)), fixed, terms
            )
        numbers: list[str] = []
        for index, (settings, names) in enumerate(stack.groups):
            members = [
                Member(stack.params[name], stack.velocities.get(name), gradients[name])
                for name in names
                if name in gradients
            ]
            numbers += emit_sgd(sums, index, sgd_settings(settings), members)
        return self._make_runner(flat.finish([], [] if stack.tabled else numbers), fixed, terms)

    def _make_runner(self, run: Run, numbers: Tensor | None, terms: list[Tensor]) -> HostRunner | TableRunner:
        """Decide how a step is fed: with numbers that lie on the device, from tables there."""
        gathers = [own.into(batch) for own, batch in zip(self._inputs, self.x, strict=True)]
        gather = gathers[0] if len(gathers) == 1 else partial(_each, gathers)
        if numbers is None:
            return HostRunner(gather, run)
        # Other optimizers keep counts of their own, on the host.
        return TableRunner(gather, run, numbers, terms, record=numbers.is_cuda and self._stack.sgd)


def _each(gathers: list[Callable[[Tensor], object]], positions: Tensor) -> None:
    for gather in gathers:
        gather(positions)


class StackedParams:
    """Models in fixed memory with what their optimizer keeps; the steps of all batch sizes share it.

    Args:
        program: The client's side of the run.
        starts: Stack ``[n, ...]`` whose shapes count; n = 1 where ``single``.
        single: Hold one model without a leading dimension, with images in channels_last.
        tabled: Steps read what changes from tables on the device.
    """

    def __init__(self, program: Program, starts: Params, single: bool, tabled: bool) -> None:
        self.program, self.single, self.tabled = program, single, tabled
        self.rows = len(next(iter(starts.values())))
        self.params = {n: _laid_out(s[0] if single else s, single) for n, s in starts.items()}
        self.groups = groups_of(program.optimizer, program.trainable())
        self.sgd = type(program.optimizer) is SGD
        self._sgd = [sgd_settings(group) for group, _ in self.groups] if self.sgd else []
        moving = [name for settings, names in self.groups if settings.get("momentum") for name in names]
        self.velocities = {n: torch.zeros_like(self.params[n]) for n in moving} if self.sgd else {}
        self._optimizer: Optimizer | None = None
        self._factor = 1.0

    def load(self, starts: Params, factor: float) -> None:
        """Begin a visit with a factor on the learning rate."""
        for name, param in self.params.items():
            param.copy_(starts[name][0] if self.single else starts[name])
        for velocity in self.velocities.values():
            velocity.zero_()
        self._factor = factor
        if not self.sgd:
            groups = [dict(s, params=[self.params[n] for n in names]) for s, names in self.groups]
            self._optimizer = made_like(self.program.optimizer, groups)
            scale_lr(self._optimizer.param_groups, [s["lr"] for s, _ in self.groups], factor)

    def take_over(self, other: StackedParams) -> None:
        """Continue with the first models of a wider stack."""
        for mine, theirs in ((self.params, other.params), (self.velocities, other.velocities)):
            for name, value in mine.items():
                value.copy_(theirs[name][: self.rows])
        self._factor = other._factor
        if other._optimizer is None:
            return
        self.load(self.params, self._factor)
        assert self._optimizer is not None
        for name, param in self.params.items():
            wider = other.params[name]
            state = other._optimizer.state[wider]
            self._optimizer.state[param] = {k: _first_rows(v, wider, self.rows) for k, v in state.items()}

    def numbers(self, span: range) -> list[list[float]]:
        """Return what SGD multiplies with in each step of a visit's span."""
        first, rest = ([n for s in self._sgd for n in s.numbers(self._factor, f)] for f in (True, False))
        return [first if step == 0 else rest for step in span]

    def update(self, names: Sequence[str], grads: Sequence[Tensor]) -> None:
        """Take a step of an optimizer that is not part of the compiled step."""
        assert self._optimizer is not None
        for name, grad in zip(names, grads, strict=True):
            self.params[name].grad = grad
        self._optimizer.step()


def _first_rows(value: Any, param: Tensor, rows: int) -> Any:
    if isinstance(value, Tensor) and value.shape == param.shape and value.ndim > 0:
        return value[:rows].clone()
    return value.clone() if isinstance(value, Tensor) else value


def _laid_out(value: Tensor, single: bool) -> Tensor:
    """Allocate a parameter in the order in which its gradient comes."""
    last = single and value.ndim == 4
    return torch.empty_like(value, memory_format=torch.channels_last if last else torch.contiguous_format)


class ExampleGatherer:
    """Gather a normalised tensor of a population's inputs.

    Args:
        x: The tensor as the data set has it.
        normalize: Maps it to what the model sees.
        channels_last: Keep images with their channels last.
    """

    def __init__(self, x: Tensor, normalize: Any, channels_last: bool) -> None:
        self._normalize = normalize
        self._images = channels_last and x.ndim == 4
        # A normalised copy of everything would be no faster: gathering four times the bytes costs as much.
        self._x = x.permute(0, 2, 3, 1).contiguous() if self._images else x
        self._ready = x.dtype == normalize(x[:1]).dtype
        self._scaled = self._x.dtype == torch.uint8

    def buffer(self, like: Tensor) -> Tensor:
        """Allocate the memory of a batch shaped like ``like``."""
        if not self._images:
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        return torch.empty_like(like.movedim(-3, -1), memory_format=torch.contiguous_format).movedim(-1, -3)

    def into(self, batch: Tensor) -> Callable[[Tensor], object]:
        """Return what writes the inputs at positions (int64, flat) into a batch of :meth:`buffer`."""
        stored = batch.movedim(-3, -1) if self._images else batch
        flat = stored.view(-1, *self._x.shape[1:])
        if self._ready:
            return partial(torch.index_select, self._x, 0, out=flat)
        images = flat.movedim(-1, -3) if self._images else flat

        def gather(positions: Tensor) -> None:
            flat.copy_(self._x.index_select(0, positions))
            if self._scaled:
                images.mul_(self._normalize.scale).add_(self._normalize.shift)

        return gather


@dataclass(frozen=True)
class Settings:
    """What SGD does with a group of parameters."""

    lr: float
    momentum: float
    dampening: float
    decay: float
    nesterov: bool
    maximize: bool

    def numbers(self, factor: float, first: bool) -> list[float]:
        """Return what a step multiplies with.

        Args:
            factor: On the learning rate, of the communication round.
            first: Whether it is the visit's first step, which no momentum precedes.

        Returns:
            What gradients are added to parameters with; what is left of parameters; what velocities,
            gradients to velocities, parameters to velocities, and velocities to parameters are added with.
        """
        rate, sign = self.lr * factor, -1.0 if self.maximize else 1.0
        take = 1.0 if first else 1.0 - self.dampening
        back = -rate * (self.momentum if self.nesterov else 1.0)
        return [-rate * sign, 1.0 - rate * self.decay, self.momentum, take * sign, take * self.decay, back]


def sgd_settings(group: dict[str, Any]) -> Settings:
    """Read the settings of an optimizer's group."""
    return Settings(
        lr=float(group["lr"]),
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        decay=float(group["weight_decay"]),
        nesterov=bool(group["nesterov"]),
        maximize=bool(group["maximize"]),
    )


def copy_parameters(module: Recording, params: int) -> None:
    """Let gradients that are parameters themselves be copies: an update would change what others still need.

    In a product of two parameters, each is the gradient of the other.

    Args:
        module: Its outputs are gradients; it is changed in place.
        params: Number of its first inputs that are parameters.
    """
    graph = module.graph
    places = set([node for node in graph.nodes if node.op == "placeholder"][:params])
    end = graph.output_node()
    gradients: list[Any] = list(end.args[0])  # type: ignore[arg-type]
    for i, node in enumerate(gradients):
        if root(node) in places:
            with graph.inserting_before(end):
                gradients[i] = graph.call_function(aten.clone.default, (node,))
            gradients[i].meta = dict(node.meta)
    end.args = (tuple(gradients),)


@dataclass(frozen=True)
class Member:
    """One parameter with its gradient."""

    param: Tensor
    velocity: Tensor | None
    gradient: fx.Node


class Sums:
    """Writes sums and products with numbers that are the code's own arguments."""

    def __init__(self, flat: FlatCode) -> None:
        self.flat = flat

    def number(self, name: str) -> fx.Node:
        """Name a number."""
        return self.flat.number(name)

    def add(self, values: list[fx.Node], others: list[Any], by: fx.Node) -> None:
        """Add others times a number."""
        if len(values) == 1:
            self.flat.code.call_method("add_", (values[0], others[0]), {"alpha": by})
        elif values:
            self.flat.code.call_function(foreach_add_, (values, others), {"alpha": by})

    def scale(self, values: list[fx.Node], by: fx.Node) -> None:
        """Multiply with a number."""
        if values:
            self.flat.code.call_function(foreach_mul_, (values, by))


class DeviceSums(Sums):
    """The same with numbers that lie on the device, where a recorded step reads them anew.

    Args:
        flat: The code that is written.
        numbers: Their memory, ``[k]``, in the order in which they are named.
    """

    def __init__(self, flat: FlatCode, numbers: Tensor) -> None:
        super().__init__(flat)
        self._rest = iter(numbers.unbind(0))

    def number(self, name: str) -> fx.Node:
        """Name a number."""
        return self.flat.given(next(self._rest))

    def add(self, values: list[fx.Node], others: list[Any], by: fx.Node) -> None:
        """Add others times a number."""
        if values:
            scaled = self.flat.code.call_function(foreach_mul, (others, by))
            self.flat.code.call_function(foreach_add_, (values, scaled))


def emit_sgd(sums: Sums, index: int, settings: Settings, members: list[Member]) -> list[str]:
    """Write the update of one group; return the names of the numbers that it takes."""
    names = [f"{what}_{index}" for what in ("rate", "shrink", "keep", "take", "pull", "back")]
    rate, shrink, keep, take, pull, back = (sums.number(name) for name in names)
    params = [sums.flat.given(m.param) for m in members]
    grads = [sums.flat.argument(m.gradient) for m in members]
    if not settings.momentum:
        if settings.decay:
            sums.scale(params, shrink)
        sums.add(params, grads, rate)
        return names
    velocities = [sums.flat.given(m.velocity) for m in members]  # type: ignore[arg-type]
    sums.scale(velocities, keep)
    sums.add(velocities, grads, take)
    if settings.decay:
        sums.add(velocities, params, pull)
    if settings.nesterov:
        if settings.decay:
            sums.scale(params, shrink)
        sums.add(params, grads, rate)
    sums.add(params, velocities, back)
    return names
