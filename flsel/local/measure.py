"""Losses and gradients of models on the clients' training data, in eval mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from flsel.local.agreement import Question
from flsel.local.each_loss import each_loss
from flsel.local.gradients import gradients_at_once
from flsel.local.program import Program
from flsel.local.tasks import convolves
from flsel.local.visit import Visit, alike
from flsel.params import Params


def losses(visits: Sequence[Visit], *, plain: bool = False) -> Tensor:
    """Return mean losses (see :meth:`flsel.local.trainer.LocalTrainer.losses`).

    Args:
        visits: The clients.
        plain: One client at a time, images with their channels first.
    """
    found = torch.empty(len(visits), dtype=torch.float64)
    for group in alike(visits, start=True):
        first = visits[group[0]]
        first.program.load(first.start)
        clients = [visits[position].client for position in group]
        if not first.program.by_logits:
            found[group] = _step_losses(first.program, clients, plain)
        elif plain:
            alone = [pooled(first.program, [client], plain=True)[0] for client in clients]
            found[group] = torch.cat(alone)
        else:
            found[group] = pooled(first.program, clients)[0]
    return found


def gradients(visits: Sequence[Visit], *, plain: bool = False) -> Params:
    """Return gradients (see :meth:`flsel.local.trainer.LocalTrainer.gradients`).

    Args:
        visits: The clients.
        plain: One client at a time, images with their channels first.
    """
    live = visits[0].program.trainable()
    stack = {n: p.new_full((len(visits), *p.shape), torch.nan) for n, p in live.items()}
    for group in alike(visits, start=True):
        first = visits[group[0]]
        first.program.load(first.start)
        clients = [visits[position].client for position in group]
        with first.program.evaluating(plain=plain):
            at_once = {} if plain else gradients_at_once(first.program, clients)
            for name, rows in at_once.items():
                stack[name][group] = rows
            for position in group if not at_once else []:
                sums = {n: v[position] for n, v in stack.items()}
                _gradient(first.program, visits[position].client, sums)
    return stack


def squared_losses(visits: Sequence[Visit]) -> Tensor:
    """Return the mean squared loss of each start on the examples that its visit trains on, in eval mode.

    Returns:
        Float64 ``[len(visits)]``, on the CPU; NaN for a client without examples.
    """
    found = torch.full((len(visits),), math.nan, dtype=torch.float64)
    means: dict[int, Tensor] = {}
    for group in alike(visits, start=True):
        program = visits[group[0]].program
        program.load(visits[group[0]].start)
        with program.evaluating(), torch.no_grad(), program.fabric.autocast():
            for position in group:
                visit = visits[position]
                batches = program.batches(visit.client, visit.draw)
                used = torch.unique(batches[batches >= 0])
                if len(used):
                    program.seed_draws("evaluation", visit.client)
                    losses = [each_loss(program, used[part]) for part in _parts(program, used)]
                    means[position] = torch.cat(losses).double().square().mean()
    if means:
        found[list(means)] = torch.stack(list(means.values())).cpu()
    return found


def is_plain(question: Question, program: Program) -> bool:
    """Tell whether the plain way to answer a question is the one that is taken in any case."""
    if program.channels_last:
        return False
    if question == "losses":
        return not program.by_logits
    return question == "evaluation" or program.task.device.type == "cpu"


def examples_at_once(task: nn.Module) -> int:
    """Return how many examples a forward pass of an evaluation takes best, as benchmarks/results.md measured.

    On a CPU what a layer makes of more examples leaves the cache before the next layer reads it.
    """
    if next(task.parameters()).device.type != "cpu":
        return 2048
    return 128 if convolves(task) else 256


def pooled(program: Program, clients: Sequence[int], *, plain: bool = False) -> tuple[Tensor, Tensor]:
    """Evaluate the loaded model on several clients per forward pass and take the means client by client.

    Args:
        program: The client's side, its losses cross-entropies of logits (:attr:`Program.by_logits`).
        clients: The clients.
        plain: Images have their channels first.

    Returns:
        Mean losses and accuracies, each float64 ``[len(clients)]``; NaN for a client without examples.
    """
    shards = [program.population.shards[client] for client in clients]
    where = torch.cat(shards)
    sizes = torch.tensor([len(shard) for shard in shards])
    found = []
    with program.measuring(plain=plain):
        for part in _parts(program, where):
            x, y = program.batch(where[part])
            logits = program.outputs(x)
            losses = nn.functional.cross_entropy(logits, y, reduction="none")
            found.append(torch.stack([losses.detach(), (logits.argmax(dim=1) == y).to(losses)], dim=1))
    # Read once: on a GPU every look at a number waits for all that was asked before.
    measured = torch.cat(found).cpu().double() if found else torch.empty((0, 2), dtype=torch.float64)
    owner = torch.repeat_interleave(torch.arange(len(shards)), sizes)
    means = torch.zeros((len(shards), 2), dtype=torch.float64).index_add_(0, owner, measured) / sizes[:, None]
    return means[:, 0], means[:, 1]


def _step_losses(program: Program, clients: Sequence[int], plain: bool) -> Tensor:
    """Evaluate the task's own loss, a mean over the batch, client by client."""
    shards = [program.population.shards[client] for client in clients]
    found, owner, share = [], [], []
    with program.measuring(plain=plain):
        for row, (client, shard) in enumerate(zip(clients, shards, strict=True)):
            program.seed_draws("evaluation", client)
            for part in _parts(program, shard):
                loss = program.measured_loss(program.batch(shard[part]), part.start)
                found.append(loss.detach())
                owner.append(row)
                share.append(len(shard[part]) / len(shard))
    means = torch.tensor([0.0 if len(shard) else math.nan for shard in shards], dtype=torch.float64)
    if found:
        values = torch.stack(found).cpu().double() * torch.tensor(share, dtype=torch.float64)
        means.index_add_(0, torch.tensor(owner), values)
    return means


def _gradient(program: Program, client: int, sums: Params) -> None:
    """Write the gradient of a client's mean loss at the loaded model, unless it has no examples."""
    shard, live = program.population.shards[client], program.trainable()
    if len(shard) == 0:
        return
    for total in sums.values():
        total.zero_()
    program.seed_draws("evaluation", client)
    for part in _parts(program, shard):
        where = shard[part]
        with program.fabric.autocast():
            loss = program.measured_loss(program.batch(where))
        grads = torch.autograd.grad(loss, list(live.values()), allow_unused=True)
        for total, grad in zip(sums.values(), grads, strict=True):
            if grad is not None:
                total.add_(grad, alpha=len(where) / len(shard))


def _parts(program: Program, where: Tensor) -> Iterator[slice]:
    """Cut positions into forward passes."""
    for first in range(0, len(where), program.at_once):
        yield slice(first, min(first + program.at_once, len(where)))
