"""Where FedDyn and SCAFFOLD lead: to the optimum that client drift keeps FedAvg from."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from runs import DIMENSION, built, settings
from torch import Tensor, nn, optim

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig
from flsel.local.completeness import Completeness
from flsel.local.schedule import BatchSpec
from flsel.objectives import SCAFFOLD, FedAvg, FedDyn, FedNova, Objective
from flsel.partition import BySize
from flsel.selectors.uniform import Uniform


class Skewed(LightningModule):
    """F_k(w) = mean over the client's points x of (1 + x^2) (w - x)^2 / 2: curvatures differ too."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((DIMENSION,), 1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.w + 0.0 * x

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x = batch[0]
        return ((1 + x**2) * (self.w - x) ** 2).sum(dim=1).mean() / 2


def skewed(folder: Path, objective: Objective, data: str = "runs.points", **changes: Any) -> RunConfig:
    """Four clients, all of them every round, whose every step sees all of their points."""
    base = settings(
        folder,
        objective=objective,
        selector=Uniform(weights="equal"),
        clients=4,
        clients_per_round=4,
        rounds=25,
        data=DataConfig(name=data, validation=0.0, server=0.0),
        partition=BySize(sizes=(1.0, 2.0, 3.0, 4.0)),
        model=Skewed,
        precision="64-true",
        local=LocalConfig(64, steps=10, optimizer=partial(optim.SGD, lr=0.1), backend="sequential"),
        evaluation=EvaluationConfig(every=25),
    )
    return replace(base, **changes)


def test_feddyn_and_scaffold_end_at_the_optimum_and_fedavg_beside_it(tmp_path: Path) -> None:
    distances = {}
    for objective in (FedAvg(), FedDyn(alpha=2.0), SCAFFOLD()):
        run = built(skewed(tmp_path, objective))
        while not run.server.finished:
            run.server.step()
        data = run.data.population
        points = [data.x[shard].double() for shard in data.shards]
        # Each client's mean loss counts the same, as its update does.
        slope = torch.stack([(x * (1 + x**2)).mean(dim=0) for x in points]).mean(dim=0)
        optimum = slope / torch.stack([(1 + x**2).mean(dim=0) for x in points]).mean(dim=0)
        distances[type(objective).__name__] = float((run.server.params["w"].data - optimum).abs().max())
    assert distances["FedDyn"] < 1e-4
    assert distances["SCAFFOLD"] < 1e-4
    assert distances["FedAvg"] > 0.1


def test_scaffold_among_identical_clients_is_sgd(tmp_path: Path) -> None:
    run = built(skewed(tmp_path, SCAFFOLD(), data="plain_objectives.one_point", rounds=3))
    x = run.data.population.x[0].double()
    w = torch.ones(DIMENSION, dtype=torch.float64)
    for _ in range(3):
        run.server.step()
        for _ in range(10):
            w = w - 0.1 * (1 + x**2) * (w - x)
        torch.testing.assert_close(run.server.params["w"].data, w, atol=1e-12, rtol=0)
    controls = run.server.objective.controls_["w"][run.server.objective.slots_]
    torch.testing.assert_close(controls, run.server.objective.control_["w"].expand(4, -1))


class Distance(Skewed):
    """F_k(w) = mean over the client's points x of (w - x)^2 / 2, the example of the paper on FedNova."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return ((self.w - batch[0]) ** 2).sum(dim=1).mean() / 2


class OneForEachPoint(Completeness):
    """A client does as many steps as it has points."""

    def steps(self, batches: BatchSpec, examples: int, rng: object) -> int:
        return examples


def test_fednova_removes_the_inconsistency_of_its_papers_example(tmp_path: Path) -> None:
    """Rounds in closed form: s steps from w end at c + (1 - rate)^s (w - c), c the mean of a client's points.

    So FedAvg tends to the optimum of the wrong weights, about p s in place of p, and FedNova to that of p.
    """
    away, rate = {}, 0.02
    local = LocalConfig(64, steps=40, optimizer=partial(optim.SGD, lr=rate), backend="sequential")
    for objective in (FedAvg(), FedNova()):
        config = skewed(tmp_path, objective, model=Distance, local=local, rounds=1000)
        run = built(replace(config, selector=Uniform(), completeness=OneForEachPoint()))
        points = [run.data.population.x[shard].double() for shard in run.data.population.shards]
        centres = torch.stack([own.mean(dim=0) for own in points])
        steps = torch.tensor([len(own) for own in points]).double()
        weights = steps / steps.sum()  # by size, which is the number of steps here
        moved = weights * (1 - (1 - rate) ** steps)
        if isinstance(objective, FedNova):
            moved = moved / steps * (weights * steps).sum()
        w = torch.ones(DIMENSION, dtype=torch.float64)
        for _ in range(20):
            run.server.step()
            w = w + moved @ (centres - w)
        torch.testing.assert_close(run.server.params["w"].data, w, atol=1e-12, rtol=0)
        limit = weights if isinstance(objective, FedNova) else weights * steps
        fixed = moved @ centres / moved.sum()
        torch.testing.assert_close(fixed, limit @ centres / limit.sum(), atol=0.03, rtol=0)
        away[type(objective).__name__] = float((fixed - weights @ centres).abs().max())
    assert away["FedNova"] < away["FedAvg"] / 5
