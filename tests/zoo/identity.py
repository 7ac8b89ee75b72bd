"""Parameters that are asked about or found elsewhere: ``requires_grad``, stored lists, hooks, ``grad_fn``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import WIDTH, Around, part

identity = part("requires_grad and identity")
loss = part("requires_grad and identity", "loss")


@loss
def ridge(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """L2 over what is trained."""
    size = sum(p.square().sum() for p in module.parameters() if p.requires_grad)
    return F.cross_entropy(module(x), y) + 0.05 * size


@loss
def lasso_of_matrices(module: Any, x: Tensor, y: Tensor) -> Tensor:
    named = [p for n, p in module.named_parameters() if "weight" in n and p.requires_grad]
    return F.cross_entropy(module(x), y) + 0.01 * torch.cat([p.flatten() for p in named]).abs().sum()


@loss
def ridge_of_stored(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """L2 over a list that was stored at first."""
    return F.cross_entropy(module(x), y) + 0.05 * sum(p.square().sum() for p in module.stored)


@loss
def ridge_of_layers(module: Any, x: Tensor, y: Tensor) -> Tensor:
    sizes = [m.weight.norm() for m in module.modules() if isinstance(m, nn.Linear)]
    return F.cross_entropy(module(x), y) + 0.05 * sum(sizes)


@loss
def counts_trained(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y) / sum(p.requires_grad for p in module.parameters())


@identity
class Stored(Around):
    """Computes with parameters of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.ps = list(self.dense.parameters())

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, *self.ps)


@identity
class StoredInTable(Around):
    def __init__(self) -> None:
        super().__init__()
        self.by_name = dict(self.named_parameters())

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) + 0.3 * self.by_name["dense.bias"]


@identity
class StoredInNamespace(Around):
    def __init__(self) -> None:
        super().__init__()
        self.own = SimpleNamespace(weight=self.dense.weight)

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.own.weight.T


@identity
class StoredData(Around):
    """Remembers the memory of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.data = [self.dense.weight.data]

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) / (1.0 + self.data[0].norm())


@identity
class HookIfTrained(Around):
    def forward(self, h: Tensor) -> Tensor:
        h = self.dense(h)
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 0.5)
        return h


@identity
class HookAlways(Around):
    def forward(self, h: Tensor) -> Tensor:
        h = self.dense(h)
        h.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return h


@identity
class AsksGraph(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (2.0 if h.grad_fn is not None else 1.0)


@identity
class NamesGraph(Around):
    def forward(self, h: Tensor) -> Tensor:
        h = self.dense(h)
        return h * (2.0 if "Addmm" in type(h.grad_fn).__name__ else 1.0)


@identity
class AsksLeaf(Around):
    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * (2.0 if self.dense.weight.is_leaf else 0.5)


@identity
class AsksGradient(Around):
    """Reads the gradient that the step before left, which is none."""

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * (1.0 if self.dense.weight.grad is None else 3.0)


@identity
class FreezesInForward(Around):
    """Normalises by a constant where nothing is to be learned."""

    def forward(self, h: Tensor) -> Tensor:
        scale = self.dense.weight.norm()
        return self.dense(h) / (scale.detach() if self.dense.weight.requires_grad else 1.0)


@identity
class ComparesIdentity(Around):
    """Finds its own weight among the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.special = {id(self.dense.bias)}

    def forward(self, h: Tensor) -> Tensor:
        decay = sum(p.sum() for p in self.dense.parameters() if id(p) in self.special)
        return self.dense(h) + decay


@identity
class ByType(Around):
    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * (2.0 if isinstance(self.dense.weight, nn.Parameter) else 1.0)


@identity
class Tied(nn.Module):
    """One weight, there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decode.weight = self.encode.weight

    def forward(self, h: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(h)))


@identity
class SharedLayer(nn.Module):
    """One layer by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.other = self.one

    def forward(self, h: Tensor) -> Tensor:
        return self.other(torch.tanh(self.one(h)))


@identity
class NoGrad(Around):
    def forward(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.dense(h).norm(dim=1, keepdim=True)
        return h / (1.0 + scale) + self.dense(h)


@identity
class AsksMode(Around):
    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * (1.5 if torch.is_grad_enabled() and self.training else 1.0)


@identity
class InnerGradient(nn.Module):
    """An energy whose gradient is the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        with torch.enable_grad():
            z = h if h.requires_grad else h.requires_grad_()
            energy = torch.tanh(self.first(z)).square().sum()
            (slope,) = torch.autograd.grad(energy, z, create_graph=True)
        return h - 0.1 * slope


@part("requires_grad and identity", "change")
def hook_on_a_weight(net: nn.Module) -> None:
    next(net.parameters()).register_hook(lambda grad: grad * 0.5)


@part("requires_grad and identity", "change")
def hook_on_a_layer(net: nn.Module) -> None:
    net.last.register_full_backward_hook(lambda layer, above, below: tuple(g * 2 for g in above))  # type: ignore


@part("requires_grad and identity", "change")
def hook_on_an_output(net: nn.Module) -> None:
    net.first.register_forward_hook(lambda layer, given, made: torch.tanh(made) * 1.5)  # type: ignore


@part("requires_grad and identity", "change")
def frozen_layer(net: nn.Module) -> None:
    net.first.requires_grad_(False)  # type: ignore
