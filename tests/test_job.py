"""Rounds that are paused between who trains and what came back, and several of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import built, same, settings

from flsel.availability import LN
from flsel.config.groups import LocalConfig
from flsel.engine.round_job import train
from flsel.engine.server import Server
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.objectives import SCAFFOLD, FedProx
from flsel.params import Params, row, stacked
from flsel.selectors.fedcat import FedCat
from flsel.selectors.hics import HiCS
from flsel.selectors.powd import PowD

BACKENDS = ("sequential", "compiled")


class Counting(LocalTrainer):
    """Notes how many visits each call brought."""

    def __init__(self, trainer: LocalTrainer) -> None:
        self.trainer = trainer
        self.calls: list[int] = []

    def train(self, visits: Sequence[Visit]) -> Params:
        self.calls.append(len(visits))
        return self.trainer.train(visits)


def federations(folder: Path, backend: Any) -> list[Server]:
    """Four federations that differ in seed, data, objective, learning rates and length of paths."""
    base = settings(
        folder, precision="64-true", local=LocalConfig(batch_size=5, steps=3, backend=backend), rounds=8
    )
    configs = (
        replace(base, selector=PowD()),
        replace(base, seed=1, selector=FedCat(lam=1, epsilon=0.5), availability=LN(0.6)),
        replace(base, seed=2, objective=FedProx(0.5), local=replace(base.local, steps=7)),
        replace(base, seed=3, objective=SCAFFOLD(), selector=HiCS()),
    )
    return [built(config).server for config in configs]


@pytest.mark.parametrize("backend", BACKENDS)
def test_federations_in_one_call_train_as_they_do_alone(tmp_path: Path, backend: Any) -> None:
    alone, together = federations(tmp_path, backend), federations(tmp_path, backend)
    trainer = Counting(together[0].federation.trainer)
    for _ in range(2):
        for server in alone:
            server.step()
        jobs = [server.open() for server in together]
        for server, job, ends in zip(together, jobs, train(jobs, trainer), strict=True):
            server.close(job, ends)
    longest = max(job.plan.hops for job in jobs)
    assert longest > 1
    assert len(trainer.calls) == 2 * longest
    assert trainer.calls[0] > max(len(job.plan) for job in jobs)
    for one, other in zip(alone, together, strict=True):
        assert same(one.state_dict(), other.state_dict())


def test_a_round_that_is_put_off_is_the_same_round(tmp_path: Path) -> None:
    steady, paused = (built(settings(tmp_path, selector=PowD())).server for _ in range(2))
    for _ in range(2):
        steady.step()
        job = paused.open()
        before = {name: value.clone() for name, value in paused.params.items()}
        # One by one and backwards, as answers may come in.
        visits = job.visits(0)
        ends = [row(paused.federation.trainer.train([visit]), 0) for visit in reversed(visits)][::-1]
        assert all(torch.equal(value, before[name]) for name, value in paused.params.items())
        paused.close(job, job.place(0, stacked(ends)))
    for name, value in steady.params.items():
        torch.testing.assert_close(value.data, paused.params[name].data)
    assert steady.ledger == paused.ledger


@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_do_not_depend_on_who_else_is_asked(tmp_path: Path, backend: Any) -> None:
    servers = federations(tmp_path, backend)
    visits = [visit for server in servers for visit in server.open().visits(0)]
    order = torch.randperm(len(visits), generator=torch.Generator().manual_seed(0)).tolist()
    trainer = servers[0].federation.trainer
    for ask in (trainer.train, trainer.gradients):
        whole, mixed = ask(visits), ask([visits[i] for i in order])
        for name, value in whole.items():
            torch.testing.assert_close(mixed[name], value[order], atol=1e-12, rtol=0)
            torch.testing.assert_close(ask(visits[2:3])[name][0], value[2], atol=1e-12, rtol=0)
    torch.testing.assert_close(trainer.losses([visits[i] for i in order]), trainer.losses(visits)[order])
