"""A stack of models in fixed memory, with what their optimizer keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from flsel.local.compiled.update import sgd_settings
from flsel.local.learning_rates import scale_lr
from flsel.local.optimizers import groups_of, made_like
from flsel.local.program import Program
from flsel.params import Params


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
