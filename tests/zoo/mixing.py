"""Examples of a batch that meet, in the forward pass or in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.registry import WIDTH, Around, part

mixes = part("examples that mix")


class _Balanced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h)
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (h,) = ctx.saved_tensors
        return grad + 0.1 * h.mean(0)


class _BalancedByVmap(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (h,) = ctx.saved_tensors
        return grad + 0.1 * h.mean(0)


class _Centred(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad - grad.mean(0)


@mixes
class Balances(Around):
    def forward(self, h: Tensor) -> Tensor:
        return _Balanced.apply(self.dense(h))


@mixes
class BalancesUnderVmap(Around):
    def forward(self, h: Tensor) -> Tensor:
        return _BalancedByVmap.apply(self.dense(h))


@mixes
class CentresGradients(Around):
    def forward(self, h: Tensor) -> Tensor:
        return _Centred.apply(self.dense(h))


@mixes
class StraightThroughStatistics(nn.Module):
    """The value is the example's own, the gradient the batch's."""

    def forward(self, h: Tensor) -> Tensor:
        normed = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
        return normed + (h - normed).detach()


@mixes
class ByHand(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


@mixes
class BelowLayerScale(Around):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), 1e-6))

    def forward(self, h: Tensor) -> Tensor:
        normed = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
        return h + self.gamma * self.dense(normed)


@mixes
class BelowZero(Around):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.gate * self.dense(h - h.mean(0))


@mixes
class HookCentres(Around):
    def forward(self, h: Tensor) -> Tensor:
        h = self.dense(h)
        if torch.is_grad_enabled():
            h.register_hook(lambda grad: grad - grad.mean(0))
        return h


@mixes
class Contrasts(nn.Module):
    """Attention among the examples of a batch."""

    def forward(self, h: Tensor) -> Tensor:
        return h + (h @ h.T).softmax(-1) @ h * 0.3


@mixes
class MixesUp(nn.Module):
    """Adds the example before."""

    def forward(self, h: Tensor) -> Tensor:
        return 0.8 * h + 0.2 * h.roll(1, dims=0)


@mixes
class ByLargest(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h / h.abs().max().detach().clamp(min=1e-3)


@mixes
class ByCount(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * h.shape[0] ** 0.5


@mixes
class GhostNorm(nn.Module):
    """Normalises each half of a batch."""

    def forward(self, h: Tensor) -> Tensor:
        halves = [part_ - part_.mean(0) for part_ in h.chunk(2)]
        return torch.cat(halves)


@mixes
class Whitens(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        centred = h - h.mean(0)
        covariance = centred.T @ centred / len(h) + 0.1 * torch.eye(WIDTH, dtype=h.dtype)
        return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), centred.T, upper=False).T


@mixes
class Ranks(nn.Module):
    """Scales by an example's rank in its batch."""

    def forward(self, h: Tensor) -> Tensor:
        rank = h[:, 0].argsort().argsort().to(h.dtype)
        return h * (1 + 0.1 * rank)[:, None]


@part("examples that mix", "image")
class ImagesByHand(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        mean, var = h.mean((0, 2, 3), keepdim=True), h.var((0, 2, 3), keepdim=True, unbiased=False)
        return (h - mean) / (var + 1e-5).sqrt()


@part("examples that mix", "image")
class ImageShift(nn.Module):
    """Shifts channels in time, with examples for frames."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([h[:, :1].roll(1, 0), h[:, 1:]], dim=1)
