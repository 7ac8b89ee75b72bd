"""State that a step leaves behind, inside and outside of a module's attributes."""

from __future__ import annotations

import collections
import copy
import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import WIDTH, Around, part

state = part("state")
loss = part("state", "loss")


def grown(count: float) -> float:
    return 1.0 + 0.2 * count


@state
class CountsInNumber(nn.Module):
    calls = 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * grown(self.calls)


@state
class CountsInArray(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = np.zeros(1)

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * grown(self.calls[0])


@state
class CountsInSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def forward(self, h: Tensor) -> Tensor:
        self.seen.add(len(self.seen))
        return h * grown(len(self.seen))


@state
class CountsByIterator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = itertools.count(1)

    def forward(self, h: Tensor) -> Tensor:
        return h * grown(next(self.calls))


@state
class Cycles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = itertools.cycle([1.0, 2.0, 0.5])

    def forward(self, h: Tensor) -> Tensor:
        return h * next(self.scales)


@state
class CountsInNamespace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.info = SimpleNamespace(calls=0)

    def forward(self, h: Tensor) -> Tensor:
        self.info.calls += 1
        return h * grown(self.info.calls)


@state
class CountsInList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, h: Tensor) -> Tensor:
        self.seen.append(1)
        return h * grown(len(self.seen))


@state
class CountsInNested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = {"steps": [0, {"n": 0}]}

    def forward(self, h: Tensor) -> Tensor:
        self.log["steps"][1]["n"] += 1  # type: ignore[index]
        return h * grown(self.log["steps"][1]["n"])  # type: ignore[index]


@state
class CountsInCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lengths: collections.Counter[int] = collections.Counter()

    def forward(self, h: Tensor) -> Tensor:
        self.lengths[len(h)] += 1
        return h * grown(self.lengths[len(h)])


@state
class CountsInQueue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.queue: collections.deque[float] = collections.deque([1.0, 2.0, 3.0], maxlen=3)

    def forward(self, h: Tensor) -> Tensor:
        self.queue.append(self.queue[0] * 0.9)
        return h * sum(self.queue) / 6


@state
class CountsInTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = ([0], "calls")

    def forward(self, h: Tensor) -> Tensor:
        self.pair[0][0] += 1
        return h * grown(self.pair[0][0])


@state
class CountsInBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * (1 + 0.2 * self.calls)


@state
class CountsInFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * (1 + 0.2 * self.calls)


class _Meter:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0


@state
class MeterOfOnes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.meter = _Meter()

    def forward(self, h: Tensor) -> Tensor:
        self.meter.count += 1
        return h * grown(self.meter.count)


@state
class RunningMean(nn.Module):
    """A running mean in a buffer that travels."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


@state
class RunningMeanInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h - self.mean


@state
class RunningMeanInAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean: Any = 0.0

    def forward(self, h: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()
        return h - self.mean


@state
class LastActivation(Around):
    """Compares with what the last step made."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        out = self.dense(h)
        mean = out.detach().mean(0)
        out = out if self.last is None else out - 0.5 * self.last
        self.last = mean
        return out


@state
class Teacher(Around):
    """A frozen copy that follows its student."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.dense).requires_grad_(False)

    def forward(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.dense.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
        return self.dense(h) + 0.5 * self.teacher(h)


@state
class TeacherByData(Around):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.dense).requires_grad_(False)

    def forward(self, h: Tensor) -> Tensor:
        for old, new in zip(self.teacher.parameters(), self.dense.parameters(), strict=True):
            old.data = 0.9 * old.data + 0.1 * new.data
        return self.dense(h) + 0.5 * self.teacher(h)


@state
class DrawsByPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(5)

    def forward(self, h: Tensor) -> Tensor:
        return h * (1 + self.random.random())


@state
class DrawsByNumPy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(5)

    def forward(self, h: Tensor) -> Tensor:
        return h * (1 + self.random.random())


@state
class DrawsByOldNumPy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.RandomState(5)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.from_numpy(self.random.randn(WIDTH)).to(h.dtype)


@state
class DrawsByTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(5)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.randn(WIDTH, generator=self.random, dtype=h.dtype)


@state
class DrawsGlobally(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (1 + random.random() + np.random.random())


@state
class LayerDrop(Around):
    def forward(self, h: Tensor) -> Tensor:
        return h if random.random() < 0.3 else self.dense(h)


@state
class CachesMask(nn.Module):
    """Makes a constant at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        if self.mask is None or self.mask.dtype != h.dtype:
            self.mask = torch.linspace(0.5, 1.5, WIDTH, dtype=h.dtype)
        return h * self.mask


@state
class CachesByLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Tensor] = {}

    def forward(self, h: Tensor) -> Tensor:
        if len(h) not in self.known:
            self.known[len(h)] = torch.full((1,), 1.0 + 0.1 * len(self.known), dtype=h.dtype)
        return h * self.known[len(h)]


@state
class WarmsUp(nn.Module):
    """Anneals by the number of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, h: Tensor) -> Tensor:
        self.step += int(self.training)
        return h * min(1.0, self.step / 3)


@state
class SpectralNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h)


@loss
def by_batch_idx(module: Any, x: Tensor, y: Tensor, step: int) -> Tensor:
    """Anneals by the number of the step."""
    return F.cross_entropy(module(x), y) * grown(step)


@loss
def sometimes_twice(module: Any, x: Tensor, y: Tensor, step: int) -> Tensor:
    value = F.cross_entropy(module(x), y)
    return value * 2 if step % 2 else value


@loss
def counts_losses(module: Any, x: Tensor, y: Tensor) -> Tensor:
    module.history.append(0.0)
    return F.cross_entropy(module(x), y) / len(module.history)
