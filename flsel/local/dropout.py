"""Dropout whose masks are a function of (seed, round, client, step), with whomever a client trains.

A generator would have to be asked in one order. A hash of counters can be asked for any entry of any mask:
client by client, for a stack of clients, and for many steps at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from flsel.local.torch_internals import beneath_vmap
from flsel.rng import torch_seed

# Odd constants of Steele, Lea and Flood's SplitMix64 (2014) as signed numbers, in which torch multiplies.
_GOLDEN, _FIRST, _SECOND = (
    value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# SELU's limit at minus infinity, which alpha dropout puts in the place of what it drops.
_SELU = -1.7580993408473766


def visit_key(seed: int, round: int, client: int) -> int:
    """Return the number that a visit's masks derive from, and torch's seed for every other draw."""
    return torch_seed(seed, "layers", round, client)


def step_keys(visits: Sequence[int], steps: range) -> Tensor:
    """Return the keys of some steps of n visits, int64 ``[S, n]``.

    Args:
        visits: Their keys.
        steps: Numbers of the steps in the visit, >= 0.
    """
    counts = torch.arange(steps.start, steps.stop)[:, None]
    return _mixed(torch.tensor(list(visits), dtype=torch.int64) + counts * _GOLDEN)


@final
class Masks(TorchFunctionMode):
    """Lets dropout take the masks of one local step of one client; works inside ``torch.func.vmap`` too.

    The entry of a mask depends on the key, on how many dropouts the step ran before, and on its own
    coordinates; not on the sizes of the tensor, so that padding a batch changes no mask. Dropout inside
    torch's attention or under ``torch.utils.checkpoint``, and whatever else draws, is left to torch's
    generator. An embedding's padding, which ``vmap`` would train, is masked on the way.

    Args:
        key: The step's key, int64 ``[]``.

    Attributes:
        used: Dropouts that were run.
        seen: Whether a dropout was called, even if it was off.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self._key = key
        self.used, self.seen = 0, False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kind = _KINDS.get(func)
        if kind is not None:
            self.seen = True
            x, p, training, inplace = _arguments(*args, **(kwargs or {}))
            if training and 0 < p <= 1 and x.is_floating_point() and not _runs_again():
                value = self._drop(kind, x, p)
                return x.copy_(value) if inplace or kind.inplace else value
        if func is functional.embedding:
            args, kwargs = _unpadded(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _drop(self, kind: _Kind, x: Tensor, p: float) -> Tensor:
        self.used += 1
        if p == 1:
            return x * 0.0
        kept = self._kept(kind.shape(x), p, last=x.ndim == 4 and x.stride(1) == 1).to(x.dtype)
        if not kind.alpha:
            return x * (kept * (1 / (1 - p)))
        # Klambauer et al. (2017): mean and variance stay as they are.
        scale = 1 / math.sqrt((_SELU**2 * p + 1) * (1 - p))
        return x * (kept * scale) + (_SELU * scale) * ((1 - p) - kept)

    def _kept(self, shape: Sequence[int], p: float, last: bool) -> Tensor:
        """Tell which entries are kept; ``last`` stores the channels of images last."""
        dims = [0, 2, 3, 1] if last and len(shape) == 4 else list(range(len(shape)))
        sums = _mixed(self._key + ((self.used * _GOLDEN + 2**63) % 2**64 - 2**63))
        for dim in dims:
            sums = sums.unsqueeze(-1) + _salts(dim, shape[dim], self._key.device)
        kept = _mixed(sums) >= max(round((p - 0.5) * 2**64), -(2**63))
        return kept.permute(0, 3, 1, 2) if dims[1:2] == [2] else kept


class _Kind(NamedTuple):
    """Which entries or channels a function drops, and the value that replaces them."""

    channels: bool = False
    alpha: bool = False
    unbatched: int = 0  # number of dimensions at which the one of examples is missing
    inplace: bool = False

    def shape(self, x: Tensor) -> Sequence[int]:
        """Return the shape of its masks."""
        if not self.channels:
            return x.shape
        own = 1 if x.ndim == self.unbatched else 2
        return [*x.shape[:own], *[1] * (x.ndim - own)]


_KINDS: dict[Callable[..., Any], _Kind] = {
    functional.dropout: _Kind(),
    functional.dropout1d: _Kind(channels=True, unbatched=2),
    functional.dropout2d: _Kind(channels=True),
    functional.dropout3d: _Kind(channels=True, unbatched=4),
    functional.alpha_dropout: _Kind(alpha=True),
    functional.feature_alpha_dropout: _Kind(channels=True, alpha=True),
    torch.dropout: _Kind(),
    torch.dropout_: _Kind(inplace=True),
    torch.feature_dropout: _Kind(channels=True),
    torch.feature_dropout_: _Kind(channels=True, inplace=True),
    torch.alpha_dropout: _Kind(alpha=True),
    torch.alpha_dropout_: _Kind(alpha=True, inplace=True),
    torch.feature_alpha_dropout: _Kind(channels=True, alpha=True),
    torch.feature_alpha_dropout_: _Kind(channels=True, alpha=True, inplace=True),
}


def _arguments(
    input: Tensor, p: float, training: bool = True, inplace: bool = False, *, train: bool = True
) -> tuple[Tensor, float, bool, bool]:
    """Read the arguments of any of these functions."""
    return input, p, training and train, inplace


def _unpadded(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    *rest: Any,
    **options: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Mask the padding row of a stack of embeddings: under ``vmap`` torch would train it.

    Returns:
        Arguments of the embedding function; those of a single model are left as they are.
    """
    if padding_idx is None or max_norm is not None or beneath_vmap(weight) is weight:
        return (input, weight, padding_idx, max_norm, *rest), options
    rows = torch.arange(len(weight), device=weight.device)[:, None]
    weight = torch.where(rows == padding_idx % len(weight), weight.detach(), weight)
    return (input, weight, None, None, *rest), options


def _runs_again() -> bool:
    """Tell whether the backward pass may repeat what runs now, and would not know its masks."""
    if not torch.is_grad_enabled():
        return True
    try:  # torch refuses to disable hooks on saved tensors, which checkpointing sets, while there are some
        with disable_saved_tensors_hooks(""):
            return False
    except RuntimeError:
        return True


def _mixed(values: Tensor) -> Tensor:
    """Spread a change of any bit over the upper bits; shifts carry the sign, which is as good here."""
    values = (values ^ (values >> 32)) * _FIRST
    return (values ^ (values >> 29)) * _SECOND


@functools.lru_cache(maxsize=256)
def _salts(dim: int, size: int, device: torch.device) -> Tensor:
    """Return a number for each coordinate of a dimension, int64 ``[size]``: SplitMix64's stream ``dim``."""
    values = np.uint64(dim << 40) + np.arange(1, size + 1, dtype=np.uint64)
    values = values * np.uint64(_GOLDEN % 2**64)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor % 2**64)
    return torch.from_numpy((values ^ (values >> np.uint64(31))).view(np.int64)).to(device)
