"""Train a client by a plain PyTorch loop, which takes from flsel the order of batches and the seeds alone."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from flsel.local.dropout import Masks, step_keys, visit_key
from flsel.local.schedule import batch_table
from flsel.rng import repeatable, seed_layers
from zoo.cases import MU, Case

SEED = 1


def trained(case: Case, start: dict[str, Tensor], client: int, round: int) -> dict[str, Tensor]:
    """Train a client from a start with a model that is made for the occasion.

    Args:
        case: The case.
        start: Parameters and buffers by name.
        client: The client.
        round: Communication round.

    Returns:
        What became of the start.
    """
    model = case.model()
    if case.precision == "64-true":
        model.double()
    live = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in start.items():
            live[name].copy_(value)
    params = {name: param for name, param in model.named_parameters() if param.requires_grad}
    optimizer = case.make_optimizer(list(params.values()))
    model.train()
    table = batch_table(case.batches(), case.shards[client].numpy(), seed=SEED, round=round, client=client)
    key = visit_key(SEED, round, client)
    before = torch.get_default_dtype()
    with repeatable(0):
        seed_layers(torch.device("cpu"), key)
        torch.set_default_dtype(case.dtype)
        try:
            for step, row in enumerate(table):
                there = torch.from_numpy(row[row >= 0])
                with Masks(step_keys([key], range(step, step + 1))[0, 0]):  # torch's dropout, drawn by a hash
                    number = step % case.batches().pass_length(len(case.shards[client]))
                    loss = case.loss(model, case.x[there], case.y[there], number)
                    if isinstance(model, LightningModule):  # as a Trainer does, after the forward pass
                        optimizer.zero_grad()
                    loss.backward()
                for name, param in params.items() if case.proximal else ():
                    if param.grad is not None:
                        param.grad.add_(param.detach() - start[name], alpha=MU)
                optimizer.step()
                if not isinstance(model, LightningModule):
                    optimizer.zero_grad()
        finally:
            torch.set_default_dtype(before)
    live = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: live[name].detach().clone() for name in start}
