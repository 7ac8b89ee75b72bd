"""The self-check: sequential trains what is trained to other models, and all else keeps its bits."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from test_trainers import SIZES, make_program, starts_of, told
from torch import nn, optim
from wrong import WRONG

from flsel.availability import IDL
from flsel.config import RunConfig
from flsel.data.population import Examples, Normalize, Source
from flsel.engine.evaluation import Evaluator
from flsel.files.shipped import shipped
from flsel.local import measure
from flsel.local.agreement import Agreement
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.judge import CheckedTrainer
from flsel.local.program import Program
from flsel.local.schedule import BatchSpec
from flsel.local.sequential import SequentialTrainer
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, from_rows
from flsel.params import Params
from flsel.partition import IID
from flsel.runner.build import build
from flsel.selectors import Uniform

CLIENTS = [3, 0, 2, 4, 1]
SHAPES = {
    "mnist": ((1, 28, 28), 10),
    "fashion_mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "synthetic": ((60,), 10),
}
SGD = partial(optim.SGD, lr=0.1)


class Off(LocalTrainer):
    """Trains some visits to models that are off by a share of their update."""

    def __init__(self, wrong: Any = lambda visit: True, share: float = 0.05) -> None:
        self.wrong, self.share = wrong, share
        self.calls: list[list[tuple[int, int]]] = []
        self._sequential = SequentialTrainer()

    def train(self, visits: Sequence[Visit]) -> Params:
        self.calls.append([(visit.round, visit.client) for visit in visits])
        ends = self._sequential.train(visits)
        for place, visit in enumerate(visits):
            for name, end in ends.items() if self.wrong(visit) else ():
                end[place] += self.share * (end[place] - visit.start[name])
        return ends


class Counting(LocalTrainer):
    """Trains by sequential, and counts visits."""

    def __init__(self) -> None:
        self.visits = 0
        self._sequential = SequentialTrainer()

    def train(self, visits: Sequence[Visit]) -> Params:
        self.visits += len(visits)
        return self._sequential.train(visits)


def program(steps: int = 3, **changes: Any) -> Program:
    changes.setdefault("precision", "32-true")
    return make_program(SGD, BatchSpec(8, steps=steps), factors=[1.0] * 100, **changes)


def visits_of(program: Program, round: int, clients: Sequence[int] = CLIENTS) -> list[Visit]:
    return from_rows(starts_of(program, len(clients)), list(clients), round, program)


def same(one: Params, other: Params) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def checked(fast: LocalTrainer) -> CheckedTrainer:
    return CheckedTrainer(fast, "fast")


@pytest.mark.parametrize("net", WRONG)
def test_whatever_a_model_does_it_ends_where_sequential_ends(net):
    own = make_program(SGD, BatchSpec(8, epochs=2), net=net(), precision="32-true")
    trainer = checked(CompiledTrainer())
    for round in range(3):
        visits = visits_of(own, round)
        expected = SequentialTrainer().train(visits)
        ends = trainer.train(visits)
        for name, end in ends.items():
            torch.testing.assert_close(end, expected[name], rtol=1e-4, atol=1e-5)


def test_a_program_that_is_trained_wrongly_is_left_to_sequential_with_one_warning(caplog):
    caplog.set_level(logging.WARNING, logger="flsel")
    own, fast = program(), Off()
    trainer = checked(fast)
    for round in range(6):
        visits = visits_of(own, round)
        assert same(trainer.train(visits), SequentialTrainer().train(visits))
    assert len(fast.calls) == 1
    (said,) = told(caplog)
    assert said.startswith(
        "local.check: sequential trains Sequential from round 0 on, since fast trains client 3 to another "
        "model, 0.05 of the update away in "
    )
    found = own.agreement.disagreement("train")
    assert found is not None
    assert (found.round, found.late) == (0, False)
    assert found.gap == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize("round", [1, 4, 16, 64])
def test_a_late_disagreement_says_that_earlier_rounds_were_trained_fast(round, caplog):
    caplog.set_level(logging.WARNING, logger="flsel")
    own, fast = program(), Off(lambda visit: visit.round >= round)
    trainer = checked(fast)
    for at in range(round + 2):
        visits = visits_of(own, at)
        ends = trainer.train(visits)
        assert same(ends, SequentialTrainer().train(visits))
    assert own.agreement.found_["train"][0] == round
    assert len(fast.calls) == round + 1
    (said,) = told(caplog)
    rounds = f"Rounds 0 to {round - 1} were trained fast, so all numbers may be wrong"
    assert f". {rounds}: run again with --local.backend sequential --local.workers 1, or change" in said


def test_a_new_shape_is_compared_whenever_it_comes():
    own = program(steps=40)
    assert SIZES[2] == 1
    short = own.population.shards[2]
    fast = Off(lambda visit: visit.client == 2)
    trainer = checked(fast)
    trainer.train(visits_of(own, 0, [3, 4]))  # batches of 8 and more
    assert own.agreement.disagreement("train") is None
    visits = visits_of(own, 7, [3, 2])  # one of 1
    assert len(short) == 1
    assert same(trainer.train(visits), SequentialTrainer().train(visits))
    assert own.agreement.found_["train"][0] == 7


def test_one_programs_disagreement_leaves_the_others_alone(caplog):
    caplog.set_level(logging.WARNING, logger="flsel")
    right, wrong = program(), program()
    fast = Off(lambda visit: visit.program is wrong)
    trainer, alone = checked(fast), Counting()
    for round in range(3):
        visits = [
            v for pair in zip(visits_of(wrong, round), visits_of(right, round), strict=True) for v in pair
        ]
        assert same(trainer.train(visits), alone.train(visits))
    assert right.agreement.disagreement("train") is None
    assert wrong.agreement.disagreement("train") is not None
    assert [len(call) for call in fast.calls] == [10, 5, 5]
    assert len(told(caplog)) == 1


def test_what_a_resumed_run_compares_is_what_an_uninterrupted_one_does(monkeypatch):
    compared: list[tuple[int, int]] = []
    plain = SequentialTrainer.train

    def watched(self: SequentialTrainer, visits: Sequence[Visit]) -> Params:
        compared.extend((visit.round, visit.client) for visit in visits)
        return plain(self, visits)

    monkeypatch.setattr(SequentialTrainer, "train", watched)
    own, trainer, states = program(), checked(CompiledTrainer()), []
    for round in range(20):
        states.append(own.agreement.state_dict() | {})
        trainer.train(visits_of(own, round, CLIENTS if round != 11 else CLIENTS[:1]))
    whole = list(compared)
    assert {round for round, _ in whole} == {0, 1, 4, 11, 16}
    for begin in (1, 3, 10, 16):
        compared.clear()
        again = program()
        again.agreement.load_state_dict(states[begin])
        later = checked(CompiledTrainer())
        for round in range(begin, 20):
            later.train(visits_of(again, round, CLIENTS if round != 11 else CLIENTS[:1]))
        assert compared == [entry for entry in whole if entry[0] >= begin]


def test_a_changed_program_is_compared_again():
    own = program()
    fast = Off(lambda visit: visit.round >= 2)
    trainer = checked(fast)
    trainer.train(visits_of(own, 0))
    trainer.train(visits_of(own, 2))
    assert own.agreement.disagreement("train") is None
    trainer.forget(own)
    visits = visits_of(own, 3)
    assert same(trainer.train(visits), SequentialTrainer().train(visits))
    assert own.agreement.disagreement("train") is not None


def test_every_compares_all_visits_of_all_rounds_and_off_none():
    every, fast = program(), Off(lambda visit: (visit.round, visit.client) == (5, 4))
    object.__setattr__(every, "agreement", Agreement("every"))
    trainer = checked(fast)
    for round in range(6):
        visits = visits_of(every, round)
        assert same(trainer.train(visits), SequentialTrainer().train(visits))
    off = program()
    object.__setattr__(off, "agreement", Agreement("off"))
    visits = visits_of(off, 0)
    assert not same(checked(Off()).train(visits), SequentialTrainer().train(visits))
    assert off.agreement.compared_ == []


def test_a_trainer_that_fails_is_replaced_unless_the_model_fails_too(caplog):
    class Fails(LocalTrainer):
        def train(self, visits: Sequence[Visit]) -> Params:
            raise RuntimeError("no such kernel")

    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("my own mistake")

    caplog.set_level(logging.WARNING, logger="flsel")
    own = program()
    visits = visits_of(own, 0)
    assert same(checked(Fails()).train(visits), SequentialTrainer().train(visits))
    (said,) = told(caplog)
    assert "since fast raised RuntimeError: no such kernel." in said
    own = program(net=Broken(6, 4))
    with pytest.raises(ValueError, match="my own mistake"):
        checked(Fails()).train(visits_of(own, 0))


def test_what_diverges_or_is_chaotic_is_rounding():
    # A rate at which each step blows up what rounding makes of the last: no two orders of sums agree.
    own = make_program(partial(optim.SGD, lr=40.0), BatchSpec(8, steps=30), precision="32-true")
    visits = visits_of(own, 0)
    ends, plain = CompiledTrainer().train(visits), SequentialTrainer().train(visits)
    assert any(not torch.allclose(ends[name], plain[name], rtol=1e-3) for name in ends)
    assert same(checked(CompiledTrainer()).train(visits), ends)
    assert own.agreement.disagreement("train") is None


def test_a_model_that_does_not_move_agrees():
    own = make_program(partial(optim.SGD, lr=0.0), BatchSpec(8, steps=3), precision="32-true")
    checked(CompiledTrainer()).train(visits_of(own, 0))
    assert own.agreement.disagreement("train") is None


class Centres(nn.Linear):
    """Centres its outputs over the examples at hand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``[B, 4]``."""
        h = super().forward(x)
        return h - h.mean(0)


class Ordered(nn.Module):
    """Reads its convolution's weight as it lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``[B, 4]``."""
        scale = 1.0 if self.conv.weight.is_contiguous() else 2.0
        images = x[:, None, None].expand(-1, 2, 1, -1).contiguous()
        logits: torch.Tensor = scale * self.conv(images).amax((2, 3))
        return logits


@pytest.mark.parametrize("net", [Centres(6, 4), Ordered()], ids=["pooled", "laid out"])
def test_losses_and_gradients_that_are_wrong_together_are_asked_one_by_one(net, caplog):
    caplog.set_level(logging.WARNING, logger="flsel")
    own = program(net=net)
    object.__setattr__(own, "channels_last", isinstance(net, Ordered))
    # Steps of a client whose gradient vanishes tell nothing; every start is one of its own.
    for start in ({n: v.detach().clone() for n, v in own.state().items()},):
        visits = [Visit(start, client, 3, own) for client in CLIENTS]
        plain = measure.losses(visits, plain=True)
        assert not torch.allclose(measure.losses(visits), plain)
        trainer = checked(CompiledTrainer())
        for _ in range(2):
            assert torch.equal(trainer.losses(visits), plain)
        gradients = measure.gradients(visits, plain=True)
        for _ in range(2):
            assert same(trainer.gradients(visits), gradients)
    said = told(caplog)
    assert said[0].startswith(
        f"local.check: flsel asks clients for losses one by one of {type(net).__name__} "
    )
    assert len(said) == (2 if own.channels_last else 1)
    assert own.agreement.found_["losses"][0] == 3


def test_an_evaluation_that_a_layout_changes_keeps_the_usual_one(caplog):
    caplog.set_level(logging.WARNING, logger="flsel")
    own, plain = program(net=Ordered()), program(net=Ordered())
    object.__setattr__(own, "channels_last", True)
    held = Examples(own.population.x, own.population.y)
    params = {name: value.detach().clone() for name, value in own.state().items()}
    expected = Evaluator(plain).measure(params, held)
    evaluator = Evaluator(own)
    for _ in range(3):
        assert evaluator.measure(params, held) == expected
    assert len(told(caplog)) == 1


def test_answers_that_agree_are_compared_once(monkeypatch):
    asked: list[bool] = []
    losses = measure.losses

    def watched(visits: Sequence[Visit], *, plain: bool = False) -> torch.Tensor:
        asked.append(plain)
        return losses(visits, plain=plain)

    own = program()
    visits = visits_of(own, 0)
    trainer = checked(CompiledTrainer())
    expected = losses(visits)
    monkeypatch.setattr(measure, "losses", watched)
    for _ in range(3):
        assert torch.equal(trainer.losses(visits), expected)
    assert asked == [False, *[True] * len(CLIENTS), False, False]
    trainer.forget(own)
    trainer.losses(visits)
    assert asked[-len(CLIENTS) :] == [True] * len(CLIENTS)
    assert "losses" in own.agreement.compared_


@functools.cache
def _models() -> dict[str, RunConfig]:
    """The clients of shipped configs of pictures and vectors, each kind once, by the first that has it.

    Clients of one kind compute the same with other numbers: the test gives all small batches.
    """
    found: dict[str, tuple[str, RunConfig]] = {}
    for file in shipped("runs", "papers"):
        config = RunConfig.from_file(file.path)
        if config.data.name not in SHAPES:
            continue  # generated data of another task: tests/test_configs.py trains them
        plain = config.to_dict()
        kind = [plain[key] for key in ("model", "objective", "precision")] + [SHAPES[config.data.name]]
        kind += [plain["local"][key] for key in ("last_batch", "backend")]
        kind.append(plain["local"]["optimizer"]["class_path"])
        found.setdefault(str(kind), (file.name, config))
    return dict(found.values())


@pytest.mark.parametrize("name", _models())
def test_an_agreeing_check_changes_no_bit_of_a_shipped_model(name, caplog):
    caplog.set_level(logging.WARNING, logger="flsel")
    config = _models()[name]
    local = replace(config.local, epochs=None, steps=2, batch_size=min(config.local.batch_size, 8))
    config = replace(
        config, local=local, rounds=2, clients=6, clients_per_round=3, accelerator="cpu", threads=1
    )
    config = replace(config, selector=Uniform(), partition=IID(), availability=IDL())
    images, labels = stand_in(*SHAPES[config.data.name])
    source = Source(images, None, labels, None, Normalize(), "stand-in")
    states = []
    for check in ("off", "every"):
        run = build(replace(config, local=replace(local, check=check)), source)
        measured = []
        for _ in range(2):
            run.server.step()
            measured += map(float, run.server.evaluator.measure(run.server.params, run.data.test))
            measured += [
                float(value) for own in run.server.evaluator.on_clients(run.server.params) for value in own
            ]
        assert run.program.agreement.found_ == {}
        states.append((run.server.params, run.program.agreement.compared_, measured))
    (before, none, first), (after, compared, again) = states
    assert same(before, after)
    assert first == again
    assert none == []
    assert ("train" in compared) is not run.server.federation.trainer.one_by_one(run.program)
    assert told(caplog) == []


def stand_in(shape: tuple[int, ...], classes: int) -> tuple[Examples, int]:
    """Random images in place of a dataset that may not be there."""
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 1:
        x = torch.randn(100, *shape, generator=generator)
    else:
        x = torch.randint(0, 256, (100, *shape), generator=generator, dtype=torch.uint8)
    return Examples(x, torch.arange(100) % classes), classes
