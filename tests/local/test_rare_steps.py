"""Steps that do something late or seldom, which the self-check's first visits do not show.

Each model trains to other parameters in silence if one guard of the compiled step is taken away (``RareDraw``
if all are): ``LateCounter`` without ``watched``, ``RareStored`` without ``_blanked``, ``RareNumpyBranch``
without what ``_Queries`` refuses, ``RareRidge`` without what it answers, ``Mixes`` without the test of padded
batches.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flsel.data.population import Normalize, Population
from flsel.local.agreement import Agreement
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.judge import CheckedTrainer
from flsel.local.plain import PlainFabric
from flsel.local.program import Program
from flsel.local.schedule import BatchSpec
from flsel.local.sequential import SequentialTrainer
from flsel.local.tasks import as_task, make_optimizer
from flsel.local.visit import Visit
from flsel.objectives import FedAvg

# Two clients have more local steps than the self-check compares in a first call, and batches of two lengths.
SIZES, COHORT = (7, 705, 712, 7), (0, 2, 1, 3)


class Layers(nn.Module):
    """A small network, if asked for with a convolution, whose clients train one at a time."""

    def __init__(self, convolves: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 2, 3, padding=1) if convolves else None
        self.inner, self.outer = nn.Linear(12, 8), nn.Linear(8, 4)
        self.stored, self.steps = [self.inner.weight], 0

    def forward(self, x: Tensor) -> Tensor:
        if self.convolution is not None:
            x = x + self.convolution(x[:, None]).mean(1)
        logits: Tensor = self.outer(self.changed(torch.tanh(self.inner(x))))
        return logits

    def changed(self, h: Tensor) -> Tensor:
        raise NotImplementedError


class LateCounter(Layers):
    def changed(self, h: Tensor) -> Tensor:
        self.steps += 1
        return h * (2.0 if self.steps > 70 else 1.0)


class RareDraw(Layers):
    def changed(self, h: Tensor) -> Tensor:
        return h * (3.0 if np.random.rand() < 0.01 else 1.0)


class RareStored(Layers):
    def changed(self, h: Tensor) -> Tensor:
        return torch.where(h.abs().amax() > 0.95, h * self.stored[0].detach().norm(), h)


class RareNumpyBranch(Layers):
    def changed(self, h: Tensor) -> Tensor:
        return h * (0.5 if (h.detach().numpy() > 0.95).any() else 1.0)


class RareRidge(Layers):
    def changed(self, h: Tensor) -> Tensor:
        size = sum(p.square().sum() for p in self.parameters() if p.requires_grad)
        return torch.where(h.abs().amax() > 0.95, h * (1 + size), h)


class Mixes(Layers):
    def changed(self, h: Tensor) -> Tensor:
        return h + h.mean(0, keepdim=True)


class Closed(Layers):
    """Mixes by a factor that is zero at first: the self-check sees what the test of padded batches cannot."""

    def __init__(self, convolves: bool) -> None:
        super().__init__(convolves)
        self.gate = nn.Parameter(torch.zeros(8))

    def changed(self, h: Tensor) -> Tensor:
        return h + self.gate * h.mean(0, keepdim=True)


def program_of(model: Any, convolves: bool, check: Any) -> Program:
    torch.manual_seed(0)
    x, y = torch.randn(sum(SIZES), 12, dtype=torch.float64), torch.randint(0, 4, (sum(SIZES),))
    net = model(convolves)
    task = as_task(net, partial(torch.optim.SGD, lr=0.1))
    fabric = PlainFabric("64-true")
    fabric.setup_module(task)
    return Program(
        task=task,
        model=net,
        population=Population(x, y, torch.arange(len(y)).split(SIZES), 4, Normalize().double()),
        spec=BatchSpec(7, epochs=1),
        objective=FedAvg(),
        lr_factors=[1.0] * 2,
        seed=1,
        optimizer=make_optimizer(task, None),
        fabric=fabric,
        agreement=Agreement(check),
    )


@pytest.mark.parametrize(
    ("model", "convolves"),
    [
        (LateCounter, False),
        (RareDraw, True),
        (RareStored, True),
        (RareNumpyBranch, True),
        (RareRidge, False),
        (Mixes, False),
        (Closed, False),
    ],
)
def test_what_a_step_does_seldom_is_done_in_every_backend(model: Any, convolves: bool) -> None:
    plain, fast = program_of(model, convolves, "off"), program_of(model, convolves, "auto")
    start = {name: value.detach().clone() for name, value in plain.state().items()}
    ends = [
        trainer.train([Visit(start, client, 0, program) for client in COHORT])
        for trainer, program in (
            (SequentialTrainer(), plain),
            (CheckedTrainer(CompiledTrainer(), "compiled"), fast),
        )
    ]
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=1e-10)
