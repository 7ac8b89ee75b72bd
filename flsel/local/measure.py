"""Losses and gradients of models on the clients' training data, in eval mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from flsel.data.population import Examples
from flsel.data.trees import Tree, mapped
from flsel.errors import UserError
from flsel.local.agreement import Question
from flsel.local.program import Program
from flsel.local.tasks import convolves
from flsel.local.torch_internals import own_parameters
from flsel.local.visit import Visit, group_visits
from flsel.params import Params

_MOST = 2048
_CACHED = 2**16  # Numbers between two layers that stay in a CPU's cache.


def losses(visits: Sequence[Visit], *, plain: bool = False) -> Tensor:
    """Return mean losses (see :meth:`flsel.local.trainer.LocalTrainer.losses`).

    Args:
        visits: The clients.
        plain: One client at a time, images with their channels first.
    """
    means = torch.empty(len(visits), dtype=torch.float64)
    for group in group_visits(visits, by="start"):
        first = visits[group[0]]
        clients, data = [visits[position].client for position in group], first.program.population
        shards = [data.shards[client] for client in clients]
        if not first.program.by_logits:
            means[group] = _step_losses(first, clients, plain)
        elif plain:
            means[group] = torch.cat(
                [pooled(first, data.examples, [shard], plain=True)[0] for shard in shards]
            )
        else:
            means[group] = pooled(first, data.examples, shards)[0]
    return means


def gradients(visits: Sequence[Visit], *, plain: bool = False) -> Params:
    """Return gradients (see :meth:`flsel.local.trainer.LocalTrainer.gradients`).

    Args:
        visits: The clients.
        plain: One client at a time, images with their channels first.
    """
    live = visits[0].program.trainable()
    stack = {n: p.new_full((len(visits), *p.shape), torch.nan) for n, p in live.items()}
    for group in group_visits(visits, by="start"):
        first = visits[group[0]]
        with first.program.evaluating(first.start, plain=plain):
            for position in group:
                sums = {n: v[position] for n, v in stack.items()}
                _gradient(first.program, visits[position].client, sums)
    return stack


def squared_losses(visits: Sequence[Visit]) -> Tensor:
    """Return the mean squared loss of each start on the examples that its visit trains on, in eval mode.

    Returns:
        Float64 ``[len(visits)]``, on the CPU; NaN for a client without examples.
    """
    answers = torch.full((len(visits),), math.nan, dtype=torch.float64)
    means: dict[int, Tensor] = {}
    for group in group_visits(visits, by="start"):
        first = visits[group[0]]
        program = first.program
        with program.evaluating(first.start), torch.no_grad(), program.fabric.autocast():
            for position in group:
                visit = visits[position]
                batches = program.batches(visit.client, visit.draw)
                used = torch.unique(batches[batches >= 0])
                if len(used):
                    program.seed_draws("evaluation", visit.client)
                    losses = [each_loss(program, used[part]) for part in _parts(program, used)]
                    means[position] = torch.cat(losses).double().square().mean()
    if means:
        answers[list(means)] = torch.stack(list(means.values())).cpu()
    return answers


def is_plain(question: Question, program: Program) -> bool:
    """Tell whether the plain way to answer a question is the one that is taken in any case."""
    return not (program.channels_last or (question == "losses" and program.by_logits))


def examples_at_once(task: nn.Module) -> int:
    """Return how many examples a forward pass of an evaluation takes best, as benchmarks/results.md measured.

    On a CPU what a layer makes of more examples leaves the cache before the next layer reads it. A model of
    narrow linear layers takes more, since calls of torch cost more than its arithmetic.
    """
    if next(task.parameters()).device.type != "cpu":
        return _MOST
    if convolves(task):
        return 128
    layers = [layer for layer in task.modules() if own_parameters(layer)]
    widths = [max(m.in_features, m.out_features) for m in layers if isinstance(m, nn.Linear)]
    return min(max(_CACHED // max(widths), 256), _MOST) if len(widths) == len(layers) else 256


def pooled(
    visit: Visit, examples: Examples, shards: Sequence[Tensor], *, plain: bool = False
) -> tuple[Tensor, Tensor]:
    """Evaluate a model on several parts of a set per forward pass and take the means part by part.

    Args:
        visit: Whose start is evaluated; its losses are cross-entropies of logits (:attr:`Program.by_logits`).
        examples: The set.
        shards: Positions of each part, int64.
        plain: Images have their channels first.

    Returns:
        Mean losses and accuracies, each float64 ``[len(shards)]``; NaN for a part without examples.
    """
    program, where = visit.program, torch.cat(list(shards))
    sizes = torch.tensor([len(shard) for shard in shards])
    pairs = []
    with program.measuring(visit.start, plain=plain):
        for part in _parts(program, where):
            x, y = program.ready(examples.read(where[part]))
            logits = program.outputs(x)
            losses = nn.functional.cross_entropy(logits, y, reduction="none")
            pairs.append(torch.stack([losses.detach(), (logits.argmax(dim=1) == y).to(losses)], dim=1))
    # Read once: on a GPU every look at a number waits for all that was asked before.
    measured = torch.cat(pairs).cpu().double() if pairs else torch.empty((0, 2), dtype=torch.float64)
    owner = torch.repeat_interleave(torch.arange(len(shards)), sizes)
    means = torch.zeros((len(shards), 2), dtype=torch.float64).index_add_(0, owner, measured) / sizes[:, None]
    return means[:, 0], means[:, 1]


def _step_losses(first: Visit, clients: Sequence[int], plain: bool) -> Tensor:
    """Evaluate the task's own loss of a visit's start, a mean over the batch, client by client."""
    program = first.program
    shards = [program.population.shards[client] for client in clients]
    batch_losses, owner, share = [], [], []
    with program.measuring(first.start, plain=plain):
        for row, (client, shard) in enumerate(zip(clients, shards, strict=True)):
            program.seed_draws("evaluation", client)
            for part in _parts(program, shard):
                loss = program.measured_loss(program.batch(shard[part]), part.start)
                batch_losses.append(loss.detach())
                owner.append(row)
                share.append(len(shard[part]) / len(shard))
    means = torch.tensor([0.0 if len(shard) else math.nan for shard in shards], dtype=torch.float64)
    if batch_losses:
        values = torch.stack(batch_losses).cpu().double() * torch.tensor(share, dtype=torch.float64)
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


_COMPARED = 8
_ROUNDING = 1e-3  # Relative: single precision and other orders of sums stay far below.


def each_loss(program: Program, where: Tensor) -> Tensor:
    """Return the loss of the loaded model on each of some examples, ``[n]``."""
    if program.by_logits:
        x, y = program.batch(where)
        return nn.functional.cross_entropy(program.outputs(x), y, reduction="none")
    return _in_one_pass(program, where) if program.losses_in_one_pass else _one_by_one(program, where)


def with_single_losses(program: Program, selector: str) -> Program:
    """Return the program as its single losses are asked, which the first examples of a client decide.

    A task's loss is that of a batch. If it is a mean over examples, perhaps weighted, or their sum, losses of
    single examples have a meaning. They are asked in one pass if this gives the same numbers.

    Args:
        program: The client's side of the federation.
        selector: Name of the selector that reads them.

    Raises:
        UserError: If the task compares the examples of a batch, as a contrastive loss does.
    """
    if program.by_logits:
        return program
    where = max(program.population.shards, key=len)[:_COMPARED]
    with program.evaluating(), torch.no_grad(), program.fabric.autocast():
        program.seed_draws("evaluation", 0)
        batch = program.measured_loss(program.batch(where))
        program.seed_draws("evaluation", 1)
        draws = bool(batch != program.measured_loss(program.batch(where)))
        single = _one_by_one(program, where).double()
        if not draws and not _belongs_to(float(batch), single):
            name, least, most = type(program.model).__name__, float(single.min()), float(single.max())
            raise UserError(
                f"{selector} reads losses of single examples, and the loss of {name} has none: it is "
                f"{float(batch):.3g} on {len(where)} examples together, and from {least:.3g} to {most:.3g} "
                "on each alone. Take another selector, such as AFL, which reads losses of clients."
            )
        try:
            together = _in_one_pass(program, where).double()
        except Exception:  # whatever a user's step cannot do under vmap
            return program
    same = together.shape == single.shape and torch.allclose(together, single, rtol=_ROUNDING, atol=1e-6)
    return replace(program, losses_in_one_pass=bool(same))


def _belongs_to(batch: float, single: Tensor) -> bool:
    """Tell whether a batch's loss is a mean of single ones with some weights, or their sum."""
    if not torch.isfinite(single).all():
        return False
    slack = _ROUNDING * float(single.abs().max()) + 1e-6
    between = float(single.min()) - slack <= batch <= float(single.max()) + slack
    return between or abs(batch - float(single.sum())) <= len(single) * slack


def _one_by_one(program: Program, where: Tensor) -> Tensor:
    return torch.stack([program.measured_loss(program.batch(one[None])) for one in where])


def _in_one_pass(program: Program, where: Tensor) -> Tensor:
    """Ask every example's loss by vmap, which refuses what draws."""

    def loss(x: Tree, y: Tree) -> Tensor:
        return program.measured_loss((mapped(lambda part: part[None], x), mapped(lambda part: part[None], y)))

    each: Tensor = torch.func.vmap(loss)(*program.batch(where))
    return each
