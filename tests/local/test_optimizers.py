"""Optimizers: what can be written out, and that torch's own methods are back afterwards."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from test_trainers import SPECS, largest_gap, make_program, starts_of, train
from torch import optim

from flsel.errors import UserError
from flsel.local.compiled.refusals import why_not_compiled
from flsel.local.optimizers import rate_of
from flsel.local.sequential import SequentialTrainer
from flsel.local.torch_internals import without_compiler

LR = 0.3


def test_sgd_written_out_is_the_same_bits() -> None:
    start, delta = torch.randn(2, 1000)
    param = torch.nn.Parameter(start.clone())
    param.grad = -delta
    optimizer = optim.SGD([param], lr=LR)
    rate = rate_of(optimizer)
    optimizer.step()
    assert rate == LR
    assert torch.equal(param, start.add(delta, alpha=rate))


@pytest.mark.parametrize(
    "make",
    [
        optim.Adam,
        partial(optim.SGD, momentum=0.9),
        partial(optim.SGD, weight_decay=0.1),
        partial(optim.SGD, maximize=True),
        type("Own", (optim.SGD,), {}),
        lambda params, lr: optim.SGD([{"params": [p]} for p in params], lr=lr),
    ],
)
def test_what_does_more_steps_itself(make: Any) -> None:
    assert rate_of(make([torch.nn.Parameter(torch.zeros(2)) for _ in range(2)], lr=LR)) is None


def test_what_is_hooked_steps_itself() -> None:
    optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=LR)
    optimizer.register_step_pre_hook(lambda *given: None)
    assert rate_of(optimizer) is None


def test_torchs_methods_are_back_after_an_error() -> None:
    before = dict(vars(optim.Optimizer))
    with pytest.raises(ValueError, match="learning rate"), without_compiler():
        optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=-1.0)
    assert dict(vars(optim.Optimizer)) == before


class Eager(optim.SGD):
    """Makes its state where it is made itself, as Adagrad of older releases of torch does."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        for param in (param for group in self.param_groups for param in group["params"]):
            self.state[param] = {"sum": torch.full_like(param, 0.1), "steps": 0}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                state["steps"] += 1
                state["sum"] += param.grad**2
                param -= group["lr"] / state["steps"] * param.grad / state["sum"].sqrt()


def test_every_visit_begins_with_the_state_that_an_optimizer_is_made_with() -> None:
    program = make_program(partial(Eager, lr=LR), SPECS["epochs"])
    starts = starts_of(program, 1)
    trainer = SequentialTrainer()
    first, again = (train(trainer, program, starts, [3], 2) for _ in range(2))
    assert (
        largest_gap(first, again)
        == largest_gap(first, train(SequentialTrainer(), program, starts, [3], 2))
        == 0
    )
    assert largest_gap(first, starts) > 0


class Counting(optim.SGD):
    """Its steps get smaller, by a list that it keeps."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.past: list[float] = []

    def step(self, closure: Any = None) -> Any:
        self.past.append(self.param_groups[0]["lr"])
        self.param_groups[0]["lr"] = LR / len(self.past)
        return super().step(closure)


class Halving(optim.SGD):
    """Keeps half of a gradient for the next step."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad.mul_(0.5)


def halving(params: Any, lr: float) -> optim.Optimizer:
    made = optim.SGD(params, lr)
    made.zero_grad = partial(Halving.zero_grad, made)  # type: ignore[method-assign,arg-type]
    return made


@pytest.mark.parametrize("make", [Counting, Halving, halving])
def test_every_visit_begins_with_an_optimizer_as_it_was_made(make: Any) -> None:
    program = make_program(partial(make, lr=LR), SPECS["epochs"])
    assert why_not_compiled(program) is not None
    starts = starts_of(program, 2)
    together = train(SequentialTrainer(), program, starts, [3, 1], 0)
    fresh = make_program(partial(make, lr=LR), SPECS["epochs"])
    alone = train(SequentialTrainer(), fresh, {n: v[1:] for n, v in starts.items()}, [1], 0)
    assert largest_gap({n: v[1:] for n, v in together.items()}, alone) == 0


def lookahead(params: Any, lr: float) -> optim.Optimizer:
    made = optim.SGD(params, lr)
    slow = [param.detach().clone() for group in made.param_groups for param in group["params"]]
    made.register_step_post_hook(lambda *given: [value.mul_(0.5) for value in slow])
    return made


def test_an_optimizer_that_copies_the_initial_model_is_refused() -> None:
    with pytest.raises(UserError, match="configure_optimizers of Classifier: SGD copies parameters when"):
        make_program(partial(lookahead, lr=LR), SPECS["epochs"])
