"""Gradients of clients' losses, part by part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_compiled import Images
from test_trainers import OPTIMIZERS, SIZES, SPECS, make_program
from torch import nn

from flsel.local.measure import gradients
from flsel.local.program import from_one
from flsel.params import Params


def asked(net: Any, room: int) -> Params:
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=net)
    object.__setattr__(program, "at_once", room)
    shards = list(program.population.shards)
    shards[2] = shards[2][:0]
    object.__setattr__(program.population, "shards", tuple(shards))
    start = {name: value.detach().clone() for name, value in program.state().items()}
    return gradients(from_one(start, [*range(len(SIZES)), 1], 0, program))


@pytest.mark.parametrize("net", [Images, nn.BatchNorm1d])
def test_a_gradient_does_not_depend_on_the_parts_that_it_is_asked_in(net: Any) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        layers = (nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4))
        return nn.Sequential(*layers) if net is nn.BatchNorm1d else net()

    whole, parts = asked(model(), 2048), asked(model(), 4)
    for name, value in whole.items():
        assert value[2].isnan().all()
        assert value[[0, 1, 3, 4, 5]].abs().max() > 1e-3
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-12, equal_nan=True)
