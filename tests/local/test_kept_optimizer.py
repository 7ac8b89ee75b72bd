"""Optimizers that a client goes on with: the formula, what is kept and what is not, and resuming."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from runs import built, differ_when_resumed, same, settings, trained
from torch import optim

from flsel.config.groups import LocalConfig
from flsel.errors import UserError
from flsel.execution.run import run
from flsel.local.optimizers import OptimizerMemory
from flsel.params import repeated
from flsel.selectors.divfl import DivFL
from flsel.selectors.fedcat import FedCat

SGD = partial(optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(optim.Adam, lr=0.01)


def local(optimizer=SGD, **changes):
    return LocalConfig(batch_size=5, steps=3, optimizer=optimizer, keep_optimizer=True, **changes)


@pytest.mark.parametrize("make", [SGD, ADAM])
def test_a_client_goes_on_as_if_it_had_never_stopped(tmp_path, make):
    """Two visits, the second from where the first ended, are one long training with one optimizer."""
    server = built(settings(tmp_path, local=local(make))).server
    federation, program = server.federation, server.federation.program
    point = {name: value.detach().clone() for name, value in server.params.items()}
    model = {name: value.clone().requires_grad_() for name, value in point.items()}
    alone = make(list(model.values()))
    for round in (0, 1):
        ends = trained(federation, repeated(point, 1), [2], round)
        program.memory.keep([2])
        point = {name: end[0] for name, end in ends.items()}
        for positions in program.batches(2, round):
            x, y = program.batch(positions[positions >= 0])
            logits = torch.func.functional_call(program.model, model, (x,))
            torch.nn.functional.cross_entropy(logits, y).backward()
            alone.step()
            alone.zero_grad()
    for name, value in model.items():
        torch.testing.assert_close(point[name], value.detach())


def test_without_it_momentum_starts_anew(tmp_path):
    ends = {}
    for kept in (False, True):
        config = settings(
            tmp_path, local=LocalConfig(batch_size=5, steps=3, optimizer=SGD, keep_optimizer=kept)
        )
        server = built(config).server
        for _ in range(6):
            server.step()
        ends[kept] = server.params
    assert not same(ends[False], ends[True])


def test_trial_trainings_leave_no_trace(tmp_path):
    """DivFL asks everybody for an update; only who trains in the round is remembered."""
    config = settings(tmp_path, local=local(), selector=DivFL(mode="ideal", signal="update"))
    server = built(config).server
    plan = server.step().outcome.plan
    memory = server.federation.program.memory
    assert sorted((memory.slots_ > 0).nonzero().flatten().tolist()) == sorted(path[0] for path in plan.paths)


def test_an_update_that_was_lost_leaves_what_was_there():
    memory, param = OptimizerMemory(3, torch.device("cpu")), torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([param])

    def visit(client, gradient):
        optimizer.state.clear()
        memory.recall(client, optimizer)
        param.grad = torch.full((2,), gradient)
        optimizer.step()
        memory.note(client, optimizer)

    visit(0, 1.0)
    visit(1, 2.0)
    memory.keep([0])
    assert memory.slots_.tolist() == [1, 0, 0]
    visit(0, float("nan"))
    memory.keep([0])
    visit(0, 5.0)
    memory.forget()
    visit(0, 0.0)
    assert optimizer.state[param]["momentum_buffer"].tolist() == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize("make", [SGD, ADAM])
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, make):
    assert differ_when_resumed(settings(tmp_path, local=local(make)), (1, 4)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backend": "compiled"}, "backend compiled"),
        ({"workers": 2}, "workers 2"),
    ],
)
def test_trainers_that_cannot_are_refused(changes, said):
    with pytest.raises(UserError, match=said):
        local(**changes)


def test_an_optimizer_without_memory_is_refused(tmp_path):
    with pytest.raises(UserError, match="without momentum"):
        built(settings(tmp_path, local=local(partial(optim.SGD, lr=0.1))))


def test_paths_of_several_clients_are_refused(tmp_path):
    with pytest.raises(UserError, match="FedCat"):
        run(settings(tmp_path, local=local(), selector=FedCat()))
