"""What an evaluation measures, whatever the number of examples at a time."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from runs import SMALL, built, settings
from torch import Tensor, nn

from flsel.config.groups import EvaluationConfig
from flsel.data.data_config import DataConfig
from flsel.engine.evaluation import Evaluator
from flsel.local import measure
from flsel.local.visit import from_one


@pytest.mark.parametrize("batch_size", [1, 3, 4, 1000, None])
def test_losses_are_means_over_examples(tmp_path: Path, batch_size: int | None) -> None:
    config = settings(tmp_path, evaluation=EvaluationConfig(batch_size=batch_size, per_client=True))
    run = built(config)
    data, net = run.data, run.program.model
    loss, accuracy = run.server.evaluator.measure(run.server.params, data.test)
    with torch.no_grad():
        logits = net(data.population.normalize(data.test.x))
    expected = float(torch.nn.functional.cross_entropy(logits.double(), data.test.y))
    assert loss == pytest.approx(expected, rel=1e-6)
    assert accuracy == float((logits.argmax(dim=1) == data.test.y).double().mean())
    losses, accuracies = run.server.evaluator.on_clients(run.server.params)
    for client, shard in enumerate(data.population.shards):
        with torch.no_grad():
            logits = net(data.population.normalize(data.population.x[shard]))
        own = torch.nn.functional.cross_entropy(logits.double(), data.population.y[shard])
        assert float(losses[client]) == pytest.approx(float(own), rel=1e-6)
        right = (logits.argmax(dim=1) == data.population.y[shard]).double().mean()
        assert float(accuracies[client]) == pytest.approx(float(right), abs=1e-12)


class Viewing(nn.Module):
    """Flattens by ``view``, which images with their channels last do not allow."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


def convolutional(flatten: type[nn.Module], num_classes: int) -> nn.Sequential:
    grey = nn.Unflatten(1, (1, 2, 4))
    conv = [nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1)]
    return nn.Sequential(grey, *conv, flatten(), nn.Linear(12, num_classes))


class Stepping(LightningModule):
    """Has a step of its own, for which alone a batch is shuffled."""

    def __init__(self, flatten: type[nn.Module], num_classes: int) -> None:
        super().__init__()
        self.net, self.own = convolutional(nn.Flatten, num_classes), flatten()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        maps = self.own(self.net[:5](x))
        return nn.functional.cross_entropy(self.net[-1](maps), y) + 0.1 * maps.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("make", [convolutional, Stepping])
@pytest.mark.parametrize("flatten", [nn.Flatten, Viewing])
def test_images_are_evaluated_with_channels_last_where_the_model_takes_them(
    tmp_path: Path, make: type[nn.Module], flatten: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flsel")
    data = DataConfig(synthetic=SMALL, server=0.2)
    run = built(settings(tmp_path, model=partial(make, flatten), data=data))
    program = run.program
    assert program.channels_last == (flatten is nn.Flatten)
    assert ("channels first" in caplog.text) == (flatten is Viewing)
    layouts = {name: value.stride() for name, value in program.state().items()}
    params = run.server.params
    models = {name: torch.stack([value, value + 0.1]) for name, value in params.items()}
    found = []
    for last in {program.channels_last, False}:
        program = replace(program, channels_last=last)
        ask, visits = Evaluator(program, run.data.server), from_one(params, range(8), 0, program)
        totals = torch.tensor(ask.measure(params, run.data.test))
        found.append([totals, *ask.on_clients(params), ask.noise_outputs(models), measure.losses(visits)])
        found[-1] += measure.gradients(visits).values()
        assert {name: value.stride() for name, value in program.state().items()} == layouts
    for one, other in zip(found[0], found[-1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_convolutions_lie_with_channels_last_within_an_evaluation(tmp_path: Path) -> None:
    program = built(settings(tmp_path, model=partial(convolutional, nn.Flatten))).program
    with program.evaluating():
        strides = {name: value.stride() for name, value in program.state().items() if value.ndim == 4}
    assert strides == {"1.weight": (9, 1, 3, 1), "4.weight": (36, 1, 12, 4)}


class Noisy(LightningModule):
    """Draws whenever it is called, in evaluations too, as ``functional.dropout(x)`` does."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(nn.functional.dropout(x) + float(np.random.random()))
        return out

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_evaluation_draws_the_same_whatever_was_drawn_before(tmp_path: Path) -> None:
    run = built(settings(tmp_path, model=Noisy))
    params, trainer = run.server.params, run.server.federation.trainer

    def measured() -> list[Tensor]:
        asked = from_one(params, [2, 0, 2], 0, run.program)
        test = torch.tensor(run.server.evaluator.measure(params, run.data.test))
        return [test, trainer.losses(asked), *trainer.gradients(asked).values()]

    once = measured()
    torch.rand(3), np.random.random()
    before = torch.get_rng_state(), np.random.get_state()[2]
    for first, second in zip(once, measured(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert (torch.get_rng_state() == before[0]).all()
    assert np.random.get_state()[2] == before[1]
    # An answer about a client does not depend on who is asked before it.
    assert once[1][0] == once[1][2]
    assert all((rows[0] == rows[2]).all() for rows in once[2:])
