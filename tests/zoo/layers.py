"""Layers that are nothing special: normalisations, attention, recurrence, gates, embeddings, convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import IMAGE, INPUTS, WIDTH, Around, part

plain = part("plain layers")


@plain
class LayerNorm(nn.LayerNorm):
    def __init__(self) -> None:
        super().__init__(WIDTH)


@plain
class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * self.scale


@plain
class Groups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(h[:, :, None]).squeeze(2)


@plain
class Attention(nn.Module):
    """Torch's module, which asks for weights that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        tokens = h.view(-1, 2, 4)
        return h + self.attention(tokens, tokens, tokens)[0].reshape(h.shape)


@plain
class FastAttention(nn.Module):
    """Torch's function without dropout, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 12)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.mix(h.view(-1, 2, 4)).chunk(3, dim=-1)
        found = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)
        return h + found.reshape(h.shape)


@plain
class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h.view(-1, 2, 4)).reshape(h.shape)


@plain
class TransformerWithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h.view(-1, 2, 4)).reshape(h.shape)


@plain
class HandAttention(nn.Module):
    """With relative positions and a mask that is filled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(2, 3), nn.Linear(2, 3)
        self.bias = nn.Parameter(torch.zeros(7))

    def forward(self, h: Tensor) -> Tensor:
        tokens = h.view(-1, 4, 2)
        places = torch.arange(4)
        scores = torch.einsum("bqd,bkd->bqk", self.q(tokens), self.k(tokens)) / 3**0.5
        scores = scores + self.bias[places[:, None] - places[None] + 3]
        scores.masked_fill_(torch.ones(4, 4, dtype=torch.bool).triu(1), float("-inf"))
        return h + (scores.softmax(-1) @ tokens).reshape(h.shape)


@plain
class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        state = torch.zeros_like(h)
        for step in range(4):
            state = self.cell(h[:, 2 * step : 2 * step + 2], state)
        return state


@plain
class LSTMSteps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        state = None
        for token in h.view(-1, 2, 4).unbind(1):
            state = self.cell(token, state)
        assert state is not None
        return state[0]


@plain
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, WIDTH, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        return self.rnn(h.view(-1, 2, 4))[0][:, -1]


@plain
class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        gate, value = self.both(h).chunk(2, dim=-1)
        return F.silu(gate) * value


@plain
class Residual(Around):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.gate * F.gelu(self.dense(h))


@plain
class Activations(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        a, b, c, d = h.split(2, dim=1)
        return torch.cat([F.elu(a), F.hardtanh(b), F.mish(c), F.softplus(d)], dim=1)


@plain
class Learned(nn.PReLU):
    pass


@plain
class InPlace(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return F.elu_(h.mul(1.5).add_(0.3)) + 1.0


@plain
class Dropped(nn.Dropout):
    def __init__(self) -> None:
        super().__init__(0.3)


@plain
class DroppedByFunction(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.2, self.training) + F.alpha_dropout(h, 0.1, self.training)


@plain
class DropPath(Around):
    """Stochastic depth, which draws for each example."""

    def forward(self, h: Tensor) -> Tensor:
        if not self.training:
            return h + self.dense(h)
        kept = torch.rand(len(h), 1, dtype=h.dtype) < 0.8
        return h + self.dense(h) * kept / 0.8


@plain
class Noisy(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn_like(h)


@plain
class Batches(nn.BatchNorm1d):
    def __init__(self) -> None:
        super().__init__(WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) if len(h) > 1 else h


@plain
class BatchesWithoutStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(h) if len(h) > 1 else h


@plain
class Tokens(nn.Module):
    """Signs of activations look up embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2, padding_idx=0)

    def forward(self, h: Tensor) -> Tensor:
        tokens = (h.sign() + 1).long().detach()
        return h + self.table(tokens).sum(-1)


@plain
class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(3, WIDTH, mode="mean")

    def forward(self, h: Tensor) -> Tensor:
        return h + self.bag((h.sign() + 1).long())


@plain
class BoundedTable(nn.Module):
    """Rescales rows of its table in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2, max_norm=0.5)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.table((h.sign() + 1).long()).sum(-1)


@plain
class CountedTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2, scale_grad_by_freq=True)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.table((h.sign() + 1).long()).sum(-1)


@plain
class Experts(nn.Module):
    """The best two of three experts, by a router."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, h: Tensor) -> Tensor:
        weights, chosen = self.router(h).softmax(-1).topk(2, dim=-1)
        every = torch.stack([expert(h) for expert in self.experts], dim=1)
        picked = every.gather(1, chosen[:, :, None].expand(-1, -1, WIDTH))
        return (picked * weights[:, :, None]).sum(1)


@plain
class RoutedExperts(nn.Module):
    """Experts see the examples that are theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        out = torch.zeros_like(h)
        for n, expert in enumerate(self.experts):
            own = (h[:, 0] > 0) == bool(n)
            out[own] = expert(h[own])
        return out


@plain
class LowRank(nn.Module):
    """LoRA around a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, h: Tensor) -> Tensor:
        return self.base(h) + h @ self.down.T @ self.up.T


@plain
class Hyper(nn.Module):
    """A layer that makes another's weights for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(WIDTH, WIDTH * 2)

    def forward(self, h: Tensor) -> Tensor:
        weights = self.maker(h).view(-1, WIDTH, 2)
        return h + torch.bmm(weights, torch.bmm(weights.transpose(1, 2), h[:, :, None])).squeeze(2)


@plain
class Bilinear(nn.Bilinear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(h, h)


@plain
class Scan(nn.Module):
    """A linear recurrence by a cumulative sum."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((), -0.1))

    def forward(self, h: Tensor) -> Tensor:
        powers = torch.exp(self.decay * torch.arange(WIDTH, dtype=h.dtype))
        return torch.cumsum(h / powers, dim=1) * powers


@plain
class Equilibrium(nn.Module):
    """Iterates its layer a fixed number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        z = torch.zeros_like(h)
        for _ in range(5):
            z = torch.tanh(self.layer(z) * 0.5 + h)
        return z


@plain
class UntilConverged(nn.Module):
    """Iterates until it no longer moves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        z = torch.zeros_like(h)
        for _ in range(20):
            new = torch.tanh(self.layer(z) * 0.3 + h)
            if (new - z).abs().max() < 0.05:
                return new
            z = new
        return z


@part("plain layers", "image")
class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(IMAGE[0], IMAGE[0])

    def forward(self, h: Tensor) -> Tensor:
        return h * torch.sigmoid(self.fc(h.mean((2, 3))))[:, :, None, None]


@part("plain layers", "image")
class Depthwise(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(IMAGE[0], IMAGE[0], 3, padding=1, groups=IMAGE[0])


@part("plain layers", "image")
class Instances(nn.InstanceNorm2d):
    def __init__(self) -> None:
        super().__init__(IMAGE[0], affine=True)


@part("plain layers", "image")
class ImageNorm(nn.BatchNorm2d):
    def __init__(self) -> None:
        super().__init__(IMAGE[0])


@part("plain layers", "image")
class Shuffled(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        n, c, *rest = h.shape
        return h.view(n, 2, c // 2, *rest).transpose(1, 2).reshape(h.shape)


@part("plain layers", "image")
class Pooled(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h + F.interpolate(F.adaptive_max_pool2d(h, (1, 1)), size=h.shape[2:])


@part("plain layers", "image")
class WholeDropped(nn.Dropout2d):
    def __init__(self) -> None:
        super().__init__(0.25)


@part("plain layers", "input")
class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv1d(1, 3, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :9].new_zeros(len(x), INPUTS).slice_scatter(self.embed(x[:, None]).flatten(1), 1, 0, 9)


@part("plain layers", "input")
class ConvolvesByFunction(nn.Module):
    """No layer shows that it convolves."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(1, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.conv2d(x.view(-1, 1, 3, 4), self.weight, padding=1).flatten(1)


@part("plain layers", "input")
class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("waves", torch.linspace(0.1, 2.0, 6).long() + 1)

    def forward(self, x: Tensor) -> Tensor:
        angles = x[:, :6] * self.waves
        return torch.cat([angles.sin(), angles.cos()], dim=1)
