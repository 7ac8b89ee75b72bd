"""Workers: the same numbers whatever their number, and whoever of them dies."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, settings
from test_objective_trainers import OBJECTIVES, ready
from test_trainers import OPTIMIZERS, SPECS, Regression, largest_gap, make_program, starts_of, train
from torch import Tensor

from flsel.commands.cli import main
from flsel.config.groups import LocalConfig
from flsel.errors import RelayedError, UserError
from flsel.local import share
from flsel.local.block import Block, layout
from flsel.local.compiled.trainer import CompiledTrainer
from flsel.local.sequential import SequentialTrainer
from flsel.local.vectorised import VmapTrainer
from flsel.local.visit import Visit, from_rows
from flsel.local.workers import WorkersTrainer
from flsel.objectives import FedProx, LocalUpdates
from flsel.params import Params

CLIENTS = [3, 0, 2, 4, 1]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Workers have one thread each; so has what they are compared with."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same(one: Params, other: Params) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", [SequentialTrainer, VmapTrainer, CompiledTrainer])
def test_results_do_not_depend_on_the_number_of_workers(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "WORK", 0)
    program = make_program(OPTIMIZERS["momentum"], SPECS["epochs"])
    starts = starts_of(program, 5)
    ends = [train(WorkersTrainer(kind, n), program, starts, CLIENTS, 1) for n in (1, 2, 3)]
    assert same(ends[0], ends[1])
    assert same(ends[0], ends[2])
    alone = train(SequentialTrainer(), program, starts, CLIENTS, 1)
    assert largest_gap(ends[0], alone) < 1e-10
    if kind is SequentialTrainer:
        assert same(ends[0], alone)


@pytest.mark.parametrize(("kind", "works"), [(SequentialTrainer, True), (CompiledTrainer, False)])
def test_a_small_stack_of_models_is_not_worth_a_process(kind: Any, works: bool) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    trainer, starts = WorkersTrainer(kind, 2), starts_of(program, 5)
    assert same(train(trainer, program, starts, CLIENTS, 1), train(kind(), program, starts, CLIENTS, 1))
    assert bool(trainer._workers) == works


@pytest.mark.parametrize("name", OBJECTIVES)
def test_workers_see_what_an_objective_has_learnt_since(name: str) -> None:
    program = ready(OBJECTIVES[name], "sgd", "epochs")
    starts, trainer = starts_of(program, 5), WorkersTrainer(SequentialTrainer, 2)
    before = train(trainer, program, starts, CLIENTS, 1)
    model = {key: value.detach().clone() for key, value in program.trainable().items()}
    program.objective.observe(
        LocalUpdates(
            clients=torch.tensor([1, 4, 3]),
            starts=model,
            deltas={n: torch.full((3, *v.shape), 0.2).to(v) for n, v in model.items()},
            steps=torch.tensor([2, 2, 2]),
            reach=lambda: {n: torch.full((3,), 0.2, dtype=torch.float64) for n in model},
            labels=lambda: torch.tensor([[5, 0, 1, 0], [0, 3, 0, 0], [2, 2, 2, 0]]),
            round=1,
            rng=np.random.default_rng(0),
        )
    )
    after = train(trainer, program, starts, CLIENTS, 1)
    assert not same(before, after)
    assert same(after, train(SequentialTrainer(), program, starts, CLIENTS, 1))


def test_questions_do_not_depend_on_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    visits = from_rows(starts_of(program, 5), CLIENTS, 1, program)
    alone = SequentialTrainer()
    small = WorkersTrainer(SequentialTrainer, 2)
    assert torch.equal(small.losses(visits), alone.losses(visits))
    assert not small._workers, "few examples are not worth a process"
    monkeypatch.setattr(share, "EXAMPLES", 20)
    for count in (1, 3):
        trainer = WorkersTrainer(SequentialTrainer, count)
        assert torch.equal(trainer.losses(visits), alone.losses(visits))
        assert same(trainer.gradients(visits), alone.gradients(visits))
        assert len(trainer._workers) == count


@pytest.mark.parametrize(
    ("visits", "together", "expected"),
    [(10, None, [3, 3, 2, 2]), (3, None, [1, 1, 1]), (17, None, [2] * 7 + [3]), (10, 4, [4, 3, 3])],
)
def test_parts_are_equally_large(visits: int, together: int | None, expected: list[int]) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    start = {name: value.detach() for name, value in program.trainable().items()}
    asked = [Visit(start, client % 5, 0, program) for client in range(visits)]
    parts = share.cut("train", asked, [program], together)
    assert sorted(len(part.rows) for part in parts) == sorted(expected)
    assert sorted(row for part in parts for row in part.rows) == list(range(visits))


def test_federations_that_come_later_are_trained_too() -> None:
    trainer = WorkersTrainer(SequentialTrainer, 2)
    one = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    two = make_program(OPTIMIZERS["sgd"], SPECS["steps"], objective=FedProx(0.5))
    starts = starts_of(one, 3)
    train(trainer, one, starts, [0, 1, 2], 0)
    visits = [*from_rows(starts, [0, 1, 2], 0, one), *from_rows(starts, [2, 3, 1], 1, two)]
    assert same(trainer.train(visits), SequentialTrainer().train(visits))


def test_memory_is_shared_once_and_never_holds_an_earlier_call() -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    trainer, alone = WorkersTrainer(SequentialTrainer, 2), SequentialTrainer()
    starts = starts_of(program, 5)
    first = train(trainer, program, starts, CLIENTS, 0)
    kept, shared = {name: value.clone() for name, value in first.items()}, trainer._memory["train"]
    other = {name: value + 0.25 for name, value in starts.items()}
    assert same(train(trainer, program, other, CLIENTS, 1), train(alone, program, other, CLIENTS, 1))
    assert trainer._memory["train"] is shared
    assert same(first, kept), "a caller's answers are its own"
    few = {name: value[:2] for name, value in other.items()}
    assert same(train(trainer, program, few, [4, 1], 1), train(alone, program, few, [4, 1], 1))
    assert same(train(trainer, program, starts, CLIENTS, 0), first)


class Deadly(Regression):
    """Kills its process when it meets a batch of seven, the first time or every time."""

    def __init__(self, flag: Path, always: bool = False) -> None:
        super().__init__()
        self.flag, self.always, self.home = flag, always, os.getpid()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        if os.getpid() != self.home and len(batch[1]) == 7 and (self.always or not self.flag.exists()):
            self.flag.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_is_replaced_and_nothing_changes(tmp_path: Path, workers: int) -> None:
    program = make_program(None, SPECS["epochs"], net=Deadly(tmp_path / "flag"))
    starts = starts_of(program, 5)
    ends = train(WorkersTrainer(SequentialTrainer, workers), program, starts, CLIENTS, 1)
    assert (tmp_path / "flag").exists()
    assert same(ends, train(SequentialTrainer(), program, starts, CLIENTS, 1))


def test_a_worker_killed_between_calls_is_replaced() -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    starts, trainer = starts_of(program, 5), WorkersTrainer(SequentialTrainer, 2)
    first = train(trainer, program, starts, CLIENTS, 1)
    for worker in trainer._workers:
        worker.process.kill()
        worker.process.join()
    assert same(first, train(trainer, program, starts, CLIENTS, 1))


def test_a_worker_that_dies_before_it_takes_its_memory_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    starts, trainer = starts_of(program, 5), WorkersTrainer(SequentialTrainer, 2)
    hand, killed = Block.hand, []

    def killing(memory: Block, pipe: Connection, process: int) -> None:
        if len(killed) < 2:
            killed.append(process)
            os.kill(process, signal.SIGKILL)
        hand(memory, pipe, process)

    monkeypatch.setattr(Block, "hand", killing)
    ends = train(trainer, program, starts, CLIENTS, 1)
    assert len(killed) == 2
    assert same(ends, train(SequentialTrainer(), program, starts, CLIENTS, 1))
    assert capfd.readouterr().err == ""


def test_a_block_keeps_shapes_and_kinds_of_what_it_holds() -> None:
    stack = {
        "a": torch.arange(6.0).view(2, 3),
        "none": torch.empty((2, 0)),
        "count": torch.tensor([3, 5]),
        "b": torch.rand(2, 1, dtype=torch.float64),
    }
    block = Block(layout(stack), layout({"loss": torch.zeros(())}, 7))
    for name, value in stack.items():
        assert block.starts[name].dtype == value.dtype
        block.starts[name].copy_(value)
    assert same(block.starts, stack)
    assert block.answers["loss"].shape == (7,)


def test_visits_that_kill_every_worker_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    program = make_program(None, SPECS["epochs"], net=Deadly(tmp_path / "flag", always=True))
    trainer = WorkersTrainer(SequentialTrainer, 2)
    with pytest.raises(UserError, match=r"3 workers ended .* clients .*lower local\.workers"):
        train(trainer, program, starts_of(program, 5), CLIENTS, 1)
    assert not trainer._workers


class Failing(Regression):
    """A step that fails."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        raise ArithmeticError("no such number")


def test_an_error_in_a_worker_ends_the_workers() -> None:
    program = make_program(None, SPECS["epochs"], net=Failing())
    trainer = WorkersTrainer(SequentialTrainer, 2)
    with pytest.raises(RelayedError, match=r"raised ArithmeticError: no such number"):
        train(trainer, program, starts_of(program, 5), CLIENTS, 1)
    assert not trainer._workers


BROKEN = """
import torch

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(60, 10)

    def forward(self, x):
        if torch.is_grad_enabled() and self.training:
            raise ArithmeticError("no such number")
        return super().forward(x.flatten(1))
"""


@pytest.mark.usefixtures("here")
def test_an_error_in_the_users_model_is_told_the_same_whatever_the_number_of_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit code 2, and nothing left of a run that never got through a round."""
    (tmp_path / "broken_in_training.py").write_text(BROKEN)
    said = []
    for workers in ("1", "2"):
        words = ["--model", "broken_in_training.Net", "--local.backend", "sequential", "--quiet", "true"]
        assert main(["train", *words, "--local.workers", workers, "--output.name", "run"]) == 2
        said.append(capsys.readouterr().err)
        assert not (tmp_path / "runs" / "run").exists()
    assert "raised ArithmeticError: no such number (broken_in_training.py, line" in said[0]
    assert said[0] == said[1]


def test_a_run_with_workers_is_the_same_run(tmp_path: Path) -> None:
    states = []
    for workers in (1, 2):
        local = LocalConfig(batch_size=5, steps=3, backend="sequential", workers=workers)
        server = built(settings(tmp_path, local=local)).server
        for _ in range(3):
            server.step()
        states.append(server.params)
    assert same(*states)


def test_the_number_of_workers_is_checked() -> None:
    with pytest.raises(UserError, match=r"local\.workers must be .*\[1, 256\], got 0"):
        LocalConfig(workers=0)
