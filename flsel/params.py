"""Models as tensors by name, and stacks of them: every tensor has a leading ``[K]``, one row a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Params = dict[str, Tensor]
"""A model, a gradient or an update: tensors by the names of ``module.named_parameters()`` and buffers."""

_BLOCK = 2**18  # Numbers converted to float64 at a time: their copies stay in the cache.
_RUNNING = ("running_mean", "running_var")


def height(stack: Params) -> int:
    """Return K, the number of models in a stack."""
    return len(next(iter(stack.values())))


def repeated(model: Params, times: int) -> Params:
    """Return a stack of one model, a view: not to be written to."""
    return {name: value.expand(times, *value.shape) for name, value in model.items()}


def stacked(models: Sequence[Params]) -> Params:
    """Copy models with the same names and shapes, at least one, into a stack."""
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def padded_rows(tables: Sequence[Params]) -> Params:
    """Stack tables with the same names, whose tensors may differ in length, zeros after the shorter ones."""
    named = {name: [table[name] for table in tables] for name in tables[0]}
    return {name: nn.utils.rnn.pad_sequence(values, batch_first=True) for name, values in named.items()}


def row(stack: Params, index: int) -> Params:
    """Return one model of a stack, a view."""
    return {name: value[index] for name, value in stack.items()}


def rows(stack: Params, index: Tensor) -> Params:
    """Return some models of a stack.

    Args:
        stack: K models.
        index: Their rows, int64, ascending and distinct; with all of them the stack itself is returned.
    """
    if len(index) == height(stack):
        return stack
    return {name: value[index.to(value.device)] for name, value in stack.items()}


def replaced(stack: Params, index: Sequence[int], models: Params) -> Params:
    """Return a stack with other models in the rows ``index``, ascending and distinct."""
    where = torch.tensor(index, dtype=torch.int64)
    return {n: value.index_copy(0, where.to(value.device), models[n]) for n, value in stack.items()}


def whole(numbers: Sequence[int]) -> Tensor:
    """Return whole numbers as a tensor, int64; NumPy reads a short list in a third of torch's time."""
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def finite_rows(stack: Params) -> Tensor:
    """Return the rows that are finite everywhere, int64, ascending, on the CPU."""
    # One number, so that a device is waited for once; a sum is finite only if all of its terms are.
    every = [value.sum(dtype=torch.float32) for value in stack.values()]
    if math.isfinite(float(sum(every[1:], every[0]))):
        return torch.arange(height(stack))
    # 0 times infinity or NaN is NaN: a quarter of isfinite's time, which would make three copies.
    sums = [(value * 0).reshape(len(value), -1).sum(dim=1).float() for value in stack.values()]
    return (sum(sums[1:], sums[0]) == 0).cpu().nonzero().squeeze(1)


def weighted_sum(stack: Params, weights: Tensor) -> Params:
    """Sum the models times their weights ``[K]``; the weights are rounded to the models' precision."""
    total = {}
    for name, value in stack.items():
        row = weights.to(value)[None]
        total[name] = torch.mm(row, value.reshape(len(value), -1)).view(value.shape[1:])
    return total


def inner_products(stack: Params) -> np.ndarray:
    """Return the inner products of all pairs of rows, float64 ``[K, K]``, without running statistics."""
    products = (block @ block.T for block in _blocks(stack))
    total = next(products)
    for product in products:
        total += product
    return total.cpu().numpy()


def squared_norms(stack: Params) -> np.ndarray:
    """Return the squared Euclidean norm of each row, float64 ``[K]``, without running statistics.

    Not finite where the row is not.
    """
    return torch.stack([block.square().sum(1) for block in _blocks(stack)]).sum(0).cpu().numpy()


def flatten(stack: Params, origin: Params | None = None) -> Tensor:
    """Lay each model of a stack out as a row, on the CPU.

    Args:
        stack: n models, each tensor ``[n, ...]``.
        origin: Model to subtract, or None.

    Returns:
        ``[n, |theta|]`` in the stack's precision; running statistics of normalisation layers are left out.
    """
    parts = []
    for name, value in stack.items():
        if not is_running(name):
            moved = value if origin is None else value - origin[name]
            parts.append(moved.detach().reshape(len(value), -1).cpu())
    return torch.cat(parts, dim=1)


def _own(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """List the parameters and buffers that a layer itself has."""
    yield from layer.named_parameters(recurse=False, remove_duplicate=False)
    yield from layer.named_buffers(recurse=False, remove_duplicate=False)


def places(module: nn.Module) -> dict[str, str]:
    """Return every place of a module's parameters and buffers, each once, with the name that each goes by.

    A tied weight has several places. A layer that goes by two names has one: what ``torch.func`` replaces
    there twice it does not put back.
    """
    names = {id(value): name for name, value in (*module.named_parameters(), *module.named_buffers())}
    return {
        f"{path}.{leaf}" if path else leaf: names[id(value)]
        for path, layer in module.named_modules()
        for leaf, value in _own(layer)
    }


def called(module: nn.Module, model: Params, *inputs: Any, **options: Any) -> Any:
    """Call a module with the tensors of a model in place of its own."""
    named = {place: model[name] for place, name in places(module).items() if name in model}
    return torch.func.functional_call(module, named, inputs, options, tie_weights=False)


def is_running(name: str) -> bool:
    """Tell whether a model's tensor is a running statistic of a normalisation layer: no parameter."""
    return name.rpartition(".")[2] in _RUNNING


def model_bytes(params: Params) -> int:
    """Return the size of a model on the wire, in bytes."""
    return sum(value.numel() * value.element_size() for value in params.values())


def _blocks(stack: Params) -> Iterator[Tensor]:
    """Yield the parameters' columns in order, some at a time, float64 ``[K, columns]``."""
    for name, value in stack.items():
        if is_running(name):
            continue
        columns = max(1, _BLOCK // max(len(value), 1))
        for block in torch.split(value.reshape(len(value), -1), columns, dim=1):
            yield block.double()
