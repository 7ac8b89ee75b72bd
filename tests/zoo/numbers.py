"""Complex numbers, and constants whose precision matters."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from zoo.registry import WIDTH, Around, part

waves = part("complex numbers")
precise = part("precision")


@waves
class Power(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        z = torch.fft.fft(h)
        return (z * z.conj()).real / WIDTH


@waves
class Magnitude(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.fft.rfft(torch.cat([h, h[:, :6]], dim=1)).abs()


@waves
class Exponential(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.exp(torch.complex(-h.abs(), h)).imag + h


@waves
class Unitary(nn.Module):
    """A linear recurrence with complex decay, as LRU's."""

    def __init__(self) -> None:
        super().__init__()
        self.nu, self.theta = nn.Parameter(torch.zeros(4) - 1.0), nn.Parameter(torch.linspace(0.1, 1.0, 4))
        self.real, self.imaginary = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(4, 2))

    def forward(self, h: Tensor) -> Tensor:
        decay = torch.exp(torch.complex(-torch.exp(self.nu), self.theta))
        mix = torch.complex(self.real, self.imaginary)
        state = torch.zeros(len(h), 4, dtype=decay.dtype)
        for token in h.view(-1, 4, 2).unbind(1):
            state = decay * state + token.to(decay.dtype) @ mix.T
        return torch.cat([state.real, state.imag], dim=1)


@waves
class StateSpace(nn.Module):
    """A diagonal state-space kernel by its powers, as S4D's."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.step = nn.Parameter(torch.full((4,), -0.7)), nn.Parameter(torch.zeros(()))
        self.mix = nn.Parameter(torch.randn(4, 2))

    def forward(self, h: Tensor) -> Tensor:
        a = torch.complex(-torch.exp(self.rate), math.pi * torch.arange(4, dtype=h.dtype))
        powers = torch.exp(a[:, None] * torch.exp(self.step) * torch.arange(WIDTH, dtype=h.dtype))
        kernel = 2 * (torch.view_as_complex(self.mix)[:, None] * powers).sum(0).real
        found = torch.fft.irfft(torch.fft.rfft(h, n=16) * torch.fft.rfft(kernel, n=16), n=16)
        return found[:, :WIDTH]


@waves
class Rotary(nn.Module):
    """Turns pairs, as positions in attention do."""

    def forward(self, h: Tensor) -> Tensor:
        z = torch.view_as_complex(h.view(-1, 4, 2).contiguous())
        turn = torch.polar(torch.ones(4, dtype=h.dtype), torch.arange(4, dtype=h.dtype))
        return torch.view_as_real(z * turn).flatten(1)


@waves
class Spectral(nn.Module):
    """A layer in the frequency domain, as of Fourier operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 2))

    def forward(self, h: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(h) * torch.view_as_complex(self.weight), n=WIDTH)


@waves
class Angles(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        z = torch.complex(h, h.roll(1, dims=1))
        return z.angle() + (z.conj() * 1j).real + (-z).imag


@waves
class Conjugated(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        z = torch.fft.ifft(torch.fft.fft(h).conj() * torch.fft.fft(h.flip(1)))
        return z.real + z.imag


@precise
class Linspace(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * torch.linspace(0.1, 1.0, WIDTH)


@precise
class Constant(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * torch.tensor(0.1) + torch.full((WIDTH,), 0.3)


@precise
class Matrix(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h @ (torch.eye(WIDTH) * 0.7 + 0.01 * torch.ones(WIDTH, WIDTH))


@precise
class Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.linspace(0.1, 0.9, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h * self.scale


@precise
class SinesOfPositions(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        places = torch.arange(WIDTH).float() / 7
        return h + torch.sin(places) * torch.logspace(-1, 0, WIDTH)


@precise
class Casts(Around):
    """Normalises in single precision."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.softmax(self.dense(h).float(), dim=1).to(h.dtype)


@precise
class Half(Around):
    def forward(self, h: Tensor) -> Tensor:
        return h + self.dense(h).to(torch.bfloat16).to(h.dtype)


@precise
class DefaultType(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (2.0 if torch.get_default_dtype() == h.dtype else 1.0)


@precise
class FromNumPy(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * torch.from_numpy(np.hanning(WIDTH + 2)[1:-1]).to(h.dtype)


@precise
class Window(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * torch.hann_window(WIDTH + 1)[1:]


@precise
class SmallNumbers(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h / torch.sqrt(h.square().sum(1, keepdim=True) + torch.finfo(h.dtype).eps)


@precise
class Drawn(nn.Module):
    """Draws a fixed projection from a generator that it makes anew."""

    def forward(self, h: Tensor) -> Tensor:
        return h @ torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3)) * 0.3
