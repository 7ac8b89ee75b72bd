"""Local training one client at a time, with Lightning Fabric: works with any LightningModule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from flsel.local.program import Program, scale_lr
from flsel.local.tasks import loss_of
from flsel.rng import torch_seed
from flsel.stack import Params


@final
class SequentialTrainer:
    """Train the clients of a cohort in turn, each with a fresh optimizer state.

    Args:
        program: The client's side of the run.
        fabric: Device and precision.
        optimizer: Local optimizer of the task's parameters.
    """

    def __init__(self, program: Program, fabric: Fabric, optimizer: Optimizer) -> None:
        self._program = program
        self._fabric = fabric
        self._optimizer = optimizer
        wrapped = fabric.setup_optimizers(optimizer)
        assert not isinstance(wrapped, tuple)
        self._wrapped = wrapped
        # What configure_optimizers chose; restored at every visit, as an optimizer may write to it.
        self._groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]

    def train(self, starts: Params, clients: Sequence[int], round: int) -> Params:
        """Train each client from its own start (see :class:`flsel.local.program.LocalTrainer`)."""
        ends = {name: torch.empty_like(start) for name, start in starts.items()}
        live = self._program.state()
        devices = [self._program.task.device] if self._program.task.device.type == "cuda" else []
        self._program.task.train()
        with torch.random.fork_rng(devices):
            for row, client in enumerate(clients):
                start = {name: stack[row] for name, stack in starts.items()}
                self._visit(client, start, round)
                with torch.no_grad():
                    for name, end in ends.items():
                        end[row] = live[name]
        return ends

    def _visit(self, client: int, start: Params, round: int) -> None:
        """Run one client's local steps on the task's own parameters."""
        program = self._program
        program.load(start)
        self._reset_optimizer(program.lr_factors[round])
        # Dropout and the like draw from torch's generator: seeded per visit, so that a client's masks do
        # not depend on who else is in the cohort.
        _seed_layers(program.task.device, torch_seed(program.seed, "layers", round, client))
        params = program.trainable()
        models = program.objective.models(start, client)
        batches = program.batches(client, round)
        lengths = (batches >= 0).sum(dim=1).tolist()
        for step, (positions, length) in enumerate(zip(batches, lengths, strict=True)):
            self._backward(positions[:length], step, models)
            grads = {name: p.grad for name, p in params.items() if p.grad is not None}
            with torch.no_grad():
                program.objective.correct(grads, params, start, client)
            self._wrapped.step()
            self._optimizer.zero_grad()

    def _backward(self, positions: Tensor, step: int, models: tuple[Params, ...]) -> None:
        """Compute the gradients of one batch's loss."""
        task, batch = self._program.task, self._program.batch(positions)
        with self._fabric.autocast():
            loss = self._program.loss(lambda: loss_of(task.training_step(batch, step)), batch[0], models)
        self._fabric.backward(loss)

    def _reset_optimizer(self, factor: float) -> None:
        self._optimizer.state.clear()
        for group, initial in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(initial)
        scale_lr(self._optimizer.param_groups, [g["lr"] for g in self._groups], factor)


def _seed_layers(device: torch.device, seed: int) -> None:
    # torch.manual_seed would also note a stack trace for each kind of device that is not there.
    torch.default_generator.manual_seed(seed)
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).manual_seed(seed)
