"""The compiled step: what it takes, what it refuses, and what it must not get wrong."""

from __future__ import annotations

import ast
import logging
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_objective_trainers import OBJECTIVES, ready
from test_trainers import (
    OPTIMIZERS,
    SIZES,
    SPECS,
    Padded,
    Regression,
    largest_gap,
    make_program,
    starts_of,
    told,
    train,
)  # fmt: skip
from torch import Tensor, nn, optim

import flsel.local
from flsel.data.population import Normalize
from flsel.local.compiled import pool, refusals
from flsel.local.compiled import step as compiled_step
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.compiled.engine import round_up
from flsel.local.compiled.record_graph import callable_of, record
from flsel.local.compiled.refusals import ELEMENTWISE, Refused
from flsel.local.compiled.step import ExampleGatherer
from flsel.local.schedule import BatchSpec
from flsel.local.sequential import SequentialTrainer
from flsel.local.visit import Visit, from_rows
from flsel.objectives import FedAvg, FedProx, LocalUpdates, Objective

CLIENTS = [3, 0, 2, 4, 1]
SGDS = {
    "decay": partial(optim.SGD, lr=0.1, weight_decay=0.1),
    "maximize": partial(optim.SGD, lr=0.01, maximize=True, weight_decay=0.1),
    "dampening": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "nesterov, decay": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
}


class Images(nn.Sequential):
    """Convolutions, padding and pooling on inputs of six numbers."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True),
            nn.Conv2d(4, 3, 1), nn.Flatten(), nn.Linear(6, 4),
        )  # fmt: skip


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was traced."""
    seen: list[Any] = []
    trace = compiled_step.trace
    monkeypatch.setattr(compiled_step, "trace", lambda *a: seen.append(a) or trace(*a))
    return seen


def agree(program: Any, clients: list[int] = CLIENTS, round: int = 2, trainer: Any = None) -> None:
    starts = starts_of(program, len(clients))
    # First what looks at the model's own weights, in which the other leaves trained ones.
    one = train(trainer or CompiledTrainer(), program, starts, clients, round)
    other = train(SequentialTrainer(), program, starts, clients, round)
    assert largest_gap(one, other) < 1e-10
    assert largest_gap(one, starts) > 1e-3


@pytest.mark.parametrize("tabled", [False, True])
@pytest.mark.parametrize("settings", SGDS)
@pytest.mark.parametrize("net", [None, Images])
def test_every_setting_of_sgd(settings: str, net: Any, tabled: bool, caplog: Any) -> None:
    program = make_program(SGDS[settings], SPECS["epochs"], net=net and net(), factors=[1.0, 0.5, 0.3])
    trainer = CompiledTrainer(tabled=tabled)
    for round in (2, 1):
        agree(program, round=round, trainer=trainer)
    assert not told(caplog)


@pytest.mark.parametrize("kind", [*ELEMENTWISE, partial(optim.Adagrad, initial_accumulator_value=0.1)])
def test_every_optimizer(kind: Any, caplog: Any) -> None:
    agree(make_program(partial(kind, lr=0.05), SPECS["epochs"]))
    assert not told(caplog)


@pytest.mark.parametrize("objective", [FedAvg(), FedProx(0.5)])
@pytest.mark.parametrize("optimizer", ["sgd", "weight decay", "adam"])
def test_convolutions(objective: Any, optimizer: str, caplog: Any) -> None:
    agree(make_program(OPTIMIZERS[optimizer], SPECS["epochs"], net=Images(), objective=objective))
    assert not told(caplog)


class Gated(nn.Module):
    """Splits products by ``unsafe_chunk``, as torch's GRU cell does; it returns views without saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Linear(6, 15), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.gates(x).unsafe_chunk(3, dim=1)
        out: Tensor = self.head((first.sigmoid() * second).tanh() + third)
        return out


class Centred(nn.Linear):
    """Takes the batch's mean off, in which a padded example would count."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=0))


class Divided(nn.Linear):
    """Divides by the number of examples, which is not that of a padded batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (8 / len(x))


class Scaled(nn.Linear):
    """Divides by the batch's largest score, which the first example may have."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out / out.abs().max()


@pytest.mark.parametrize("net", [Gated, *(partial(kind, 6, 4) for kind in (Centred, Divided, Scaled))])
@pytest.mark.parametrize("spec", ["epochs", "steps wrapped"])
def test_unusual_models(net: Any, spec: str, caplog: Any) -> None:
    agree(make_program(OPTIMIZERS["momentum"], SPECS[spec], net=net()))
    assert not told(caplog)


class Attends(nn.Linear):
    """Attends among three tokens, without dropout."""

    def __init__(self) -> None:
        super().__init__(6, 4)

    def forward(self, input: Tensor) -> Tensor:
        tokens = input.view(-1, 1, 3, 2)
        attended = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return super().forward(attended.reshape(input.shape))


class Multiplies(nn.Linear):
    """Adds a product of parameters, each of which is the other's gradient."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.bias * self.scale


class Powers(nn.Linear):
    """Takes a power spectrum, scaled by a constant of the run's precision."""

    def __init__(self) -> None:
        super().__init__(6, 4)

    def forward(self, input: Tensor) -> Tensor:
        z = torch.fft.fft(super().forward(input))
        return (z * z.conj()).real * torch.linspace(0.1, 1.0, 4)


@pytest.mark.parametrize("net", [Attends, Multiplies, Powers])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_is_compiled_is_what_is_written(net: Any, optimizer: str, caplog: Any) -> None:
    agree(make_program(OPTIMIZERS[optimizer], SPECS["epochs"], net=net()))
    assert not told(caplog)


@pytest.mark.parametrize(
    "split", [Tensor.unbind, partial(Tensor.chunk, chunks=2), partial(Tensor.split, split_size=2)]
)
def test_what_was_split_is_written_as_a_part(split: Any, caplog: Any) -> None:
    class Splits(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            input = input.clone()
            split(input, dim=1)[1].mul_(3)
            return super().forward(input)

    agree(make_program(OPTIMIZERS["sgd"], SPECS["epochs"], net=Splits(6, 4)))
    (said,) = told(caplog)
    reason = "it writes to a part of a tensor in place (compute a new one)"
    assert said.endswith(f"since {reason}; sequential trains instead")


def test_a_padded_token_counts_for_nothing(caplog: Any) -> None:
    net = Padded()
    net.tokens.scale_grad_by_freq = True
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], net=net)
    tokens = torch.arange(3 * sum(SIZES)).view(-1, 3) % 9
    agree(replace(program, population=replace(program.population, x=tokens, normalize=Normalize())))
    assert not told(caplog)


class Lengthened(nn.Linear):
    """Scores by lengths, whose slope at nothing is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * out.square().sum(dim=1, keepdim=True).sqrt()


def test_padding_is_of_the_clients_own_examples(caplog: Any) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], net=Lengthened(6, 4, bias=False))
    program.population.x[0] = 0.0
    without = [k for k, shard in enumerate(program.population.shards) if 0 not in shard]
    agree(program, clients=without)
    assert not told(caplog)


def test_no_step_runs_on_what_lies_in_fresh_memory(monkeypatch: Any, caplog: Any) -> None:
    buffer = ExampleGatherer.buffer
    monkeypatch.setattr(ExampleGatherer, "buffer", lambda self, like: buffer(self, like).fill_(10**6))
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=Padded())
    tokens = torch.arange(3 * sum(SIZES)).view(-1, 3) % 9
    agree(replace(program, population=replace(program.population, x=tokens, normalize=Normalize())))
    assert not told(caplog)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_an_objective_remembers_is_read_anew(name: str) -> None:
    program = ready(OBJECTIVES[name], "sgd", "epochs")
    trainer = CompiledTrainer()
    agree(program, trainer=trainer)
    for clients in ([3, 0, 2], [1, 4, 3]):  # The second meets newcomers: the memory grows.
        model = {name: value.detach().clone() for name, value in program.trainable().items()}
        program.objective.observe(
            LocalUpdates(
                clients=torch.tensor(clients),
                starts=model,
                deltas={n: torch.full((3, *v.shape), 0.2).to(v) for n, v in model.items()},
                steps=torch.tensor([2, 2, 2]),
                reach=lambda: {n: torch.full((3,), 0.2, dtype=torch.float64) for n in model},  # noqa: B023
                labels=lambda: torch.tensor([[5, 0, 1, 0], [0, 3, 0, 0], [2, 2, 2, 0]]),
                round=1,
                rng=np.random.default_rng(0),
            )
        )
        agree(program, trainer=trainer)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_steps_may_read_tables_on_the_device(name: str, caplog: Any) -> None:
    agree(ready(OBJECTIVES[name], "adam", "epochs"), trainer=CompiledTrainer(tabled=True))
    agree(ready(OBJECTIVES[name], "sgd", "steps"), trainer=CompiledTrainer(2, tabled=True))
    assert not told(caplog)


def test_clients_of_very_different_length_end_in_smaller_stacks(traces: list[Any]) -> None:
    program = make_program(OPTIMIZERS["momentum"], BatchSpec(2, epochs=3))
    agree(program)
    assert sorted(len(example.clients) for _, example in traces) == [1, 2, 5]
    agree(replace(program, optimizer=OPTIMIZERS["adam"](program.task.parameters())))


def test_a_step_is_traced_once_for_all_rounds_and_rates(traces: list[Any]) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps wrapped"], factors=[1.0, 0.5, 0.1])
    trainer = CompiledTrainer()
    for round in (0, 1, 2, 1):
        agree(program, round=round, trainer=trainer)
    assert len(traces) == 1


def test_earlier_calls_leave_no_trace() -> None:
    program = make_program(OPTIMIZERS["momentum"], SPECS["epochs"])
    trainer, starts = CompiledTrainer(), starts_of(program, 5)
    broken = {name: value * float("nan") for name, value in starts.items()}
    first = train(trainer, program, starts, CLIENTS, 1)
    train(trainer, program, broken, CLIENTS, 1)
    again = train(trainer, program, starts, CLIENTS, 1)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_one_broken_client_leaves_the_others_alone() -> None:
    program = make_program(OPTIMIZERS["momentum"], SPECS["epochs"])
    starts = starts_of(program, 5)
    whole = train(CompiledTrainer(), program, starts, CLIENTS, 1)
    starts = {
        name: value.clone().index_fill_(0, torch.tensor([1]), torch.inf) for name, value in starts.items()
    }
    ends = train(CompiledTrainer(), program, starts, CLIENTS, 1)
    rest = [0, 2, 3, 4]
    assert largest_gap({n: v[rest] for n, v in whole.items()}, {n: v[rest] for n, v in ends.items()}) < 1e-12


def test_a_client_without_examples_stays_where_it_is() -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"])
    shards = (
        *program.population.shards[:2],
        torch.empty(0, dtype=torch.int64),
        *program.population.shards[3:],
    )
    program = replace(program, population=replace(program.population, shards=shards))
    agree(program)
    starts = starts_of(program, 1)
    assert largest_gap(starts, train(CompiledTrainer(), program, starts, [2], 0)) == 0.0


def test_federations_and_rounds_share_a_call() -> None:
    one = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], factors=[1.0, 0.5, 0.1])
    two = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=one.model, objective=FedProx(0.5))
    starts = starts_of(one, 2)
    visits = [
        Visit(visit.start, client, round, program)
        for program in (one, two)
        for round in (0, 2)
        for client, visit in enumerate(from_rows(starts, [0, 1], 0, one))
    ]
    together = CompiledTrainer().train(visits)
    alone = [SequentialTrainer().train([visit]) for visit in visits]
    assert largest_gap(together, {n: torch.cat([end[n] for end in alone]) for n in together}) < 1e-10


class Unused(nn.Module):
    """A model with a layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize("objective", [FedAvg(), FedProx(0.5)])
def test_what_the_loss_does_not_read_stays_as_it_is(objective: Any) -> None:
    agree(make_program(OPTIMIZERS["weight decay"], SPECS["epochs"], net=Unused(), objective=objective))


class Odd(Regression):
    """A step that does more than compute a loss."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        out = super().training_step(batch, batch_idx)
        if self.what == "reads batch_idx" and batch_idx % 2:
            out["loss"] = out["loss"] * 2
        elif self.what == "prints":
            print("a step")
        elif self.what == "keeps something in the module":
            self.seen = batch_idx
        elif self.what == "branches on data" and out["loss"] > 0.3:
            out["loss"] = out["loss"] * 2
        elif self.what == "writes to a buffer":
            self.calls += 1
        elif self.what == "draws random numbers":
            out["loss"] = out["loss"] * random.random() * np.random.random()
        return out


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("reads batch_idx", "leave it unread"),
        ("prints", "take that out"),
        ("keeps something in the module", "a callback may, between rounds"),
        ("writes to a buffer", "a callback may, between rounds"),
        ("draws random numbers", "dropout may, if attention's own dropout is 0"),
        ("branches on data", "torch.where can take the branch's place"),
    ],
)
def test_a_step_that_does_more_is_left_to_sequential(what: str, change: str, caplog: Any) -> None:
    program = make_program(None, SPECS["steps wrapped"], net=Odd(what))
    trainer = CompiledTrainer()
    agree(program, trainer=trainer)
    agree(program, trainer=trainer)
    # Another run of the same process has nothing new to say.
    agree(make_program(None, SPECS["steps wrapped"], net=Odd(what)))
    reason = f"it {what} ({change})"
    said = f"local.backend: the step is not compiled, since {reason}; sequential trains instead"
    assert told(caplog) == [said]


class Draws(nn.Linear):
    """A network that adds noise to its scores."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + torch.rand(())


def test_a_network_that_is_not_compiled_is_told_like_a_lightning_module(caplog: Any) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps wrapped"], net=Draws(6, 4))
    agree(program)
    (said,) = told(caplog)
    assert "the step is not compiled, since it " in said
    assert said.endswith("; sequential trains instead")
    assert "(" in said


def test_every_reason_says_what_to_change() -> None:
    reasons = [
        *refusals._ERRORS.values(),
        refusals.BRANCHES,
        refusals.DRAWS,
    ]
    for path in Path(flsel.local.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refused":
                reasons += [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    assert len(reasons) > 20
    assert not [reason for reason in reasons if not reason.endswith(")")]


class Replaces(Objective):
    """Puts new gradients in place of those that it is given."""

    def correct(self, grads: Any, params: Any, starts: Any, clients: Any) -> None:
        for name in grads:
            grads[name] = grads[name] * 0.5


class Slows(Objective):
    """Counts its steps where no trainer keeps them."""

    calls = 0

    def correct(self, grads: Any, params: Any, starts: Any, clients: Any) -> None:
        self.calls += 1
        for grad in grads.values():
            grad.div_(self.calls)


def test_gradients_that_an_objective_replaces_count(caplog: Any) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], objective=Replaces())
    agree(program)
    starts = starts_of(program, 2)
    plain = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], net=program.model)
    ends = [
        train(trainer, p, starts, [0, 1], 0)
        for p in (program, plain)
        for trainer in (SequentialTrainer(), CompiledTrainer())
    ]
    assert largest_gap(ends[0], ends[1]) < 1e-10
    assert largest_gap(ends[0], ends[2]) > 1e-4
    assert not told(caplog)


def test_an_objective_that_counts_its_steps_is_not_compiled(caplog: Any) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"], objective=Slows())
    train(CompiledTrainer(), program, starts_of(program, 2), [0, 1], 0)
    (said,) = told(caplog)
    assert said.endswith(
        "since its objective keeps something (let its observe do so); sequential trains instead"
    )


def test_that_batches_of_several_sizes_are_not_compiled_is_logged_once(caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="flsel")
    program = make_program(None, SPECS["epochs"], net=Odd("branches on data"))
    trainer = CompiledTrainer()
    for round in range(2):
        train(trainer, program, starts_of(program, 5), range(5), round)
    (said,) = told(caplog)
    assert said.startswith("local.backend: rounds whose batches have several sizes are not compiled")
    assert "set local.last_batch to wrap" in said


class Wide(Regression):
    """A step of one's own on a model of many numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.beside = nn.Parameter(torch.zeros(width))


def test_a_round_that_is_not_compiled_is_left_to_sequential() -> None:
    program = make_program(None, SPECS["epochs"], net=Wide(9), precision="32-true")
    starts = starts_of(program, 5)
    ends = train(CompiledTrainer(), program, starts, CLIENTS, 0)
    alone = train(SequentialTrainer(), program, starts, CLIENTS, 0)
    assert all(torch.equal(ends[name], alone[name]) for name in ends)


@pytest.mark.parametrize(("most", "widest", "largest"), [(0, 2, 32), (500_000, 3, 24)])
def test_a_cpu_trains_large_models_two_at_a_time_with_few_shapes(
    most: int, widest: int, largest: int, traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_LARGE", most)
    assert sorted(SIZES)[:4] == [1, 7, 16, 23]
    program = make_program(OPTIMIZERS["sgd"], BatchSpec(32, epochs=1), net=nn.Linear(6, 4))
    agree(program, clients=[1, 0, 4])
    shapes = [example.x.shape for _, example in traces]
    assert max(shape[0] for shape in shapes) == widest
    assert max(shape[1] for shape in shapes) == largest


def test_gradients_that_a_failed_step_left_are_nobodys() -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["epochs"])
    starts = starts_of(program, 2)
    expected = train(SequentialTrainer(), program, starts, [0, 1], 0)
    for param in program.task.parameters():
        param.grad = torch.ones_like(param)
    assert largest_gap(train(SequentialTrainer(), program, starts, [0, 1], 0), expected) == 0.0


class Convolved(nn.Module):
    """Adds the batch's mean output to what it made for itself, as a whole or in part."""

    def __init__(self, part: slice) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 2), nn.Flatten())
        self.head, self.part = nn.Linear(15, 4), part

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(self.features(x))
        own = torch.zeros(4, dtype=x.dtype)
        if self.part == slice(None):
            own += out.mean(dim=0).detach()
        else:
            own[self.part] += out.mean().detach()
        return out * (own + 1)


@pytest.mark.parametrize(("part", "warned"), [(slice(None), 0), (slice(1, 3), 1)])
def test_what_a_convolutional_model_makes_for_itself_is_new_in_every_step(
    part: slice, warned: int, caplog: Any
) -> None:
    """Not kept with what is computed once."""
    program = make_program(None, SPECS["steps wrapped"], net=Convolved(part))
    agree(program, trainer=CompiledTrainer())
    said = told(caplog)
    assert len(said) == warned
    assert all(line.endswith("sequential trains instead") for line in said)


def test_counts_are_rounded_up_to_few_shapes() -> None:
    assert [round_up(n) for n in (1, 10, 16, 17, 33, 100, 129)] == [1, 10, 16, 18, 36, 104, 144]
    assert all(n <= round_up(n) <= 1.125 * n for n in range(1, 2000))
    assert len({round_up(n) for n in range(1, 1025)}) == 16 + 8 * 6


def test_sizes_of_the_matrix_are_ragged() -> None:
    assert len({n % 8 for n in SIZES}) > 2


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kind", ["bytes", "numbers", "tokens"])
def test_a_batch_is_gathered_as_the_model_takes_it(kind: str, channels_last: bool) -> None:
    x = {
        "bytes": torch.randint(0, 256, (9, 3, 4, 5), dtype=torch.uint8),
        "numbers": torch.randn(9, 3, 4, 5, dtype=torch.float64),
        "tokens": torch.randint(0, 50, (9, 7)),
    }[kind]
    normalize = Normalize((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)).to(torch.float32)
    inputs = ExampleGatherer(x, normalize, channels_last)
    positions = torch.tensor([3, 3, 0, 8])
    expected = normalize(x[positions])
    batch = inputs.buffer(expected)
    inputs.into(batch)(positions)
    assert torch.equal(batch, expected)
    assert batch.dtype == expected.dtype


def recorded(function: Any, *inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What a function returns, and what its graph does with other numbers."""
    graph, others = record(function, *inputs), [value.flip(0) for value in inputs]
    return list(function(*others)), list(callable_of(graph)(*others))


def test_a_record_repeats_what_was_called() -> None:
    kept = torch.arange(3.0)

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        live = a.detach().requires_grad_()
        with torch.enable_grad():
            values, places = torch.func.vmap(lambda x: (x * torch.tensor(2.0) + kept).exp().max(dim=0))(live)
            total = (values * b[:, 0]).sum() + torch.ones(()).item()
        made = torch.zeros(2, 3)
        made[0] += a[1]
        return *torch.autograd.grad(total, [live]), places, made, kept[b[:, 1].long()]

    expected, got = recorded(function, torch.randn(2, 3), torch.tensor([[0.5, 1.0], [2.0, 0.0]]))
    assert all(torch.equal(*pair) for pair in zip(expected, got, strict=True))


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("branches on data", lambda a: [a * a.sum().item()]),
        ("branches on data", lambda a: [a[a > 0]]),
        ("branches on data", lambda a: [a.nonzero()]),
        ("writes to a buffer", lambda a: [a.add_(1)]),
        ("writes to a buffer", lambda a: [a[0].mul_(2)]),
        ("writes to a buffer", lambda a: torch._foreach_add_([a], 1) or [a]),
    ],
)
def test_a_record_refuses_what_it_cannot_repeat(what: str, function: Any) -> None:
    values = torch.tensor([1.0, -1.0])
    with pytest.raises(Refused, match=what):
        record(function, values)
    assert values.tolist() == [1.0, -1.0]
