"""Clients of several federations in one stack."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_compiled import Images
from test_trainers import OPTIMIZERS, SPECS, Regression, largest_gap, make_program, starts_of
from torch import nn

from flsel.local.compiled import pool
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.compiled.pool import Pool, pooling_is_faster, signature
from flsel.local.program import Program
from flsel.local.schedule import BatchSpec
from flsel.local.sequential import SequentialTrainer
from flsel.local.visit import Visit, from_rows
from flsel.objectives import SCAFFOLD, FedProx, Objective
from flsel.params import Params


def federation(seed: int, **settings: Any) -> Program:
    """A program of which seed, data, shards and length of visits are its own."""
    program = make_program(OPTIMIZERS["momentum"], SPECS["epochs"], **settings)
    shuffled = torch.randperm(len(program.population.y), generator=torch.Generator().manual_seed(seed))
    data = replace(
        program.population,
        x=program.population.x[shuffled] + seed,
        y=program.population.y[shuffled],
        shards=program.population.shards[seed:] + program.population.shards[:seed],
    )
    return replace(program, population=data, seed=seed, spec=BatchSpec(8, epochs=1 + seed))


def dropping() -> nn.Module:
    """Masks are a federation's own, too."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 4))


def visits_of(programs: list[Program], rounds: tuple[int, ...] = (2, 2, 1)) -> list[Visit]:
    """Visits of all, mixed."""
    found = [
        visit
        for program, round in zip(programs, rounds, strict=True)
        for visit in from_rows(starts_of(program, 4), [3, 0, 2, 1], round, program)
    ]
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).tolist()
    return [found[i] for i in order]


def one_by_one(visits: list[Visit]) -> Params:
    ends = [SequentialTrainer().train([visit]) for visit in visits]
    return {name: torch.cat([end[name] for end in ends]) for name in ends[0]}


@pytest.mark.parametrize("tabled", [False, True])
@pytest.mark.parametrize("objective", [None, FedProx(0.5)])
def test_federations_in_one_stack_end_where_they_do_alone(tabled: bool, objective: Objective | None) -> None:
    programs = [federation(seed, objective=copy.copy(objective), net=dropping()) for seed in range(3)]
    visits = visits_of(programs)
    trainer = CompiledTrainer(tabled=tabled)
    for part in (visits, [v for v in visits if v.program is not programs[0]], visits):
        assert largest_gap(trainer.train(part), one_by_one(part)) < 1e-10
    assert len(trainer._engines) == 1  # one pool, which serves some of its members too


def test_shared_inputs_are_not_copied() -> None:
    first = federation(0)
    same = replace(first, population=replace(first.population, shards=first.population.shards[::-1]))
    assert Pool.of([first, same]).whole is first
    joined = Pool.of([first, federation(1), same])
    assert joined.offsets[same] == 0
    assert len(joined.whole.population.y) == 2 * len(first.population.y)


class Gelu(nn.Sequential):
    def __init__(self, approximate: str) -> None:
        super().__init__(nn.Linear(6, 4), nn.GELU(approximate))


def others() -> dict[str, Program]:
    """Programs that differ from the first in what a step computes."""
    base = federation(1)
    found = {"first": federation(1, net=Gelu("none")), "layers": federation(1, net=Gelu("tanh"))}
    for name, changed in (
        ("optimizer", OPTIMIZERS["sgd"]),
        ("momentum", lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5)),
    ):
        found[name] = replace(base, optimizer=changed(base.task.parameters()))
    found["objective"] = federation(1, objective=FedProx(0.5))
    found["strength"] = federation(1, objective=FedProx(0.25))
    found["memory"] = federation(1, objective=SCAFFOLD())
    found["precision"] = federation(1, precision="32-true")
    found["own step"] = make_program(None, SPECS["steps"], net=Regression())
    return found


def test_what_computes_otherwise_stays_apart() -> None:
    kinds = {name: signature(program) for name, program in others().items()}
    kinds["base"] = signature(federation(0))
    assert kinds["base"] == signature(federation(2))
    assert len(set(kinds.values())) == len(kinds)


def test_what_a_stack_does_not_speed_up_stays_apart(monkeypatch: Any) -> None:
    small = federation(0)
    assert pooling_is_faster(small, 10)
    assert not pooling_is_faster(small, 100_000)
    assert not pooling_is_faster(federation(0, net=Images()), 1)
    programs = [federation(0), federation(1)]
    assert pool.together(programs, 4)
    monkeypatch.setattr(pool, "_COPIED", 100)
    assert not pool.together(programs, 4)
    assert pool.together([programs[0], programs[0]], 4)
