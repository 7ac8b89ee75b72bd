"""Writes in place, into views, and into parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import WIDTH, Around, part

views = part("views and writes")
inputs = part("views and writes", "input")


@inputs
class Unbound(nn.Module):
    """Normalises columns in place."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        for column in x.unbind(1)[:3]:
            column.sub_(0.1).div_(1.7)
        return x


@inputs
class ChunkScaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x.chunk(2, dim=1)[0].mul_(3)
        return x


@inputs
class SplitZeroed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.0
        x.split([2, 10], dim=1)[0].zero_()
        return x


@inputs
class TensorSplit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        torch.tensor_split(x, 3, dim=1)[2].neg_()
        torch.hsplit(x, 3)[1].abs_()
        return x


@inputs
class RowsUnbound(nn.Module):
    """Loops over examples, as augmentations do."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        for row in x.unbind(0):
            row.sub_(row.mean())
        return x


@inputs
class Sliced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 2:5] = 0.5
        x[:, 5].mul_(2)
        x[0] += 1.0
        return x


@inputs
class Masked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[x > 1] = 1.0
        x.masked_fill_(x < -1, -1.0)
        return x


@inputs
class Diagonal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        z = x.view(-1, 3, 4).clone()
        z.diagonal(dim1=1, dim2=2).fill_(1.0)
        z.transpose(1, 2)[:, 0].mul_(2.0)
        return z.flatten(1)


@inputs
class Selected(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x.select(1, 3).copy_(x.narrow(1, 4, 1).squeeze(1) * 2)
        x.index_fill_(1, torch.tensor([0, 2]), 0.3)
        return x


@inputs
class Scattered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x.index_add_(1, torch.tensor([0, 1]), x[:, 4:6].clone())
        return x.scatter_(1, torch.zeros(len(x), 1, dtype=torch.long), 0.0)


@inputs
class ViewReadAfter(nn.Module):
    """Reads a view of what was written later."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        head = x[:, :6]
        x.mul_(2.0)
        tail = x[:, 6:]
        head.add_(1.0)
        return torch.cat([tail, head], dim=1) + x


@inputs
class FlattenedView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x.view(-1)[::3].mul_(0.5)
        x.reshape(-1, 3, 4).permute(0, 2, 1)[:, 1:].sub_(0.2)
        return x


@inputs
class Expanded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        base = torch.zeros(12, dtype=x.dtype)
        base[::2] = 1.0
        return x * base.expand_as(x)


@views
class ViewOfActivation(Around):
    def forward(self, h: Tensor) -> Tensor:
        h = self.dense(h).clone()
        h[:, :4].mul_(2.0)
        h.narrow(1, 4, 2).add_(1.0)
        return h.tanh_()


@views
class PiecesWritten(Around):
    def forward(self, h: Tensor) -> Tensor:
        out = torch.zeros(len(h), WIDTH, dtype=h.dtype)
        for first, piece in zip((0, 4), self.dense(h).split(4, dim=1), strict=True):
            out[:, first : first + 4].copy_(piece)
        return out


@views
class AssignedColumns(Around):
    def forward(self, h: Tensor) -> Tensor:
        out = h.new_zeros(h.shape)
        for column in range(WIDTH):
            out[:, column] = self.dense(h)[:, column] * (column + 1)
        return out


@views
class OutGiven(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        mask = torch.empty_like(h)
        with torch.no_grad():
            torch.sign(h, out=mask)
        return h * mask


@views
class WeightNormalised(Around):
    """Puts a normalised weight in place of its own."""

    def forward(self, h: Tensor) -> Tensor:
        self.dense.weight.data = F.normalize(self.dense.weight.data)
        return self.dense(h)


@views
class WeightClamped(Around):
    def forward(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.dense.weight.clamp_(-0.2, 0.2)
        return self.dense(h)


@views
class WeightWrittenByData(Around):
    def forward(self, h: Tensor) -> Tensor:
        self.dense.weight.data.mul_(0.99)
        return self.dense(h)


@views
class MaskedWeight(Around):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", (torch.rand(WIDTH, WIDTH) > 0.5))

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, self.dense.weight * self.mask, self.dense.bias)


@views
class Accumulated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, h: Tensor) -> Tensor:
        total = torch.zeros_like(h)
        for layer in self.layers:
            total += layer(h)
            h = total.tanh()
        return total


@views
class AttentionInPlace(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        q, k, v = h.view(-1, 2, 4).repeat(1, 1, 3).split(4, dim=-1)
        scores = q @ k.transpose(1, 2)
        scores.mul_(0.5)
        scores -= scores.amax(-1, keepdim=True).detach()
        return (scores.exp() @ v).flatten(1)


@part("views and writes", "image")
class ChannelsWritten(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        h = h.clone()
        for channel in range(2):
            h[:, channel].mul_(0.5)
        h[:, :, 0] = 0.0
        return h
