"""State out of sight: where no attribute of a layer holds it, or where no number tells of it.

What several models share, a class's attribute or a global name, is set anew when a part is made, so that the
plain loop's models begin as the first one does.
"""

from __future__ import annotations

import array
import copy
import functools
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import WIDTH, Around, part

hidden = part("hidden state")
loss = part("hidden state", "loss")


def late(calls: float) -> float:
    """Return a factor that shows from the fourth call on, when a first comparison is long over."""
    return 1.0 if calls < 4 else 0.5


@hidden
class CountsInClass(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).calls = 0

    def forward(self, h: Tensor) -> Tensor:
        type(self).calls += self.training
        return h * late(self.calls)


LOG = {"calls": 0}
CALLS = 0


@hidden
class CountsInGlobalTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        LOG["calls"] = 0

    def forward(self, h: Tensor) -> Tensor:
        LOG["calls"] += self.training
        return h * late(LOG["calls"])


@hidden
class CountsInGlobal(nn.Module):
    def __init__(self) -> None:
        global CALLS
        super().__init__()
        CALLS = 0

    def forward(self, h: Tensor) -> Tensor:
        global CALLS
        CALLS += self.training
        return h * late(CALLS)


@hidden
class CountsInDefault(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen_by(True, clear=True)

    def seen_by(self, counts: bool, seen: list[int] = [], clear: bool = False) -> int:  # noqa: B006
        if clear:
            seen.clear()
        seen.extend([1] * counts)
        return len(seen) - 1

    def forward(self, h: Tensor) -> Tensor:
        return h * late(self.seen_by(self.training))


@hidden
class CountsInClosure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        calls = 0

        def factor() -> float:
            nonlocal calls
            calls += 1
            return late(calls)

        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        return h * (self.factor() if self.training else 1.0)


@hidden
class CountsInHook(Around):
    def __init__(self) -> None:
        super().__init__()
        calls = [0]

        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            calls[0] += module.training
            return output * late(calls[0])

        self.dense.register_forward_hook(hook)

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h)


@hidden
class CountsInPartial(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def factor(seen: list[int]) -> float:
            seen.append(1)
            return late(len(seen))

        self.factor = functools.partial(factor, [])

    def forward(self, h: Tensor) -> Tensor:
        return h * (self.factor() if self.training else 1.0)


class _Schedule:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def step(self) -> float:
        self.calls += 1
        return late(self.calls)


@hidden
class CountsInSlots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.schedule = _Schedule()

    def forward(self, h: Tensor) -> Tensor:
        return h * (self.schedule.step() if self.training else 1.0)


@hidden
class CountsByMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = _Schedule().step

    def forward(self, h: Tensor) -> Tensor:
        return h * (self.step() if self.training else 1.0)


@hidden
class CountsInBytes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.array = bytearray(1), array.array("i", [0])

    def forward(self, h: Tensor) -> Tensor:
        self.calls[0] += self.training
        self.array[0] += self.training
        return h * late(self.calls[0]) * late(self.array[0])


@hidden
class TeacherInList(Around):
    """A teacher in a list, so that it is no layer, follows."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [copy.deepcopy(self.dense).requires_grad_(False)]

    def forward(self, h: Tensor) -> Tensor:
        teacher = self.teacher[0].to(h.dtype)
        if self.training:
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), self.dense.parameters(), strict=True):
                    old.lerp_(new, 0.3)
        return self.dense(h) + teacher(h)


@hidden
class StatisticsInList(Around):
    def __init__(self) -> None:
        super().__init__()
        self.norm = [nn.BatchNorm1d(WIDTH, affine=False, momentum=0.5)]

    def forward(self, h: Tensor) -> Tensor:
        norm = self.norm[0].to(h.dtype).train(self.training and len(h) > 1)
        norm(h)
        return self.dense(h - norm.running_mean)


@loss
def received(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Stays near the model as the server sent it, copied in the first step: learning without forgetting."""
    if getattr(module, "before", None) is None:
        module.before = copy.deepcopy(module.net).requires_grad_(False)
    logits = module(x)
    return F.cross_entropy(logits, y) + F.mse_loss(logits, module.before(x) * 2)


@hidden
class TrainsCentre(Around):
    """A centre that is no parameter, trained by an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = [torch.zeros(WIDTH, requires_grad=True)]
        self.own = torch.optim.Adam(self.centre, 0.1)

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            with torch.enable_grad():
                self.own.zero_grad()
                (h.detach().mean(0) - self.centre[0]).square().sum().backward()  # type: ignore[no-untyped-call]
                self.own.step()
        return self.dense(h - self.centre[0].detach().to(h.dtype))


@hidden
class StopsDropping(nn.Module):
    """A layer is put into evaluation for good."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.drop(h)
        if self.training and len(h) > 1:
            self.drop.eval()
        return out


@hidden
class FreezesLater(Around):
    def __init__(self) -> None:
        super().__init__()
        self.other, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += self.training
        self.other.requires_grad_(self.calls < 3)
        return self.dense(h) + self.other(h)


@hidden
class SwapsLayer(Around):
    def __init__(self) -> None:
        super().__init__()
        self.act: nn.Module = nn.ReLU()

    def forward(self, h: Tensor) -> Tensor:
        h = self.act(self.dense(h))
        if self.training:
            self.act = nn.Tanh()
        return h


@hidden
class AddsBuffer(Around):
    """The first batch's mean becomes a buffer."""

    def forward(self, h: Tensor) -> Tensor:
        if self.training and not hasattr(self, "mean"):
            self.register_buffer("mean", h.detach().mean(0))
        return self.dense(h - self.mean if hasattr(self, "mean") else h)


@hidden
class HookOnce(Around):
    """A hook removes itself."""

    def __init__(self) -> None:
        super().__init__()

        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            self.handle.remove()
            return output * 2

        self.handle = self.dense.register_forward_hook(hook)

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h)


@hidden
class SeedsItself(nn.Module):
    """Generators of its own begin at the global ones' seed and state, which no call of theirs changes."""

    def forward(self, h: Tensor) -> Tensor:
        one = np.random.default_rng(torch.initial_seed() % 2**32).random()
        other = random.Random(hash(random.getstate()) % 2**32).random()
        return h * (1.0 + one + other + np.random.get_state()[1][0] % 97 / 97)  # type: ignore[index,operator]


@hidden
class ReadsStored(Around):
    """Reads parameters from a list, and lets no gradient reach them."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = list(self.dense.parameters())

    def forward(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            size = sum(param.norm() for param in self.stored)
        return self.dense(h) * size


@hidden
class ReadsClosure(Around):
    def __init__(self) -> None:
        super().__init__()
        weight = self.dense.weight
        self.size = lambda: weight.detach().abs().mean()

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * (1.0 + self.size())


class _ByNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.from_numpy(grad.numpy().clip(-0.01, 0.01))


@part("hidden state", "image")
class GradientByNumPy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _ByNumPy.apply(x)  # type: ignore[no-any-return,no-untyped-call]


@hidden
class StoredByNumPy(Around):
    """What the backward pass needs is kept in 8 bits."""

    def forward(self, h: Tensor) -> Tensor:
        def pack(value: Tensor) -> np.ndarray:
            return (value.detach().numpy() * 16).astype(np.int8)

        def unpack(kept: np.ndarray) -> Tensor:
            return torch.from_numpy(kept.astype(np.float64) / 16).to(h.dtype)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return self.dense(h)


@hidden
class Scripted(Around):
    def __init__(self) -> None:
        super().__init__()
        self.script = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()))

    def forward(self, h: Tensor) -> Tensor:
        return self.script(self.dense(h))
