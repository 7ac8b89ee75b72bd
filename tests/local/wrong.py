"""Models that are trained to other parameters once their step is traced, stacked or padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Two linear layers, whose middle is what the others change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, 4]``."""
        logits: Tensor = self.last(self.between(torch.tanh(self.first(x))))
        return logits

    def between(self, h: Tensor) -> Tensor:
        """Change what enters the last layer, ``[B, 8]``."""
        return h


class Asks(Net):
    """Scales what requires a gradient."""

    def between(self, h: Tensor) -> Tensor:
        """Scale by whether the first weight is trained."""
        return h * (2.0 if self.first.weight.requires_grad else 0.5)


class Lists(Net):
    """Keeps its parameters in a list, and computes with them."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = [p for p in self.parameters() if p.requires_grad]

    def between(self, h: Tensor) -> Tensor:
        """Divide by the length of the listed parameters."""
        return h / sum(p.square().sum() for p in self.listed)


class Hooked(Net):
    """Halves gradients where there is one."""

    def between(self, h: Tensor) -> Tensor:
        """Register a hook if a gradient will flow."""
        if h.requires_grad:
            h.register_hook(lambda grad: grad / 2)
        return h


class Leaves(Net):
    """Computes outside torch."""

    def between(self, h: Tensor) -> Tensor:
        """Scale by a number of NumPy's."""
        return h * float(np.abs(h.detach().numpy()).max())


class Unbinds(Net):
    """Writes into views of its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Change some columns in place."""
        x = x.clone()
        for column in x.unbind(1)[:2]:
            column.mul_(2.0)
        x.chunk(2, 1)[1].mul_(3.0)
        x.split(2, 1)[0].zero_()
        return super().forward(x)


class Spectrum(Net):
    """Passes through complex numbers."""

    def between(self, h: Tensor) -> Tensor:
        """Take the power spectrum."""
        z = torch.fft.fft(h)
        return (z * z.conj()).real


class Grows(Net):
    """Has complex decay rates, as state-space layers have."""

    def between(self, h: Tensor) -> Tensor:
        """Multiply by an exponential of complex numbers."""
        return (h * torch.exp(torch.complex(h, h))).imag


class Normalises(Net):
    """Normalises over the batch by hand."""

    def between(self, h: Tensor) -> Tensor:
        """Centre and scale."""
        return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


class Short(Net):
    """Has another path for short batches."""

    def between(self, h: Tensor) -> Tensor:
        """Double the activations of batches below three."""
        return h * 2 if len(h) < 3 else h


class Strided(Net):
    """Reads memory as it lies."""

    def between(self, h: Tensor) -> Tensor:
        """Read the activations with a stride of one."""
        return torch.as_strided(h.contiguous(), (h.shape[0], 8), (1, 1))


class Contiguous(Net):
    """Branches on the layout of its weight."""

    def between(self, h: Tensor) -> Tensor:
        """Double if the weight is contiguous."""
        return h * (2.0 if self.first.weight.is_contiguous() else 1.0)


class Balances(Net):
    """Adds the gradient of a balancing loss in backward."""

    def between(self, h: Tensor) -> Tensor:
        """Let gradients through a function of one's own."""
        return _Balance.apply(h)


class _Balance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h)
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (h,) = ctx.saved_tensors
        return grad + 0.1 * h.mean(0) + 0.0 * h


class Written(Net):
    """Normalises a weight in forward."""

    def between(self, h: Tensor) -> Tensor:
        """Write the weight's data."""
        self.last.weight.data = nn.functional.normalize(self.last.weight.data)
        return h


class Product(Net):
    """Multiplies two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def between(self, h: Tensor) -> Tensor:
        """Scale by the product."""
        return h * (self.a * self.b) + self.a * self.b.detach()


class Traces(Net):
    """Branches on what it was computed from."""

    def between(self, h: Tensor) -> Tensor:
        """Double where there is a graph."""
        return h * (2.0 if h.grad_fn is not None else 1.0)


class Convolves(nn.Module):
    """Convolves with class weights that leave torch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv1d(1, 3, 3), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, 4]``."""
        scale = 1.0 + float(np.abs(x.detach().numpy()).max())
        h: Tensor = self.last(self.conv(x[:, None]).relu().flatten(1))
        return h * scale


WRONG = (
    Asks, Lists, Hooked, Leaves, Unbinds, Spectrum, Grows, Normalises, Short, Strided, Contiguous,
    Balances, Written, Product, Traces, Convolves,
)  # fmt: skip
