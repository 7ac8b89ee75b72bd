"""Optimizers: what can be written out, and that torch's own methods are back afterwards."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import optim

from flsel.local.optimizers import rate_of, without_compiler

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
