"""Workers: the same numbers whatever their number, and whoever of them dies."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from lightning.pytorch import Callback, LightningModule
from runs import settings, started
from test_objective_trainers import OBJECTIVES, ready
from test_trainers import OPTIMIZERS, SPECS, Regression, largest_gap, make_program, starts_of, told, train
from torch import Tensor, nn

from flsel.commands.cli import main
from flsel.config import RunConfig
from flsel.config.groups import LocalConfig
from flsel.errors import RelayedError, UserError
from flsel.execution.executor import Resources
from flsel.execution.on_ray import visit_parts
from flsel.execution.on_ray.program_copy import copied, made_of
from flsel.execution.on_ray.workers import Workers, WorkersTrainer, workers
from flsel.execution.run import execute
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.sequential import SequentialTrainer
from flsel.local.visit import Visit, from_rows
from flsel.objectives import FedProx, LocalUpdates
from flsel.params import Params
from flsel.runner.build import build

CLIENTS = [3, 0, 2, 4, 1]


@pytest.fixture(scope="module")
def processes() -> Any:
    """Processes that stay from test to test, on a Ray that others have started."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    with workers() as found:
        yield found
    assert ray.is_initialized(), "it is not ours to end"
    ray.shutdown()


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Workers have one thread each; so has what they are compared with."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same(one: Params, other: Params) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def spread(processes: Workers, kind: Any, count: int) -> WorkersTrainer:
    config = RunConfig(local=LocalConfig(workers=count))
    trainer = processes.trainer(kind, config.local)
    assert isinstance(trainer, WorkersTrainer)
    return trainer


@pytest.mark.parametrize("kind", [SequentialTrainer, CompiledTrainer])
def test_results_do_not_depend_on_the_number_of_workers(
    kind: Any, processes: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit_parts, "WORK", 0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 4))
    program = make_program(OPTIMIZERS["momentum"], SPECS["epochs"], net=net)
    starts = starts_of(program, 5)
    ends = [train(spread(processes, kind, n), program, starts, CLIENTS, 1) for n in (1, 2)]
    assert same(ends[0], ends[1])
    alone = train(SequentialTrainer(), program, starts, CLIENTS, 1)
    assert largest_gap(ends[0], alone) < 1e-10
    if kind is SequentialTrainer:
        assert same(ends[0], alone)


@pytest.mark.parametrize(("kind", "works"), [(SequentialTrainer, True), (CompiledTrainer, False)])
def test_a_small_stack_of_models_is_not_worth_a_process(kind: Any, works: bool, processes: Workers) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    trainer, starts = spread(processes, kind, 2), starts_of(program, 5)
    assert same(train(trainer, program, starts, CLIENTS, 1), train(kind(), program, starts, CLIENTS, 1))
    assert (program in processes._sent) == works


@pytest.mark.parametrize("name", OBJECTIVES)
def test_workers_see_what_an_objective_has_learnt_since(name: str, processes: Workers) -> None:
    program = ready(OBJECTIVES[name], "sgd", "epochs")
    starts, trainer = starts_of(program, 5), spread(processes, SequentialTrainer, 2)
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
    assert largest_gap(before, after) > 1e-3
    assert largest_gap(after, train(SequentialTrainer(), program, starts, CLIENTS, 1)) < 1e-12


def test_questions_do_not_depend_on_the_number_of_workers(
    processes: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    visits = from_rows(starts_of(program, 5), CLIENTS, 1, program)
    alone = SequentialTrainer()
    assert torch.equal(spread(processes, SequentialTrainer, 2).losses(visits), alone.losses(visits))
    assert program not in processes._sent, "few examples are not worth a process"
    monkeypatch.setattr(visit_parts, "EXAMPLES", 20)
    for count in (1, 2):
        trainer = spread(processes, SequentialTrainer, count)
        assert torch.equal(trainer.losses(visits), alone.losses(visits))
        assert same(trainer.gradients(visits), alone.gradients(visits))
    assert program in processes._sent


@pytest.mark.parametrize(
    ("visits", "together", "expected"),
    [(10, None, [3, 3, 2, 2]), (3, None, [1, 1, 1]), (17, None, [2] * 7 + [3]), (10, 4, [4, 3, 3])],
)
def test_parts_are_equally_large(visits: int, together: int | None, expected: list[int]) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    start = {name: value.detach() for name, value in program.trainable().items()}
    asked = [Visit(start, client % 5, 0, program) for client in range(visits)]
    parts = visit_parts.cut_visits("train", asked, together)
    assert sorted(len(part.rows) for part in parts) == sorted(expected)
    assert sorted(row for part in parts for row in part.rows) == list(range(visits))


def test_federations_of_one_call_and_such_as_have_gone(processes: Workers) -> None:
    trainer = spread(processes, SequentialTrainer, 2)
    one = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    two = make_program(OPTIMIZERS["sgd"], SPECS["steps"], objective=FedProx(0.5))
    starts = starts_of(one, 3)
    train(trainer, one, starts, [0, 1, 2], 0)
    visits = [*from_rows(starts, [0, 1, 2], 0, one), *from_rows(starts, [2, 3, 1], 1, two)]
    assert same(trainer.train(visits), SequentialTrainer().train(visits))
    assert len(processes.known) >= 2
    del one, two, visits
    gc.collect()
    assert not processes.known


class Failing(Regression):
    """A step that fails."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        raise ArithmeticError("no such number")


def test_an_error_in_a_worker_is_told_and_workers_go_on(processes: Workers) -> None:
    program = make_program(None, SPECS["epochs"], net=Failing())
    trainer, starts = spread(processes, SequentialTrainer, 2), starts_of(program, 5)
    with pytest.raises(RelayedError, match=r"raised ArithmeticError: no such number"):
        train(trainer, program, starts, CLIENTS, 1)
    program = make_program(None, SPECS["epochs"], net=Regression())
    assert same(
        train(trainer, program, starts, CLIENTS, 1), train(SequentialTrainer(), program, starts, CLIENTS, 1)
    )


class Telling(Regression):
    """A step that logs, as flsel does where it does not compile one."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        logging.getLogger("flsel").warning("one sentence for %s", "you")
        return super().training_step(batch, batch_idx)


def test_what_workers_log_is_said_once(processes: Workers, caplog: pytest.LogCaptureFixture) -> None:
    program = make_program(None, SPECS["epochs"], net=Telling())
    train(spread(processes, SequentialTrainer, 2), program, starts_of(program, 5), CLIENTS, 1)
    assert told(caplog) == ["one sentence for you"]


class Noisy(nn.Linear):
    """A network that no compiled step can have."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + torch.rand(())


def test_that_workers_do_not_compile_a_model_is_said_once(
    processes: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(visit_parts, "WORK", 0)
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps wrapped"], net=Noisy(6, 4))
    trainer = spread(processes, CompiledTrainer, 2)
    for round in range(2):
        train(trainer, program, starts_of(program, 5), CLIENTS, round)
    assert program in processes._sent
    (said,) = told(caplog)
    assert said.startswith("local.backend: the step is not compiled, since it draws random numbers")
    assert said.endswith("is 0); sequential trains instead")


class Odd(torch.optim.SGD):
    """An optimizer with a number of its own, which its own pickle leaves out."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.slower = 0.5

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] *= self.slower
        super().step()


def hooked() -> nn.Module:
    """A network with hooks, and tensors that share memory."""
    net: Any = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    net.twin = net[0].weight.data
    net[0].weight.register_hook(lambda grad: 2 * grad * net[0].weight.sign())
    net[0].bias.register_post_accumulate_grad_hook(_tripled)
    net[2].register_forward_hook(lambda layer, inputs, output: 1.5 * output)
    return net  # type: ignore[no-any-return]


def test_hooks_and_shared_memory_reach_workers(processes: Workers) -> None:
    program = make_program(Odd, SPECS["epochs"], net=hooked())
    starts = starts_of(program, 5)
    program.optimizer.register_step_pre_hook(_halved)
    ends = train(spread(processes, SequentialTrainer, 2), program, starts, CLIENTS, 1)
    assert same(ends, train(SequentialTrainer(), program, starts, CLIENTS, 1))
    made: Any = made_of(copied(program)).model
    assert made.twin.data_ptr() == made[0].weight.data_ptr()


def _tripled(param: Any) -> None:
    param.grad.mul_(3)


def _halved(optimizer: Any, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad.mul_(0.5)


def test_a_model_that_cannot_be_sent_is_one_sentence() -> None:
    net: Any = nn.Linear(6, 4)
    net.lock = threading.Lock()
    with pytest.raises(
        UserError,
        match=r"local.workers must be 1 with model Linear, which cannot be .* pickle '_thread.lock' object",
    ):
        copied(make_program(None, SPECS["epochs"], net=net))


def server_of(folder: Path, processes: Workers, count: int, **changes: Any) -> Any:
    local = LocalConfig(batch_size=5, steps=3, backend="sequential", workers=count)
    return build(settings(folder, local=local, **changes), workers=processes).server


def test_a_run_with_workers_is_the_same_run(tmp_path: Path, processes: Workers) -> None:
    net = nn.Sequential(nn.Linear(8, 4))  # an object, which no settings describe
    states = []
    for count in (1, 2, 2):  # each goes, and its workers stay
        server = server_of(tmp_path, processes, count, model=net)
        for _ in range(3):
            server.step()
        states.append(server.params)
    assert same(states[0], states[1])
    assert same(states[0], states[2])


class Unlike(nn.Linear):
    """Trains another way in a worker."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.home = os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if os.getpid() == self.home else 2)


def test_the_self_check_covers_the_way_to_the_workers(
    tmp_path: Path, processes: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [server_of(tmp_path, processes, count, model=Unlike) for count in (1, 2)]
    for server in servers:
        for _ in range(3):
            server.step()
    assert same(servers[0].params, servers[1].params)
    (said,) = told(caplog)
    assert "since sequential in 2 workers trains client" in said


class Annealed(LightningModule):
    """Its step reads what a callback writes."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1]) * self.factor

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Anneals(Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.factor = 0.5**trainer.current_epoch


def test_what_a_callback_writes_to_the_module_reaches_workers(tmp_path: Path, processes: Workers) -> None:
    found = []
    for count in (1, 2):
        local = LocalConfig(5, steps=3, backend="sequential", workers=count)
        config = settings(tmp_path, model=Annealed, callbacks=(Anneals,), local=local, rounds=3)
        found.append(execute(started(config, workers=processes)).final["test/loss"])
    assert found[0] == found[1]


class Broken(nn.Linear):
    """Fails where it trains."""

    def __init__(self) -> None:
        super().__init__(60, 10)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and self.training:
            raise ArithmeticError("no such number")
        return super().forward(x)


@pytest.mark.usefixtures("here")
def test_an_error_in_the_users_model_is_told_the_same_whatever_the_number_of_workers(
    tmp_path: Path, processes: Workers
) -> None:
    """One sentence, and nothing left of a run that never got through a round."""
    said = []
    for count in (1, 2):
        local = LocalConfig(backend="sequential", check="off", workers=count)
        with pytest.raises(UserError) as raised:
            execute(started(RunConfig(model=Broken, local=local, quiet=True), workers=processes))
        said.append(str(raised.value))
        assert not list((tmp_path / "runs").iterdir())
    assert "raised ArithmeticError: no such number (test_workers.py, line" in said[0]
    assert said[0] == said[1]


def test_more_workers_than_ray_has_room_for_are_refused(processes: Workers) -> None:
    program = make_program(None, SPECS["epochs"])
    with pytest.raises(UserError, match=r"local.workers 9 asks for more than .* this machine has: 2 CPUs"):
        train(spread(processes, SequentialTrainer, 9), program, starts_of(program, 5), CLIENTS, 1)


def test_runs_that_ray_executes_have_no_workers_of_their_own(tmp_path: Path) -> None:
    config = settings(tmp_path, local=LocalConfig(workers=2))
    with pytest.raises(UserError, match=r"local.workers must be 1 where Ray .*max_concurrent"):
        Resources().fit(config)
    with pytest.raises(UserError, match=r"local.workers must be 1 where Ray or Flower"):
        build(config)


def test_without_a_cluster_the_command_says_so(capsys: Any, tmp_path: Path) -> None:
    assert main(["train", "--address", "127.0.0.1:1", "--output.dir", str(tmp_path)]) == 2
    assert "is not a Ray cluster that answers" in capsys.readouterr().err


def test_the_number_of_workers_is_checked() -> None:
    with pytest.raises(UserError, match=r"local\.workers must be .*\[1, 256\], got 0"):
        LocalConfig(workers=0)


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


def test_killed_workers_are_replaced_and_nothing_changes(
    tmp_path: Path, processes: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make_program(None, SPECS["epochs"], net=Deadly(tmp_path / "flag"))
    starts, trainer = starts_of(program, 5), spread(processes, SequentialTrainer, 1)
    alone = train(SequentialTrainer(), program, starts, CLIENTS, 1)
    assert same(train(trainer, program, starts, CLIENTS, 1), alone)
    assert (tmp_path / "flag").exists()
    ray.kill(processes.ready[0])  # between two calls
    assert same(train(trainer, program, starts, CLIENTS, 1), alone)
    monkeypatch.setattr("flsel.execution.on_ray.worker_call._ATTEMPTS", 1)
    program = make_program(None, SPECS["epochs"], net=Deadly(tmp_path / "flag", always=True))
    with pytest.raises(UserError, match=r"1 workers ended over clients .*lower local\.workers"):
        train(spread(processes, SequentialTrainer, 1), program, starts_of(program, 5), CLIENTS, 1)


INTERRUPTED = """
import os, signal, sys
import flsel.runner.session
from flsel.commands.cli import main

close = flsel.runner.session.Session.close_round

def closing(session, *given):
    if session.server.round == 1:
        os.killpg(0, signal.SIGINT)  # as a terminal does
    return close(session, *given)

flsel.runner.session.Session.close_round = closing
if __name__ == "__main__":
    words = ["--local.workers", "2", "--local.backend", "sequential", "--rounds", "4", "--output.name", "run"]
    code = main(["train", *words]) if len(sys.argv) == 1 else main(["train", *sys.argv[1:]])
    print(os.environ.get("FLSEL_CLUSTER"))
    sys.exit(code)
"""


def test_ctrl_c_stops_a_run_with_a_ray_of_its_own_and_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    command = [sys.executable, "interrupted.py"]
    own = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=own, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "stopping after this round" in said
    assert "continue with: flsel train --resume runs/run" in said
    assert (tmp_path / "runs/run/checkpoints/last.ckpt").exists()
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _text(path)]
    assert not left


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
