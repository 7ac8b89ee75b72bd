"""Gradients that clients are asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_compiled import Images
from test_trainers import OPTIMIZERS, SIZES, SPECS, make_program
from torch import nn

from flsel.local.measure import gradients
from flsel.local.visit import from_one


@pytest.mark.parametrize("room", [4, 2048])
@pytest.mark.parametrize("net", [None, Images, nn.BatchNorm1d])
def test_a_clients_gradient_is_that_of_its_mean_loss(net: Any, room: int) -> None:
    layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4))
    model = layers if net is nn.BatchNorm1d else net and net()
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=model)
    object.__setattr__(program, "at_once", room)
    shards = list(program.population.shards)
    shards[2] = shards[2][:0]
    object.__setattr__(program.population, "shards", tuple(shards))
    start = {name: value.detach().clone() for name, value in program.state().items()}
    clients = [*range(len(SIZES)), 1]
    answers = gradients(from_one(start, clients, 0, program))
    params = program.trainable()
    for row, client in enumerate(clients):
        if client == 2:
            assert all(value[row].isnan().all() for value in answers.values())
            continue
        x, y = program.batch(shards[client])
        with program.evaluating(start):
            loss = nn.functional.cross_entropy(program.outputs(x), y)
            own = torch.autograd.grad(loss, list(params.values()))
        for name, value in zip(params, own, strict=True):
            torch.testing.assert_close(answers[name][row], value, rtol=0, atol=1e-12)
