"""Updates as rows of numbers, their norms, and compression whose error a client adds to its next update."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flsel.params import Params, height
from flsel.selector.client_rows import store
from flsel.updates.update_step import Compress


def as_rows(stack: Params) -> Tensor:
    """Lay the updates of a stack out as rows, ``[K, P]``, on their device."""
    return torch.cat([value.reshape(len(value), -1) for value in stack.values()], dim=1)


def as_stack(table: Tensor, like: Params) -> Params:
    """Return rows of numbers ``[K, P]`` as a stack with the names and shapes of another."""
    parts = torch.split(table, [value[0].numel() for value in like.values()], dim=1)
    return {
        name: part.reshape(len(table), *value.shape[1:])
        for part, (name, value) in zip(parts, like.items(), strict=True)
    }


def scaled(stack: Params, factors: Tensor) -> Params:
    """Multiply each update of a stack by its factor, float64 ``[K]``."""
    return {
        name: value * factors.to(value).view(-1, *[1] * (value.ndim - 1)) for name, value in stack.items()
    }


def norms(stack: Params) -> Tensor:
    """Return the Euclidean norm of each update in double precision, float64 ``[K]``, on the CPU."""
    squares = [value.reshape(height(stack), -1).double().square().sum(dim=1) for value in stack.values()]
    return sum(squares[1:], start=squares[0]).sqrt().cpu()


def normal(like: Params, rng: np.random.Generator) -> Params:
    """Draw standard normal numbers in the shapes of a model."""
    # NumPy draws on the CPU, so that all devices and trainers get the same numbers.
    return {
        name: torch.from_numpy(rng.standard_normal(tuple(value.shape))).to(value)
        for name, value in like.items()
    }


def with_feedback(
    memory: tuple[Tensor, Params], clients: Tensor, deltas: Params, compress: Compress
) -> Params:
    """Compress updates plus the clients' errors so far, and keep the new errors, in place.

    Source: F. Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014.

    Args:
        memory: What was not sent yet, as slots and rows (:mod:`flsel.selector.client_rows`).
        clients: Ids of K distinct clients.
        deltas: Their updates.
        compress: What is sent.
    """
    slots, errors = memory
    owed = as_rows(deltas) + as_rows({n: errors[n][slots[clients.to(slots.device)]] for n in deltas})
    sent = compress(owed)
    store(slots, errors, clients, as_stack(owed - sent, deltas))
    return as_stack(sent, deltas)
