"""Recomputation, aliases, functions of one's own, parametrisations, and gradients within a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from zoo.registry import IMAGE, WIDTH, Around, part

again = part("recomputation")
alias = part("aliases")
own = part("functions of one's own")
inner = part("gradients within a step", "loss")


@again
class Checkpointed(Around):
    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(lambda z: torch.tanh(self.dense(z)), h, use_reentrant=False)


@again
class CheckpointedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False).tanh()
        return h


@again
class CheckpointedWithDropout(Around):
    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(lambda z: F.dropout(self.dense(z), 0.2, self.training), h, use_reentrant=False)


@again
class CheckpointedReentrant(Around):
    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(self.dense, h, use_reentrant=True)


@part("recomputation", "image")
class CheckpointedImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(IMAGE[0], IMAGE[0], 1)

    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(lambda z: self.conv(z).relu(), h, use_reentrant=False)


@part("recomputation", "image")
class CheckpointedImagesReentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(IMAGE[0], IMAGE[0], 1)

    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(self.conv, h, use_reentrant=True)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, layer: nn.Module) -> Tensor:
        ctx.layer = layer
        with torch.no_grad():
            a, b = h.chunk(2, dim=1)
            out = torch.cat([a, b + layer(a)], dim=1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        with torch.enable_grad():
            a = out.chunk(2, dim=1)[0].detach().requires_grad_()
            shift = ctx.layer(a)
            torch.autograd.backward(shift, grad[:, WIDTH // 2 :])
        assert a.grad is not None
        return torch.cat([grad[:, : WIDTH // 2] + a.grad, grad[:, WIDTH // 2 :]], dim=1), None


@again
class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH // 2, WIDTH // 2)

    def forward(self, h: Tensor) -> Tensor:
        return _Reversible.apply(h, self.inner)


@alias
class ProductOfParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.a * self.b


@part("aliases", "loss")
def product_in_loss(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y) + (module.last.bias * module.spare).sum()


@part("aliases", "loss")
def square_in_loss(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y) + 0.5 * module.last.bias.square().sum() - module.spare.sum()


@part("aliases", "loss")
def same_gradient_twice(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y) + (module.last.bias + module.spare).sum()


@part("aliases", "loss")
def product_of_matrices(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y) + (module.last.weight @ module.other).trace()


@alias
class ProductOfScalars(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.tensor(0.7))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.a * self.b


@alias
class Factorised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.randn(WIDTH, 2)), nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return h @ (self.left @ self.right)


@alias
class SameTwice(Around):
    def forward(self, h: Tensor) -> Tensor:
        return h @ self.dense.weight @ self.dense.weight.T + self.dense.bias + self.dense.bias


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-0.01, 0.01)


class _Sign(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (h,) = ctx.saved_tensors
        return grad * (h.abs() < 1)


@own
class ClipsGradients(Around):
    def forward(self, h: Tensor) -> Tensor:
        return _Clipped.apply(self.dense(h))


@own
class Binarises(Around):
    def forward(self, h: Tensor) -> Tensor:
        return _Sign.apply(self.dense(h))


@own
class StraightThrough(nn.Module):
    """Quantises; the gradient passes."""

    def forward(self, h: Tensor) -> Tensor:
        return h + ((h * 4).round() / 4 - h).detach()


@own
class QuantisedWeight(Around):
    def forward(self, h: Tensor) -> Tensor:
        weight = self.dense.weight
        scale = weight.detach().abs().mean()
        return F.linear(h, weight + (weight.sign() * scale - weight).detach(), self.dense.bias)


@own
class NearestCode(nn.Module):
    """Looks the nearest code up, as vector quantisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        nearest = torch.cdist(h.detach(), self.codes.detach()).argmin(1)
        code = self.codes[nearest]
        return h + (code - h).detach() + 0.1 * (code - code.detach())


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


@own
class Symmetric(Around):
    def __init__(self) -> None:
        super().__init__()
        parametrize.register_parametrization(self.dense, "weight", _Symmetric())

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h)


@own
class Orthogonal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.utils.parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH), orthogonal_map="cayley")

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h)


@own
class WeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h)


@own
class OldWeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h)


@own
class Pruned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        nn.utils.prune.random_unstructured(self.dense, "weight", 0.3)

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h)


@inner
def gradient_penalty(module: Any, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    value = F.cross_entropy(module(x), y)
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    return value + slope.square().sum()


@inner
def adversarial(module: Any, x: Tensor, y: Tensor) -> Tensor:
    moved = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(module(moved), y), moved)
    return F.cross_entropy(module(x + 0.1 * slope.sign()), y)


@inner
def by_functional(module: Any, x: Tensor, y: Tensor) -> Tensor:
    slope = torch.func.grad(lambda z: F.cross_entropy(module(z), y))(x)
    return F.cross_entropy(module(x), y) + slope.square().sum()


@inner
def per_example_clipped(module: Any, x: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(module(x), y, reduction="none")
    return (losses / losses.detach().clamp(min=1.0)).mean()


@inner
def meta(module: Any, x: Tensor, y: Tensor) -> Tensor:
    named = dict(module.named_parameters())
    slopes = torch.autograd.grad(
        F.cross_entropy(module(x), y), list(named.values()), create_graph=True, allow_unused=True
    )
    moved = {n: p - 0.1 * g for (n, p), g in zip(named.items(), slopes, strict=True) if g is not None}
    return F.cross_entropy(torch.func.functional_call(module, moved, (x,)), y)
