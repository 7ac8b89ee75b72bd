"""The compiled step that trains a stack of models on batches of one size."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from flsel.local.compiled.fuse_graph import fuse_graph
from flsel.local.compiled.gather_examples import ExampleGatherer
from flsel.local.compiled.record_graph import record
from flsel.local.compiled.replay import FlatCode, called
from flsel.local.compiled.split import GraphParts, split
from flsel.local.compiled.stacked_params import StackedParams
from flsel.local.compiled.step_inputs import HostRunner, Run, StepRunner, TableRunner
from flsel.local.compiled.trace import Example, Traced, trace, visit_inputs
from flsel.local.compiled.update import (
    DeviceSums,
    FusedGradient,
    Member,
    Sums,
    copy_parameters,
    emit_sgd,
    sgd_settings,
    split_late,
)
from flsel.params import Params

# How often a number of steps comes before what depends on their labels is traced, and for how many numbers.
_OFTEN, _FLAT = 3, 8


class CompiledStep:
    """The local step of a stack's models on batches of one size.

    Args:
        stack: The models.
        inputs: The clients' examples.
        example: A visit of the stack's clients, with a batch.
        kept: What the objective kept (:func:`kept_by`) when the step was traced.

    Raises:
        Refused: If the step cannot be traced.
    """

    def __init__(
        self, stack: StackedParams, inputs: ExampleGatherer, example: Example, kept: tuple[Any, ...]
    ) -> None:
        self._stack, self._example, self.kept = stack, example, kept
        self._inputs = inputs
        # A batch from the first, since planning runs the step: what lies in fresh memory is no token.
        self.x = inputs.buffer(example.x).copy_(example.x)
        traced = trace(stack.program, example)
        traced.inputs[-1] = self.x
        fuse_graph(traced.graph, self.x.device)
        parts = split(traced)
        with torch.no_grad():
            constants = list(parts.visit(*traced.inputs[traced.params :][: traced.visit]))
            self._constants = [value.clone() for value in constants]
        self._labels = parts.labels
        self._visit = parts.visit.forward
        self._names = traced.names
        self.drops, self.convolves = traced.drops, traced.convolves
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
            labels: Their labels, keys (and weights), and what they draw, ``[S, ...]`` each.
        """
        self._runner.load(self._stack.numbers(span), places, self._terms(labels))

    def advance(self, count: int) -> None:
        """Take the next steps of those that were loaded."""
        self._runner.advance(count)

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

    def _bind(self, parts: GraphParts, traced: Traced) -> StepRunner:
        """Write the code of a step, and decide how it is fed."""
        stack, targets = self._stack, self._targets()
        copy_parameters(parts.step, parts.params)
        module, late = split_late(parts.step, parts.params, [targets.get(name) for name in self._names])
        labels = traced.inputs[traced.params + traced.visit :][: traced.labels]
        with torch.no_grad():
            terms = [term.clone() for term in parts.labels(*self._constants, *labels)]
        self.term_bytes = sum(term.numel() * term.element_size() for term in terms)
        first = parts.params + parts.constants
        inputs = [*stack.params.values(), *self._constants, *terms, self.x]
        flat = FlatCode(module, inputs, moving=range(first, first + (0 if stack.tabled else parts.terms)))
        like = next(iter(stack.params.values()))
        fixed = like.new_zeros(len(stack.numbers(range(1))[0])) if stack.tabled else None
        sums = Sums(flat) if fixed is None else DeviceSums(flat, fixed)
        outputs = flat.emit()
        early = [name for name, how in zip(self._names, late, strict=True) if how is None]
        gradients = dict(zip(early, outputs, strict=False))
        if not stack.sgd:
            run = flat.finish([flat.argument(gradients[name]) for name in self._names], [])
            return self._fed(lambda *changing: stack.update(self._names, run(*changing)), fixed, terms)
        products = _with_values(late, outputs[len(early) :])
        found = dict(zip(self._names, products, strict=True))
        numbers: list[str] = []
        for index, (settings, names) in enumerate(stack.groups):
            members = [
                Member(stack.params[name], stack.velocities.get(name), gradients.get(name), found[name])
                for name in names
                if name in found
            ]
            numbers += emit_sgd(sums, index, sgd_settings(settings), members)
        return self._fed(flat.finish([], [] if stack.tabled else numbers), fixed, terms)

    def _fed(self, run: Run, numbers: Tensor | None, terms: list[Tensor]) -> StepRunner:
        """Decide how a step is fed: with numbers that lie on the device, from tables there."""
        gather = self._inputs.into(self.x)
        if numbers is None:
            return HostRunner(gather, run)
        # Other optimizers keep counts of their own, on the host.
        return TableRunner(gather, run, numbers, terms, record=numbers.is_cuda and self._stack.sgd)

    def _targets(self) -> Params:
        """Name what a product may be added to instead of making a gradient."""
        if not self._stack.sgd:
            return {}
        return {
            name: (self._stack.velocities if settings["momentum"] else self._stack.params)[name]
            for settings, names in self._stack.groups
            for name in names
            if not (settings["momentum"] and settings["nesterov"])
        }


def _with_values(late: list[FusedGradient | None], factors: list[fx.Node]) -> list[FusedGradient | None]:
    """Replace the factors of late products by the nodes that the flat code knows."""
    rest = iter(factors)
    return [None if how is None else FusedGradient(how.target, next(rest), next(rest)) for how in late]
