"""A stack of models in fixed memory, and the compiled steps that train it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.optim import SGD, Optimizer

from flsel.local.compiled.inputs import Inputs
from flsel.local.compiled.replay import Plan
from flsel.local.compiled.split import Parts, split
from flsel.local.compiled.tidy import tidy
from flsel.local.compiled.trace import Example, Traced, trace, visit_inputs
from flsel.local.compiled.update import Late, Member, emit_sgd, sgd_settings, split_late
from flsel.local.program import Program, scale_lr
from flsel.stack import Params

Group = tuple[dict[str, Any], list[str]]


def groups_of(optimizer: Optimizer, trainable: Params) -> list[Group]:
    """Return the settings of an optimizer's groups, and the names of the parameters in each."""
    names = {id(param): name for name, param in trainable.items()}
    return [
        ({k: v for k, v in group.items() if k != "params"}, [names[id(p)] for p in group["params"]])
        for group in optimizer.param_groups
    ]


class Bank:
    """Models in fixed memory with what their optimizer keeps; the steps of all batch sizes share it.

    Args:
        program: The client's side of the run.
        starts: Stack ``[n, ...]`` whose shapes count; n = 1 where ``single``.
        single: Hold one model without a leading dimension, with images in channels_last.
    """

    def __init__(self, program: Program, starts: Params, single: bool) -> None:
        self.program, self.single = program, single
        self.rows = len(next(iter(starts.values())))
        self.params = {n: _laid_out(s[0] if single else s, single) for n, s in starts.items()}
        self._make: Any = type(program.optimizer)
        self.groups = groups_of(program.optimizer, program.trainable())
        self.sgd = type(program.optimizer) is SGD
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
            self._optimizer = self._make(groups)
            scale_lr(self._optimizer.param_groups, [s["lr"] for s, _ in self.groups], factor)

    def take_over(self, other: Bank) -> None:
        """Go on with the first models of a wider bank."""
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

    def numbers(self, step: int) -> list[float]:
        """Return what SGD multiplies with in a step."""
        settings = [sgd_settings(group) for group, names in self.groups] if self.sgd else []
        return [number for s in settings for number in s.numbers(self._factor, step == 0)]

    def update(self, names: Sequence[str], grads: Sequence[Tensor]) -> None:
        """Let an optimizer that is not part of the step take its own."""
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
    if single:
        form = torch.channels_last if value.ndim == 4 else torch.contiguous_format
        return torch.empty_like(value, memory_format=form)
    if value.ndim == 3:
        return torch.empty_like(value.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
    return torch.empty_like(value, memory_format=torch.contiguous_format)


class Step:
    """The local step of a bank's models on batches of one size.

    Args:
        bank: The models.
        inputs: The clients' examples.
        example: A visit of the bank's clients, with a batch.
        kept: What the objective kept (:func:`kept_by`) when the step was traced.

    Raises:
        Refused: If the step cannot be traced.
    """

    def __init__(self, bank: Bank, inputs: Inputs, example: Example, kept: tuple[Any, ...]) -> None:
        self._bank, self._example, self.kept = bank, example, kept
        self.size = example.y.shape[-1]
        self.x = inputs.buffer(example.x)
        traced = trace(bank.program, example)
        traced.inputs[-1] = self.x
        tidy(traced.graph, traced.inputs)
        parts = split(traced)
        with torch.no_grad():
            constants = list(parts.visit(*traced.inputs[traced.params :][: traced.visit]))
            self._constants = [value.clone() for value in constants]
        self._labels = parts.labels
        self._visit = parts.visit
        self._names = traced.names
        self._run = self._bind(parts, traced)

    def begin(self, starts: Params, clients: Tensor, models: tuple[Params, ...]) -> None:
        """Compute what stays the same in a visit."""
        if not self._constants:
            return
        now = replace(self._example, starts=starts, clients=clients, models=models)
        values = self._visit(*visit_inputs(self._bank.program, now))
        for mine, value in zip(self._constants, values, strict=True):
            mine.copy_(value)

    def terms(self, *labels: Tensor) -> list[tuple[Tensor, ...]]:
        """Compute, for each of S steps at once, what depends on labels (``[S, ...]`` each) only."""
        along = (*(None for _ in self._constants), *(0 for _ in labels))
        values = torch.func.vmap(self._labels, in_dims=along)(*self._constants, *labels)
        return list(zip(*(value.unbind(0) for value in values), strict=True)) or [()] * len(labels[0])

    def __call__(self, step: int, terms: tuple[Tensor, ...]) -> None:
        """Take the visit's step ``step`` on the inputs in ``x``."""
        grads = self._run(*self._bank.numbers(step), *terms)
        if grads:
            self._bank.update(self._names, grads)

    def _bind(self, parts: Parts, traced: Traced) -> Callable[..., Any]:
        bank, targets = self._bank, self._targets()
        module, late = split_late(parts.step, parts.params, [targets.get(name) for name in self._names])
        labels = traced.inputs[traced.params + traced.visit :][: traced.labels]
        with torch.no_grad():
            terms = list(parts.labels(*self._constants, *labels))
        self.term_bytes = sum(term.numel() * term.element_size() for term in terms)
        first = parts.params + parts.constants
        inputs = [*bank.params.values(), *self._constants, *terms, self.x]
        plan = Plan(module, inputs, moving=range(first, first + parts.terms))
        outputs = plan.emit()
        early = [name for name, how in zip(self._names, late, strict=True) if how is None]
        gradients = dict(zip(early, outputs, strict=False))
        if not bank.sgd:
            return plan.finish([plan.argument(gradients[name]) for name in self._names], [])
        products = _with_values(late, outputs[len(early) :])
        found = dict(zip(self._names, products, strict=True))
        numbers: list[str] = []
        for index, (settings, names) in enumerate(bank.groups):
            members = [
                Member(bank.params[name], bank.velocities.get(name), gradients.get(name), found[name])
                for name in names
                if name in found
            ]
            numbers += emit_sgd(plan, index, sgd_settings(settings), members)
        return plan.finish([], numbers)

    def _targets(self) -> Params:
        """Name what a product may be added to instead of making a gradient."""
        if not self._bank.sgd:
            return {}
        return {
            name: (self._bank.velocities if settings["momentum"] else self._bank.params)[name]
            for settings, names in self._bank.groups
            for name in names
            if not (settings["momentum"] and settings["nesterov"])
        }


def _with_values(late: list[Late | None], factors: list[fx.Node]) -> list[Late | None]:
    """Replace the factors of late products by the nodes that the plan knows."""
    rest = iter(factors)
    return [None if how is None else Late(how.target, next(rest), next(rest)) for how in late]
