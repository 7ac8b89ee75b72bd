"""Losses of single examples of a LightningModule: in one pass, one by one, or refused."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from lightning.pytorch import LightningModule
from runs import built, settings
from torch import nn, optim
from torch.nn import functional as F

from flsel.devices import LogNormal
from flsel.errors import UserError
from flsel.local.measure import each_loss
from flsel.selectors import FedAU, Oort, Pisces


class Mean(LightningModule):
    """Cross-entropy of an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(), nn.Linear(12, 4)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return optim.SGD(self.parameters(), lr=0.1)


class Weighted(Mean):
    """Classes count differently."""

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], weight=torch.tensor([1.0, 5.0, 0.2, 2.0]))


class Summed(Mean):
    """The sum of the losses."""

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="sum")


class Noisy(Mean):
    """Inputs with noise, in evaluations too."""

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0] + torch.randn_like(batch[0])), batch[1])


class Branching(Mean):
    """Looks at a number, which no vmap allows."""

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        return loss if loss.item() > 0 else loss * 1


class Contrastive(Mean):
    """Every example is told from the others of its batch: alone its loss is zero."""

    def training_step(self, batch, batch_idx):
        z = F.normalize(self(batch[0]), dim=1)
        return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z), device=z.device))


class Distances(Contrastive):
    """Distances to the others: alone there is no number."""

    def training_step(self, batch, batch_idx):
        z = self(batch[0])
        return torch.pdist(z).mean()


def run(tmp_path, model, selector=None):
    return built(
        settings(tmp_path, selector=selector or Pisces(), model=model, devices=LogNormal(), clients=4)
    )


def losses(program, where):
    with program.evaluating(), torch.no_grad():
        program.seed_draws("evaluation", 0)
        return each_loss(program, where)


@pytest.mark.parametrize("model", [Mean(), Weighted(), Summed()])
def test_single_losses_in_one_pass_are_those_one_by_one(model, tmp_path):
    program = run(tmp_path, model).program
    assert program.losses_in_one_pass
    where = program.population.shards[0]
    found = losses(program, where)
    with program.evaluating(), torch.no_grad():
        alone = [program.task.training_step(program.batch(one[None]), 0) for one in where]
    torch.testing.assert_close(found, torch.stack(alone))


@pytest.mark.parametrize("model", [Noisy(), Branching()])
def test_what_draws_or_branches_is_asked_one_by_one(model, tmp_path):
    program = run(tmp_path, model).program
    assert not program.losses_in_one_pass
    assert losses(program, program.population.shards[0]).isfinite().all()


@pytest.mark.parametrize("model", [Contrastive(), Distances()])
@pytest.mark.parametrize("selector", [Oort(), Pisces(), FedAU(Oort())])
def test_a_loss_that_compares_the_examples_of_a_batch_is_refused(model, selector, tmp_path):
    name = type(selector).__name__
    with pytest.raises(UserError, match=f"{name} reads losses of single examples, and the loss of"):
        run(tmp_path, model, selector)


def test_one_pass_is_faster(tmp_path):
    program = run(tmp_path, Mean()).program
    where = program.population.shards[0].repeat(20)

    def took(one_pass):
        began = time.process_time()
        losses(replace(program, losses_in_one_pass=one_pass), where)
        return time.process_time() - began

    took(True)
    assert took(True) < took(False) / 3
