"""The trainers against each other, and against plain PyTorch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import Tensor, nn, optim

from flsel.data.population import Normalize, Population
from flsel.errors import UserError
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.compiled.refusals import require_compiled, why_not_compiled
from flsel.local.judge import CheckedTrainer
from flsel.local.program import Program
from flsel.local.schedule import BatchSpec, batch_table, lr_factors
from flsel.local.sequential import SequentialTrainer, without_constants
from flsel.local.tasks import Classifier, as_task, make_optimizer
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import from_rows, put_end
from flsel.objectives import FedAvg, FedProx, Objective
from flsel.params import Params

SIZES = (7, 23, 1, 40, 16)


def make_program(
    optimizer: Any,
    spec: BatchSpec,
    *,
    net: nn.Module | None = None,
    objective: Objective | None = None,
    precision: Any = "64-true",
    factors: list[float] | None = None,
) -> Program:
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(SIZES), 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (sum(SIZES),), generator=generator)
    shards = torch.split(torch.randperm(sum(SIZES), generator=generator), SIZES)
    net = net or nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    task = as_task(net, optimizer)
    fabric.setup_module(task)
    dtype = next(task.parameters()).dtype
    population = Population(x.to(dtype), y, shards, 4, Normalize().to(dtype))
    return Program(
        task=task,
        model=net,
        population=population,
        spec=spec,
        objective=objective or FedAvg(),
        lr_factors=factors or [1.0] * 5,
        seed=1,
        optimizer=make_optimizer(task, None),
        fabric=fabric,
    )


def starts_of(program: Program, rows: int) -> Params:
    # Rows start apart, as along FedCat's paths: no trainer may mix them up.
    return {
        name: torch.stack([value.detach() + 0.1 * row for row in range(rows)])
        for name, value in program.state().items()
    }


def train(trainer: LocalTrainer, program: Program, starts: Params, clients: Any, round: int) -> Params:
    return trainer.train(from_rows(starts, list(clients), round, program))


def told(caplog: Any) -> list[str]:
    """What our own loggers said; torch's write debugging lines while it traces."""
    return [record.getMessage() for record in caplog.records if record.name == "flsel"]


def largest_gap(one: Params, other: Params) -> float:
    return max(float((one[name] - other[name]).detach().abs().max()) for name in one)


OPTIMIZERS = {
    "sgd": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "weight decay": partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": partial(optim.Adam, lr=0.01),
    "adamw": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
}
STACKS = (CompiledTrainer,)
SPECS = {
    "epochs": BatchSpec(8, epochs=2),
    "epochs wrapped": BatchSpec(8, epochs=2, last="wrap"),
    "steps": BatchSpec(8, steps=5),
    "steps wrapped": BatchSpec(8, steps=5, last="wrap"),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("objective", [FedAvg(), FedProx(0.5)], ids=["fedavg", "fedprox"])
@pytest.mark.parametrize("kind", STACKS)
def test_trainers_agree_in_float64(
    optimizer: str, spec: str, objective: Objective, kind: Any, caplog: Any
) -> None:
    program = make_program(OPTIMIZERS[optimizer], SPECS[spec], objective=objective)
    clients = [3, 0, 2, 4, 1]
    starts = starts_of(program, len(clients))
    before = {name: value.clone() for name, value in starts.items()}
    one = train(SequentialTrainer(), program, starts, clients, 2)
    trainer = kind()
    for _ in range(2):
        assert largest_gap(one, train(trainer, program, starts, clients, 2)) < 1e-10
    assert largest_gap(one, starts) > 1e-3
    assert largest_gap(before, starts) == 0.0
    assert not told(caplog)  # Nothing was left to another trainer.


@pytest.mark.parametrize("kind", STACKS)
@pytest.mark.parametrize("chunk", [1, 2, 3, None])
def test_chunks_do_not_change_the_result(chunk: int | None, kind: Any) -> None:
    program = make_program(OPTIMIZERS["momentum"], SPECS["epochs"])
    starts = starts_of(program, 5)
    whole = train(kind(), program, starts, range(5), 0)
    assert largest_gap(whole, train(kind(chunk), program, starts, range(5), 0)) < 1e-12


@pytest.mark.parametrize("kind", [SequentialTrainer, *STACKS])
def test_a_client_does_not_depend_on_its_cohort(kind: Any) -> None:
    program = make_program(OPTIMIZERS["adam"], SPECS["epochs"])
    trainer = kind()
    starts = starts_of(program, 5)
    whole = train(trainer, program, starts, [0, 1, 2, 3, 4], 1)
    alone = train(trainer, program, {name: value[3:4] for name, value in starts.items()}, [3], 1)
    assert largest_gap({name: value[3:4] for name, value in whole.items()}, alone) < 1e-12


@pytest.mark.parametrize("kind", [SequentialTrainer, *STACKS])
def test_a_visit_is_plain_pytorch(kind: Any) -> None:
    spec = SPECS["epochs"]
    program = make_program(OPTIMIZERS["weight decay"], spec, factors=[1.0, 0.5])
    starts = starts_of(program, 1)
    ends = train(kind(), program, starts, [1], 1)

    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    net.load_state_dict({name: value[0] for name, value in starts.items()})
    plain = optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    data = program.population
    for row in batch_table(spec, data.shards[1].numpy(), seed=1, round=1, client=1):
        where = row[row >= 0]
        loss = nn.functional.cross_entropy(net(data.x[where]), data.y[where])
        plain.zero_grad()
        loss.backward()
        plain.step()
    assert largest_gap({name: value[0] for name, value in ends.items()}, dict(net.named_parameters())) < 1e-12


def test_fedprox_adds_the_gradient_of_its_penalty() -> None:
    mu, spec = 0.7, BatchSpec(64, steps=2)
    program = make_program(OPTIMIZERS["sgd"], spec, objective=FedProx(mu))
    starts = starts_of(program, 1)
    ends = train(SequentialTrainer(), program, starts, [3], 0)

    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    net.load_state_dict({name: value[0] for name, value in starts.items()})
    plain = optim.SGD(net.parameters(), lr=0.1)
    where = program.population.shards[3]
    for _ in range(2):
        penalty = sum(((p - starts[n][0]) ** 2).sum() for n, p in net.named_parameters())
        loss = nn.functional.cross_entropy(net(program.population.x[where]), program.population.y[where])
        plain.zero_grad()
        (loss + mu / 2 * penalty).backward()
        plain.step()
    assert largest_gap({name: value[0] for name, value in ends.items()}, dict(net.named_parameters())) < 1e-12


class Regression(LightningModule):
    """A user's own LightningModule: another loss, returned in a mapping, two parameter groups."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)
        self.top = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(torch.relu(self.body(x)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        x, y = batch
        return {"loss": nn.functional.mse_loss(self(x), nn.functional.one_hot(y, 4).to(x.dtype))}

    def configure_optimizers(self) -> optim.Optimizer:
        groups = [{"params": self.body.parameters(), "lr": 0.1}, {"params": self.top.parameters()}]
        return optim.SGD(groups, lr=0.02, momentum=0.5)


@pytest.mark.parametrize("kind", STACKS)
@pytest.mark.parametrize("spec", ["epochs", "steps wrapped"])
def test_trainers_agree_on_a_lightning_module(kind: Any, spec: str, caplog: Any) -> None:
    program = make_program(None, SPECS[spec], net=Regression())
    assert program.model is program.task
    starts = starts_of(program, 4)
    one = train(SequentialTrainer(), program, starts, [0, 1, 2, 3], 0)
    other = train(kind(), program, starts, [0, 1, 2, 3], 0)
    assert largest_gap(one, other) < 1e-10
    assert largest_gap(one, starts) > 1e-3
    assert not told(caplog)


@pytest.mark.parametrize("wrap", [lambda made: [made], lambda made: {"optimizer": made}])
def test_one_optimizer_may_be_wrapped_as_lightning_takes_it(wrap: Any, monkeypatch: Any) -> None:
    task = as_task(Regression(), None)
    plain = make_optimizer(task, None)
    monkeypatch.setattr(task, "configure_optimizers", lambda: wrap(plain))
    assert make_optimizer(task, None) is plain


class Padded(nn.Module):
    """Sums what it knows of tokens, the first of which stands for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(9, 5, padding_idx=-9), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.tokens(x).sum(dim=1))
        return out


def twice() -> nn.Module:
    """A layer by two names."""
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(6, 4))


def normed() -> nn.Module:
    """A layer that keeps in itself what it made of its parameters in the step before."""
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 4))  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:There is a performance drop")
@pytest.mark.parametrize("kind", STACKS)
@pytest.mark.parametrize("net", [Padded, twice, normed])
def test_trainers_agree_on_layers_that_a_stack_is_hard_on(net: Any, kind: Any) -> None:
    program = make_program(OPTIMIZERS["weight decay"], SPECS["epochs"], net=net())
    if net is Padded:
        tokens = torch.randint(0, 9, (sum(SIZES), 3), generator=torch.Generator().manual_seed(0))
        program = replace(program, population=replace(program.population, x=tokens, normalize=Normalize()))
    starts = starts_of(program, 5)
    one = train(SequentialTrainer(), program, starts, [3, 0, 2, 4, 1], 0)
    assert largest_gap(one, train(kind(), program, starts, [3, 0, 2, 4, 1], 0)) < 1e-10
    assert largest_gap(one, starts) > 1e-3


def test_bf16_mixed_computes_in_bfloat16_and_keeps_float32() -> None:
    seen = Mock()  # a list would be put back

    class Spy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            output = super().forward(input)
            seen(output.dtype)
            return output

    program = make_program(
        OPTIMIZERS["sgd"], SPECS["steps"], net=nn.Sequential(Spy(6, 4)), precision="bf16-mixed"
    )
    ends = train(SequentialTrainer(), program, starts_of(program, 2), [1, 3], 0)
    assert {call.args[0] for call in seen.call_args_list} == {torch.bfloat16}
    assert {value.dtype for value in ends.values()} == {torch.float32}
    with pytest.raises(UserError, match="mixed precision"):
        require_compiled(program)


@pytest.mark.parametrize("net", [nn.Linear, nn.LayerNorm, nn.BatchNorm1d])
def test_bf16_true_trains_in_bfloat16_and_updates_float32(net: Any, caplog: Any) -> None:
    seen = Mock()  # a list would be put back

    class Spy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            output = super().forward(input)
            seen(self.training, output.dtype)
            return output

    layers = (nn.Linear(6, 8), net(8, 8) if net is nn.Linear else net(8), nn.Tanh(), Spy(8, 4))
    program = make_program(
        OPTIMIZERS["momentum"], SPECS["epochs"], net=nn.Sequential(*layers), precision="32-true"
    )
    starts = starts_of(program, 3)
    exact = train(SequentialTrainer(), program, starts, [1, 3, 0], 0)
    program.task.compute = torch.bfloat16
    program.kept.renew()
    seen.reset_mock()
    kinds: Any = [SequentialTrainer] if net is nn.BatchNorm1d else [SequentialTrainer, *STACKS]
    for kind in kinds:
        ends = train(kind(), program, starts, [1, 3, 0], 0)
        assert {value.dtype for value in ends.values()} == {torch.float32}
        assert 0 < largest_gap(ends, exact) < 0.1 * largest_gap(exact, starts)
    assert not told(caplog)
    SequentialTrainer().losses(from_rows({n: v[:1] for n, v in starts.items()}, [1], 0, program))
    assert {call.args for call in seen.call_args_list} == {(True, torch.bfloat16), (False, torch.float32)}


class Noisy(nn.Linear):
    """Draws from a global generator, by default torch's."""

    def __init__(self, draw: Callable[[], Any] | None = None) -> None:
        super().__init__(6, 4)
        self.draw = draw or partial(torch.randn, 4)

    def forward(self, input: Tensor) -> Tensor:
        logits = super().forward(input)
        return logits * self.draw() if self.training else logits


class Counting(nn.Linear):
    """Counts its steps in a buffer."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        self.steps += self.training
        return super().forward(input) / (1 + self.steps)


@pytest.mark.parametrize("draw", [partial(torch.randn, 4), random.random, np.random.random])
def test_what_layers_draw_depends_on_seed_round_and_client_only(draw: Callable[[], Any]) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=Noisy(draw))
    trainer = SequentialTrainer()
    starts = starts_of(program, 2)
    state = torch.random.get_rng_state()
    both = train(trainer, program, starts, [1, 3], 0)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(17), random.random(), np.random.random()
    alone = train(trainer, program, {name: value[1:] for name, value in starts.items()}, [3], 0)
    assert largest_gap({name: value[1:] for name, value in both.items()}, alone) == 0.0
    assert largest_gap(alone, train(trainer, program, {n: v[1:] for n, v in starts.items()}, [3], 1)) > 0.0


def test_batchnorm_statistics_travel_with_the_sequential_trainer() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    program = make_program(OPTIMIZERS["sgd"], BatchSpec(8, steps=2, last="wrap"), net=net)
    assert {"1.running_mean", "1.running_var"} <= set(program.state())
    starts = starts_of(program, 2)
    ends = train(SequentialTrainer(), program, starts, [1, 3], 0)
    assert not torch.equal(ends["1.running_mean"][0], ends["1.running_mean"][1])


class Slowing(optim.SGD):
    """Counts its steps in itself."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        self.param_groups[0]["lr"] = 0.1 / self.calls
        return super().step(closure)


@pytest.mark.parametrize("optimizer", [OPTIMIZERS["sgd"], Slowing])
def test_what_is_not_sent_is_no_clients_legacy(optimizer: Any) -> None:
    # With momentum=None a batch counts by the number of batches before it, an integer buffer.
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None))
    program = make_program(optimizer, BatchSpec(8, steps=3, last="wrap"), net=net)
    starts = starts_of(program, 2)
    ends = train(SequentialTrainer(), program, starts, [1, 3], 0)
    again = train(SequentialTrainer(), program, {n: v.flip(0) for n, v in starts.items()}, [3, 1], 0)
    assert largest_gap(ends, {name: value.flip(0) for name, value in again.items()}) == 0.0


class Clipped(optim.SGD):
    """Clips the norm of all gradients together: a stack's would be that of all clients."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


class Recurrent(nn.LSTMCell):
    """A cell that ``vmap`` has no rule for."""

    def __init__(self) -> None:
        super().__init__(6, 4)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def pre_hooked(params: Any) -> optim.Optimizer:
    optimizer = optim.SGD(params, lr=0.1)
    optimizer.register_step_pre_hook(lambda *step: None)
    return optimizer


def hooked(register: str) -> nn.Module:
    net = nn.Linear(6, 4)
    owner: Any = net if register == "register_full_backward_hook" else net.weight
    getattr(owner, register)(lambda *given: None)
    return net


class Causal(nn.Module):
    """Lets three tokens of two numbers look back, by a mask of infinities; a frozen gate is zero."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(2, 4), nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
        self.register_buffer("places", torch.linspace(0, 1, 3)[:, None], **options)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.encode(x.view(-1, 3, 2) + self.places) + self.gate
        seen = (tokens @ tokens.transpose(1, 2) + self.mask).softmax(dim=2) @ tokens
        out: Tensor = self.head(seen.mean(dim=1))
        return out


def test_buffers_with_infinities_are_constants_and_frozen_zeros_no_obstacle(caplog: Any) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], net=Causal(persistent=False))
    assert set(program.state()) == set(program.trainable())
    trainer, starts = CompiledTrainer(), starts_of(program, 3)
    ends = train(trainer, program, starts, range(3), 0)
    assert not told(caplog)
    assert not trainer.one_by_one(program)
    assert all(bool(value.isfinite().all()) for value in ends.values())
    assert largest_gap(ends, train(SequentialTrainer(), program, starts, range(3), 0)) < 1e-10
    program.load({name: value[0] * math.nan for name, value in starts.items()})
    assert set(program.state()) == set(program.trainable())  # the initial model decides


def test_a_constant_buffer_of_nan_is_not_sent() -> None:
    net = Causal(persistent=True)
    net.register_buffer("seen", torch.full((2,), math.nan))
    program = without_constants(make_program(OPTIMIZERS["sgd"], SPECS["epochs"], net=net))
    assert "seen" not in program.state()


def test_what_is_said_of_a_buffer_that_is_sent_names_it_and_what_to_do() -> None:
    reason = why_not_compiled(make_program(OPTIMIZERS["sgd"], SPECS["epochs"], net=Causal()))
    assert reason is not None
    assert reason.startswith("its step changes floating-point buffers, here places (")


class FrozenNorm(nn.Module):
    """A pretrained body whose BatchNorm keeps its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 5))

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.norm(self.body(x))) * self.scale)
        return out


@pytest.mark.parametrize("net", [Causal, FrozenNorm])
def test_buffers_that_steps_leave_alone_are_not_sent_and_no_obstacle(net: Any, caplog: Any) -> None:
    made = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], net=net())
    before = {name: value.detach().clone() for name, value in made.state().items()}
    assert set(before) > set(made.trainable())
    program = without_constants(made)
    assert set(program.state()) == set(program.trainable())
    assert all(torch.equal(value, before[name]) for name, value in program.state().items())
    starts = starts_of(program, 3)
    trainer = CheckedTrainer(CompiledTrainer(), "compiled")
    ends = train(trainer, program, starts, range(3), 0)
    assert not trainer.one_by_one(program)
    assert largest_gap(ends, train(SequentialTrainer(), program, starts, range(3), 0)) < 1e-10
    assert not told(caplog)


def test_buffers_that_steps_change_are_sent() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    program = without_constants(make_program(OPTIMIZERS["sgd"], SPECS["steps wrapped"], net=net))
    assert set(program.state()) - set(program.trainable()) == {"1.running_mean", "1.running_var"}
    assert why_not_compiled(program) is not None


@pytest.mark.parametrize(
    ("net", "optimizer", "reason"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), OPTIMIZERS["sgd"], "GroupNorm"),
        (nn.Linear(6, 4), partial(optim.Adafactor, lr=0.1), "element"),
        (nn.Linear(6, 4), partial(Clipped, lr=0.1), "element"),
        (nn.Linear(6, 4), pre_hooked, "optimizer's step"),
        (Recurrent(), OPTIMIZERS["sgd"], "Recurrent is not supported by torch.func.vmap"),
        (hooked("register_hook"), OPTIMIZERS["sgd"], "hooks"),
        (hooked("register_post_accumulate_grad_hook"), OPTIMIZERS["sgd"], "hooks"),
        (hooked("register_full_backward_hook"), OPTIMIZERS["sgd"], "hooks"),
    ],
)
def test_what_cannot_be_stacked_is_refused(net: nn.Module, optimizer: Any, reason: str) -> None:
    program = make_program(optimizer, SPECS["steps"], net=net)
    with pytest.raises(UserError, match=reason):
        train(CompiledTrainer(), program, starts_of(program, 1), [0], 0)


def test_learning_rate_schedule_counts_rounds() -> None:
    exponential = partial(optim.lr_scheduler.ExponentialLR, gamma=0.5)
    assert lr_factors(exponential, 3) == [1.0, 0.5, 0.25]
    milestones = partial(optim.lr_scheduler.MultiStepLR, milestones=[2], gamma=0.1)
    assert lr_factors(milestones, 4) == pytest.approx([1.0, 1.0, 0.1, 0.1])
    assert lr_factors(None, 2) == [1.0, 1.0]


def test_a_lightning_module_needs_a_loss_and_one_optimizer() -> None:
    with pytest.raises(UserError, match="training_step"):
        as_task(LightningModule(), None)
    with pytest.raises(UserError, match="current_epoch"):  # and not 0
        as_task(Regression(), None).current_epoch  # noqa: B018
    clips = type("Clips", (Regression,), {"configure_gradient_clipping": lambda *given: None})
    with pytest.raises(UserError, match="Clips overrides configure_gradient_clipping"):
        as_task(clips(), None)
    task = Classifier(nn.Linear(2, 2), lambda params: [optim.SGD(params, lr=0.1)] * 2)  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match="several optimizers or a schedule"):
        make_optimizer(task, None)


@pytest.mark.parametrize("trainer", [SequentialTrainer, CompiledTrainer])
def test_a_turn_stands_for_the_round_in_what_is_drawn_and_not_in_the_learning_rate(trainer: Any) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], factors=[1.0, 0.5, 0.5, 1.0])
    starts = from_rows(starts_of(program, 3), [0, 1, 2], 0, program)
    asked = [v._replace(round=r, turn=t) for v, r, t in zip(starts, (0, 3, 1), (2, 1, 3), strict=True)]
    found = trainer().train(asked)
    for place, visit in enumerate(asked):
        alike = replace(program, lr_factors=[program.lr_factors[visit.round]] * 4)
        end = SequentialTrainer().train([visit._replace(round=visit.turn, turn=None, program=alike)])
        assert all(torch.allclose(value[place], end[name][0], atol=1e-12) for name, value in found.items())


def test_an_end_model_without_a_tensor_that_is_sent_is_refused():
    """Its row would keep what lay in memory. A value that a client did not log is NaN."""
    ends = {"weight": torch.empty(2, 3), "client_log/loss": torch.full((2,), torch.nan)}
    put_end(ends, 0, {"weight": torch.ones(3), "frozen": torch.ones(1)}, {"other": 1.0})
    assert ends["weight"][0].tolist() == [1, 1, 1]
    assert ends["client_log/loss"].isnan().all()
    with pytest.raises(KeyError):
        put_end(ends, 1, {"frozen": torch.ones(1)}, {"loss": 1.0})
