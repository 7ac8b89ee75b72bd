"""Measure how far a fast answer is from the plain one, and whether rounding explains the gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flsel.params import Params

# Largest distance, in lengths of a tensor's update, that rounding is taken to explain without a closer look,
# by the precision of the arithmetic (benchmarks/self-check.md has what was measured).
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}
# A tensor that hardly moves is compared with this share of the whole model's update.
_SHARE = 1e-4
# Rounding is taken to move an answer at most so many times as far as a start that is moved by this share.
_MARGIN = 3.0
_MOVES = {torch.float64: 2**-42, torch.float32: 2**-13, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@dataclass(frozen=True)
class Gap:
    """The largest distance of two answers.

    Attributes:
        size: In lengths of the plain answer, of an update for example.
        tolerance: Largest size that rounding is taken to explain.
        where: Name of the tensor.
    """

    size: float
    tolerance: float
    where: str


def tolerance(dtype: torch.dtype) -> float:
    """Return the distance in lengths of an update that rounding explains, of arithmetic in a precision."""
    return _TOLERANCES.get(dtype, _TOLERANCES[torch.float32])


def answer_gap(
    plain: Params, apart: Params, units: Params | None, dtype: torch.dtype, sensitivity: Callable[[], Params]
) -> Gap | None:
    """Judge how far a fast answer is from the plain one, tensor by tensor.

    Where it is further away than the tolerance, the plain way tells how sensitive the answer is. Rounding
    alone may move networks with kinks (ReLU, max pooling) by some per cent: seldom, and then at once. A start
    that is moved by many units in the last place meets such a kink in nearly every visit.

    Args:
        plain: The plain answer: an update, a gradient, a loss.
        apart: The fast answer less the plain one.
        units: Tensors in whose last place both answers were rounded; None if in their own.
        dtype: Precision of the arithmetic.
        sensitivity: Returns how far the plain answer moves when its model is :func:`perturbed`.

    Returns:
        The largest distance, or None if rounding explains it.
    """
    allowed, floor = tolerance(dtype), _units(plain if units is None else units)
    lengths, distance = _lengths(plain), _lengths(apart)
    diverged = not bool(torch.isfinite(lengths).all())
    if diverged and not bool(torch.isfinite(_lengths(_sum(plain, apart))).all()):
        return None  # both did, and no such number counts
    scale = lengths + _SHARE * lengths.square().sum().sqrt()
    if not diverged and bool((distance <= allowed * scale + floor).all()):
        return None
    sensitive = _lengths(sensitivity())
    if diverged or not bool(torch.isfinite(sensitive).all()):
        explained = not diverged  # rounding decides whether a step overflows
    else:
        explained = bool((distance <= allowed * scale + floor + _MARGIN * sensitive).all())
    if explained:
        return None
    share = ((distance - floor) / scale).nan_to_num(nan=torch.inf)
    worst = int(share.argmax())
    return Gap(float(share[worst]), allowed, list(plain)[worst])


def subtract(one: Params, other: Params) -> Params:
    """Subtract a model from another."""
    return {name: value - other[name] for name, value in one.items()}


def _sum(one: Params, other: Params) -> Params:
    return {name: value + other[name] for name, value in one.items()}


def perturbed(start: Params, dtype: torch.dtype) -> Params:
    """Move all numbers of a model up or down by a share that is small, and many times that of rounding."""
    generator = torch.Generator().manual_seed(0)
    share = _MOVES.get(dtype, _MOVES[torch.float32])
    found = {}
    for name, value in start.items():
        signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1)
        found[name] = value + value * signs.to(value) * share
    return found


def _units(model: Params) -> Tensor:
    """Return one unit in the last place of each tensor's numbers, by length, float64 ``[tensors]``."""
    sizes = torch.tensor([torch.finfo(value.dtype).eps for value in model.values()], dtype=torch.float64)
    return _lengths(model) * sizes


def _lengths(model: Params) -> Tensor:
    """Return the length of each tensor of a model, float64 ``[tensors]`` on the CPU."""
    # Apple's GPUs have no float64.
    values = (value.cpu() if value.device.type == "mps" else value for value in model.values())
    return torch.stack([torch.linalg.vector_norm(value, dtype=torch.float64) for value in values]).cpu()
