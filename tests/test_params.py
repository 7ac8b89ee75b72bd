"""Stacks of models: rows, sums, norms and what is not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flsel.params import (
    called,
    finite_rows,
    flatten,
    inner_products,
    model_bytes,
    repeated,
    replaced,
    row,
    rows,
    squared_norms,
    stacked,
    weighted_sum,
)


def some(count: int = 4) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(count, 3, 2, generator=draw, dtype=torch.float64),
        "bias": torch.randn(count, 3, generator=draw, dtype=torch.float64),
    }


def test_a_stack_is_its_rows() -> None:
    stack = some()
    again = stacked([row(stack, index) for index in range(4)])
    assert all(torch.equal(again[name], value) for name, value in stack.items())
    same = repeated(row(stack, 2), 3)
    assert all(torch.equal(value[1], stack[name][2]) for name, value in same.items())


def test_rows_are_taken_and_put_back() -> None:
    stack, where = some(), torch.tensor([1, 3])
    assert rows(stack, torch.arange(4)) is stack
    back = replaced(stack, [1, 3], {name: value + 1 for name, value in rows(stack, where).items()})
    for name, value in stack.items():
        assert torch.equal(back[name][[0, 2]], value[[0, 2]])
        assert torch.equal(back[name][where], value[where] + 1)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_with_one_number_that_is_not_finite_is_found(poison: float) -> None:
    stack = some()
    stack["bias"][2, 1] = poison
    assert finite_rows(stack).tolist() == [0, 1, 3]
    assert not np.isfinite(squared_norms(stack)[2])


def test_sums_and_products_are_those_of_the_flat_vectors() -> None:
    stack, weights = some(), torch.tensor([0.5, 0.0, 2.0, 1.0], dtype=torch.float64)
    flat = flatten(stack)
    np.testing.assert_allclose(inner_products(stack), (flat @ flat.T).numpy(), rtol=1e-12)
    np.testing.assert_allclose(squared_norms(stack), flat.square().sum(1).numpy(), rtol=1e-12)
    total = flatten({name: value[None] for name, value in weighted_sum(stack, weights).items()})
    torch.testing.assert_close(total[0], weights @ flat)


def test_running_statistics_are_no_parameters() -> None:
    stack = some() | {"norm.running_mean": torch.full((4, 2), 9.0, dtype=torch.float64)}
    assert flatten(stack).shape == (4, 9)
    np.testing.assert_array_equal(squared_norms(stack), squared_norms(some()))
    assert model_bytes(row(stack, 0)) == 11 * 8


class _Tied(nn.Module):
    """A layer by two names, a weight in two layers, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.again, self.other.weight = self.first, self.first.weight
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.other(self.again(self.first(x)).tanh()) + self.shift
        return out


def test_a_module_called_with_other_tensors_keeps_its_own() -> None:
    module, x = _Tied(), torch.randn(2, 3)
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    assert list(own) == ["first.weight", "first.bias", "other.bias", "shift"]
    model = {name: torch.randn_like(value) for name, value in own.items()}
    weight, bias, other, shift = model.values()
    hidden = (((x @ weight.T + bias) @ weight.T + bias).tanh() @ weight.T + other) + shift
    for _ in range(2):
        torch.testing.assert_close(called(module, model, x), hidden)
        assert all(value is own[name] for name, value in module.named_parameters())
    assert isinstance(module.first.weight, nn.Parameter)
    assert module.shift is own["shift"]
