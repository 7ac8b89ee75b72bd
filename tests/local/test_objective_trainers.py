"""The trainers against each other under objectives with per-client state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_trainers import OPTIMIZERS, SIZES, SPECS, STACKS, largest_gap, make_program, starts_of, told, train
from torch import Tensor, nn

from flsel.errors import UserError
from flsel.local.output_layer import Features
from flsel.local.program import Program
from flsel.local.sequential import SequentialTrainer
from flsel.objectives import MOON, SCAFFOLD, FedAvg, FedDyn, FedGen, LocalUpdates, Objective

GENERATED = FedGen(noise=3, hidden=6, weight=2.0, latent=1.5, batch=4, steps=3, lr=0.1, start=0)
OBJECTIVES = {"feddyn": FedDyn(0.3), "scaffold": SCAFFOLD(), "moon": MOON(5.0), "fedgen": GENERATED}


class Tempered(nn.Sequential):
    """Its scale is a parameter without dimensions."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.scale = nn.Parameter(torch.tensor(1.2))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)
        return scores * self.scale


def ready(objective: Objective, optimizer: str, spec: str) -> Program:
    """A program whose objective remembers clients 0, 2 and 3 of five, with numbers that matter."""
    net = Tempered(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    program = make_program(OPTIMIZERS[optimizer], SPECS[spec], net=net, objective=objective)
    program = replace(program, features=Features(program.task, net, net[2]))
    model = {name: value.detach().clone() for name, value in program.trainable().items()}
    objective.head = ("2.weight", "2.bias")
    objective.reset(model, len(SIZES))
    generator = torch.Generator().manual_seed(1)

    def noise(like: Tensor) -> Tensor:
        return 0.3 * torch.randn(3, *like.shape, generator=generator, dtype=like.dtype)

    objective.observe(
        LocalUpdates(
            clients=torch.tensor([3, 0, 2]),
            starts=model,
            deltas={name: noise(value) for name, value in model.items()},
            steps=torch.tensor([2, 2, 2]),
            reach=lambda: {name: torch.full((3,), 0.2, dtype=torch.float64) for name in model},
            labels=lambda: torch.tensor([[5, 0, 1, 0], [0, 3, 0, 0], [2, 2, 2, 0]]),
            round=1,
            rng=np.random.default_rng(0),
        )
    )
    return program


@pytest.mark.parametrize("optimizer", ["nesterov", "adam"])
@pytest.mark.parametrize("spec", ["epochs", "steps wrapped"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", STACKS)
def test_trainers_agree_in_float64(name: str, optimizer: str, spec: str, kind: Any, caplog: Any) -> None:
    program = ready(OBJECTIVES[name], optimizer, spec)
    clients = [3, 0, 2, 4, 1]
    starts = starts_of(program, len(clients))
    before = {key: value.clone() for key, value in starts.items()}
    one = train(SequentialTrainer(), program, starts, clients, 2)
    for chunk in (None, 2):
        other = train(kind(chunk), program, starts, clients, 2)
        assert largest_gap(one, other) < 1e-10
    assert not told(caplog)
    assert largest_gap(before, starts) == 0.0
    plain = train(SequentialTrainer(), replace(program, objective=FedAvg()), starts, clients, 2)
    assert largest_gap(one, plain) > 1e-3


@pytest.mark.parametrize("kind", [SequentialTrainer, *STACKS])
def test_a_first_visit_has_no_contrast(kind: Any) -> None:
    program = ready(MOON(5.0), "sgd", "steps")
    starts = starts_of(program, 3)
    with_moon = train(kind(), program, starts, [1, 3, 4], 0)
    plain = train(kind(), replace(program, objective=FedAvg()), starts, [1, 3, 4], 0)
    for name, value in with_moon.items():
        torch.testing.assert_close(value[[0, 2]], plain[name][[0, 2]], atol=1e-12, rtol=0)
    assert largest_gap(with_moon, plain) > 1e-3


def test_frozen_models_run_in_eval_mode_and_stay_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 4))
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps wrapped"], net=net, objective=MOON())
    program = replace(program, features=Features(program.task, net, net[3]))
    model = {name: value.detach().clone() for name, value in program.state().items()}
    program.objective.reset({n: v for n, v in model.items() if "running" not in n}, len(SIZES))
    ends = {name: value + 0.1 for name, value in model.items()}
    deltas = {name: (ends[name] - value)[None] for name, value in model.items()}
    visits = LocalUpdates(
        torch.tensor([1]), model, deltas, torch.tensor([5]), dict, dict, 0, np.random.default_rng(0)
    )
    program.objective.observe(visits)
    starts = starts_of(program, 2)
    before = {name: value.clone() for name, value in starts.items()}
    _, previous = program.objective.models({name: value[0] for name, value in starts.items()}, 1)
    assert largest_gap(previous, ends) < 1e-12
    train(SequentialTrainer(), program, starts, [1, 3], 0)
    assert largest_gap(before, starts) == 0.0
    assert all(module.training for module in program.task.modules())
    x = program.population.x[:9]
    one, other = program.features.of(ends, x), program.features.of(ends, x)
    assert torch.equal(one, other)
    net.eval()
    with torch.no_grad():
        expected = torch.func.functional_call(net[:3], {n: v for n, v in ends.items() if n[0] != "3"}, (x,))
    torch.testing.assert_close(one, expected)


def test_a_training_step_past_the_output_layer_is_told() -> None:
    program = ready(MOON(), "sgd", "steps")
    lonely = Features(program.task, program.model, nn.Linear(5, 4))
    program = replace(program, features=lonely)
    with pytest.raises(UserError, match="did not run the output layer; set output_layer"):
        train(SequentialTrainer(), program, starts_of(program, 1), [0], 0)
