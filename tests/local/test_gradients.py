"""Gradients of many clients in one pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_compiled import Images
from test_trainers import OPTIMIZERS, SIZES, SPECS, make_program, told
from torch import Tensor, nn

from flsel.local import measure
from flsel.local.measure import gradients as measured
from flsel.local.program import Program
from flsel.local.visit import from_one
from flsel.params import Params


class Branching(nn.Linear):
    """Looks at its data."""

    def forward(self, input: Tensor) -> Tensor:
        logits = super().forward(input)
        return logits if logits.sum() > 0 else 2 * logits


def asked(program: Program) -> Params:
    start = {name: value.detach().clone() for name, value in program.state().items()}
    return measured(from_one(start, [*range(len(SIZES)), 1], 0, program))


@pytest.mark.parametrize("room", [4, 17, 2048])
@pytest.mark.parametrize("net", [None, Images, nn.BatchNorm1d])
def test_ragged_clients_in_one_pass(net: Any, room: int, monkeypatch: Any) -> None:
    layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4))
    model = layers if net is nn.BatchNorm1d else net and net()
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=model)
    object.__setattr__(program, "at_once", room)
    shards = list(program.population.shards)
    shards[2] = shards[2][:0]
    object.__setattr__(program.population, "shards", tuple(shards))
    one_by_one = asked(program)
    packs: list[int] = []
    pack = measure._pack
    monkeypatch.setattr(measure, "_stacking_is_faster", lambda device: True)
    monkeypatch.setattr(
        measure, "_pack", lambda p, pieces, w: packs.append(len(pieces)) or pack(p, pieces, w)
    )
    together = asked(program)
    assert sum(packs) == sum(-(-len(shard) // room) for shard in [*shards, shards[1]])
    assert room < max(SIZES) or max(packs) > 1
    for name, value in one_by_one.items():
        assert value[2].isnan().all()
        assert value[[0, 1, 3, 4, 5]].abs().max() > 1e-3
        torch.testing.assert_close(together[name], value, rtol=0, atol=1e-12, equal_nan=True)


def test_a_model_that_cannot_be_stacked_is_asked_client_by_client(monkeypatch: Any, caplog: Any) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=Branching(6, 4))
    one_by_one = asked(program)
    monkeypatch.setattr(measure, "_stacking_is_faster", lambda device: True)
    caplog.set_level("INFO", "flsel")
    for _ in range(2):
        together = asked(program)
        assert all(torch.equal(together[name], value) for name, value in one_by_one.items())
    (said,) = told(caplog)
    assert said.startswith("gradients are asked client by client, since stacking them raised")
