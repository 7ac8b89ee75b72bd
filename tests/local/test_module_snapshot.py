"""What a module keeps between two calls is nobody's legacy: a visit is as if its client were alone."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_trainers import largest_gap, make_program, starts_of, told, train
from torch import Tensor, nn, optim

from flsel.errors import UserError
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.judge import CheckedTrainer
from flsel.local.measure import losses
from flsel.local.schedule import BatchSpec
from flsel.local.sequential import SequentialTrainer
from flsel.local.snapshot import ModuleSnapshot
from flsel.local.visit import from_one
from flsel.params import Params

CLIENTS = [3, 1, 0]


class Clock:
    """An object that somebody's layer steps."""

    now = 0

    def __init__(self) -> None:
        self.now = 0


class Counting(nn.Module):
    """Divides its logits by a number that grows with every call; ``how`` says where it is kept."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(6, 4), how
        self.number, self.items, self.table, self.clock = 0, deque[int](), {"now": 0}, Clock()
        self.last: Tensor | None = None
        self.array, self.names = np.zeros(1), SimpleNamespace(now=0)
        self.met, self.pair, self.long = {0}, ([0], 0), [0] * 300
        self.dice, self.draws = random.Random(1), np.random.default_rng(1)
        if how == "iterator":
            self.iterator = itertools.count(1)
        if how == "frozen":
            self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.register_buffer("sent", torch.zeros(()))
        self.register_buffer("own", torch.zeros(()), persistent=False)
        self.register_buffer("whole", torch.zeros((), dtype=torch.int64))
        if how != "sent":
            del self.sent

    def count(self) -> Any:
        if self.how == "number":
            self.number += 1
        elif self.how == "items":
            self.items.append(1)
        elif self.how == "table":
            self.table["now"] += 1
        elif self.how == "clock":
            self.clock.now += 1
        elif self.how in SIMPLE:
            return SIMPLE[self.how](self)
        elif self.how == "new":
            self.ticks = getattr(self, "ticks", 0) + 1
        elif self.how == "last":
            self.last = torch.ones(()) if self.last is None else self.last + 1
        elif self.how == "whole":
            self.whole += 1
        else:  # as most running means are written
            setattr(self, self.how, getattr(self, self.how) * 1 + 1)
        return {
            "items": len(self.items),
            "table": self.table["now"],
            "clock": self.clock.now,
            "new": getattr(self, "ticks", 0),
        }.get(self.how, getattr(self, self.how, 0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) / self.count()
        return out


def _array(net: Any) -> Any:
    net.array += 1
    return float(net.array[0])


def _names(net: Any) -> Any:
    net.names.now += 1
    return net.names.now


def _met(net: Any) -> Any:
    net.met.add(len(net.met))
    return len(net.met)


def _pair(net: Any) -> Any:
    net.pair[0].append(1)
    return len(net.pair[0])


def _long(net: Any) -> Any:
    net.long.append(1)
    return len(net.long) - 299


def _frozen(net: Any) -> Any:
    net.frozen.data.add_(1)
    return net.frozen.item()


# What keeps the number, and how it grows.
SIMPLE: dict[str, Callable[[Any], Any]] = {
    "array": _array,
    "names": _names,
    "met": _met,
    "pair": _pair,
    "long": _long,
    "dice": lambda net: 1 + net.dice.random(),
    "draws": lambda net: 1 + net.draws.random(),
    "iterator": lambda net: next(net.iterator),
    "frozen": _frozen,
}
HOW = ("number", "items", "table", "clock", "new", "last", "own", "whole", *SIMPLE, "sent")


def by_hand(net: nn.Module, start: Params, program: Any, client: int, round: int) -> Params:
    """Train a client by a plain loop; returns what became of the start."""
    net = net.to(next(iter(start.values())).dtype).train()
    net.load_state_dict(start, strict=False)
    optimizer = optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for positions in program.batches(client, round):
        x, y = program.batch(positions[positions >= 0])
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return {n: v for n, v in (*net.named_parameters(), *net.named_buffers()) if n in start}


def counting(how: str) -> Any:
    return make_program(lambda p: optim.SGD(p, lr=0.1), BatchSpec(8, steps=3, last="wrap"), net=Counting(how))


# Python 3.14 will copy no iterators.
@pytest.mark.filterwarnings("ignore:Pickle, copy, and deepcopy support:DeprecationWarning")
@pytest.mark.parametrize("how", HOW)
def test_a_visit_is_plain_pytorch_on_a_model_as_it_was_built(how: str) -> None:
    program = counting(how)
    starts = starts_of(program, 1)
    start = {name: value[0] for name, value in starts.items()}
    asked = losses(from_one(start, CLIENTS, 0, program))
    ends = train(
        SequentialTrainer(), program, {n: v.expand(3, *v.shape[1:]) for n, v in starts.items()}, CLIENTS, 1
    )
    assert torch.equal(losses(from_one(start, CLIENTS[::-1], 0, program)), asked.flip(0))
    for row, client in enumerate(CLIENTS):
        own = by_hand(copy.deepcopy(program.model), start, program, client, 1)
        assert largest_gap({n: v[row] for n, v in ends.items()}, own) < 1e-12


@pytest.mark.parametrize("how", HOW[:-1])
def test_a_stack_is_not_asked_to_keep_it(how: str, caplog: Any) -> None:
    program = counting(how)
    starts = starts_of(program, 3)
    one = train(SequentialTrainer(), program, starts, CLIENTS, 0)
    trainer = CompiledTrainer()
    for _ in range(2):
        assert largest_gap(one, train(trainer, program, starts, CLIENTS, 0)) == 0.0
    assert told(caplog)[-1].endswith("; sequential trains instead")
    assert len(told(caplog)) == 1 + (how == "frozen")


class Held(nn.Linear):
    """Keeps what cannot be copied, and scales by it, or not."""

    def __init__(self, reads: bool) -> None:
        super().__init__(6, 4)
        self.numbers, self.lock, self.reads = (n for n in range(1, 99)), threading.Lock(), reads
        self.calls = [0]

    def forward(self, input: Tensor) -> Tensor:
        self.calls[0] += 1
        with self.lock:
            return super().forward(input) * ((next(self.numbers) if self.reads else 1.0) + self.calls[0])


@pytest.mark.parametrize("reads", [False, True])
def test_what_cannot_be_copied_is_refused_only_if_it_matters(reads: bool) -> None:
    program = make_program(partial(optim.SGD, lr=0.1), BatchSpec(8, epochs=1), net=Held(reads))
    starts = starts_of(program, 3)
    if reads:
        with pytest.raises(UserError, match=r"second time in round 0, so it uses state outside the module: "):
            train(CheckedTrainer(SequentialTrainer(), "sequential"), program, starts, CLIENTS, 0)
        return
    trainer = CheckedTrainer(CompiledTrainer(), "compiled")
    ends = train(trainer, program, starts, CLIENTS, 0)
    assert trainer.one_by_one(program)
    own = by_hand(Held(reads), {n: v[0] for n, v in starts.items()}, program, CLIENTS[0], 0)
    assert largest_gap({n: v[0] for n, v in ends.items()}, own) < 1e-12


class Thaws(nn.Module):
    """Begins to train a layer in its first step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.layer.requires_grad_(True)
        return self.head(self.layer(x))


def test_a_model_that_begins_to_train_a_frozen_layer_is_refused() -> None:
    program = make_program(partial(optim.SGD, lr=0.1), BatchSpec(8, epochs=1), net=Thaws())
    with pytest.raises(UserError, match=r"begin to train a frozen parameter, here layer\.weight: "):
        train(SequentialTrainer(), program, starts_of(program, 1), [3], 0)


@functools.lru_cache
def table(width: int) -> Tensor:
    return torch.linspace(0.5, 1.5, width, dtype=torch.float64)


class Looks(nn.Module):
    """Multiplies by a table that is made once, when the model is measured first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * table(4)


@pytest.mark.parametrize("trainer", [SequentialTrainer, CompiledTrainer])
def test_what_a_measurement_caches_can_be_trained_with(trainer: Any) -> None:
    table.cache_clear()
    program = make_program(partial(optim.SGD, lr=0.1), BatchSpec(8, epochs=1), net=Looks())
    starts = starts_of(program, 3)
    losses(from_one({n: v[0] for n, v in starts.items()}, CLIENTS, 0, program))
    assert table.cache_info().currsize == 1
    ends = train(trainer(), program, starts, CLIENTS, 0)
    assert largest_gap(ends, starts) > 0


class Shares(nn.Module):
    """Counts in an object that a hook of a layer knows, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.clock = nn.Linear(6, 4), Clock()
        clock = self.clock
        self.layer.register_forward_hook(lambda layer, given, made: made * (1 + clock.now))

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now += 1
        out: Tensor = self.layer(x)
        return out


class Frozen(nn.Module):
    """Has a large frozen layer, and a small one that follows the trained one as ``how`` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.large = nn.Linear(6, 20_000, bias=False).requires_grad_(False)
        self.layer, self.teacher = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for old, new in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
                    if self.how == "in place":
                        old.lerp_(new, 0.5)
                    elif self.how == "by data":
                        old.data.mul_(0.5).add_(new.data, alpha=0.5)
                    else:
                        old.data = 0.5 * (old.data + new.data)
        out: Tensor = self.layer(x) + 2 * self.teacher(x) + self.large(x)[:, :4]
        return out


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make()


FOLLOWING = [partial(Frozen, how) for how in ("in place", "by data", "anew")]


@pytest.mark.parametrize("make", [Shares, *FOLLOWING])
def test_a_client_leaves_no_trace_in_what_others_hold(make: Any, caplog: Any) -> None:
    program = make_program(partial(optim.SGD, lr=0.1), BatchSpec(8, epochs=1), net=seeded(make))
    starts = starts_of(program, 3)
    trainer = CheckedTrainer(CompiledTrainer(), "compiled")
    for round in range(2):
        ends = train(trainer, program, starts, CLIENTS, round)
        for row, client in enumerate(CLIENTS):
            own = by_hand(seeded(make), {n: v[row] for n, v in starts.items()}, program, client, round)
            assert largest_gap({n: v[row] for n, v in ends.items()}, own) < 1e-12
    said = [text for text in told(caplog) if "momentum target" in text]
    begins = (
        "model Frozen changes teacher.weight, teacher.bias in training, which is not sent: each client begins"
    )
    assert [text.startswith(begins) for text in said] == [True] * (make is not Shares)


def test_large_frozen_weights_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_program(partial(optim.SGD, lr=0.1), BatchSpec(8, epochs=1), net=Frozen("in place"))
    starts = starts_of(program, 1)
    compared: list[int] = []
    equal = torch.equal

    def watched(one: Tensor, other: Tensor) -> bool:
        compared.append(one.numel())
        return equal(one, other)

    monkeypatch.setattr(torch, "equal", watched)
    train(SequentialTrainer(), program, starts, [3], 0)
    assert max(compared) == 120_000
    compared.clear()
    train(SequentialTrainer(), program, starts, [3], 1)
    assert max(compared, default=0) < 120_000
    program.model.large.weight.data = torch.zeros(20_000, 6, dtype=torch.float64)  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"must not begin to write to large\.weight after the first"):
        program.kept.restore()


def test_nan_is_not_zero() -> None:
    net = nn.Linear(6, 4)
    net.register_buffer("count", torch.zeros(2))
    kept = ModuleSnapshot(net)
    net.count.fill_(math.nan)  # type: ignore[operator,union-attr]
    assert kept.changed()
    kept.restore()
    assert net.count.tolist() == [0.0, 0.0]  # type: ignore[operator,union-attr]


class Sees(nn.Linear):
    """Keeps its weight's memory, as a tensor and as an array."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.memory, self.array = [self.weight.data], self.bias.detach().numpy()

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / (1.0 + self.memory[0].norm() + float(self.array[0]))


def test_what_looks_at_trained_numbers_is_not_put_back() -> None:
    program = make_program(
        partial(optim.SGD, lr=0.1), BatchSpec(8, epochs=1), net=Sees(), precision="32-true"
    )
    starts = starts_of(program, 2)
    trainer = CheckedTrainer(CompiledTrainer(), "compiled")
    for round in range(2):
        ends = train(trainer, program, starts, CLIENTS[:2], round)
        for row, client in enumerate(CLIENTS[:2]):
            own = by_hand(Sees(), {n: v[row] for n, v in starts.items()}, program, client, round)
            assert largest_gap({n: v[row] for n, v in ends.items()}, own) < 1e-6
