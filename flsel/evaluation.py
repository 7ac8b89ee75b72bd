"""Losses and accuracies of a model: on held-out sets, and on the clients' own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torchmetrics import MeanMetric

from flsel.data.population import Examples
from flsel.errors import UserError
from flsel.local.program import Program
from flsel.selector import Params
from flsel.tasks import Classifier, loss_of


@final
class Evaluator:
    """Evaluate models in the clients' program, in eval mode.

    Args:
        program: The client's side of the run.
        fabric: Device and precision.
        batch_size: Examples per forward pass.
        server: The server's holdout, or None.
    """

    def __init__(
        self, program: Program, fabric: Fabric, *, batch_size: int, server: Examples | None = None
    ) -> None:
        self._server = server
        self._program = program
        self._fabric = fabric
        self._batch_size = batch_size
        device = program.task.device
        # In float64: a share of 10,000 examples is then exact to the last digit that is printed. The type
        # is set last, because Metric.to() forgets it.
        self._accuracy = MeanMetric(nan_strategy="disable").to(device).set_dtype(torch.float64)
        self._loss = MeanMetric(nan_strategy="disable").to(device).set_dtype(torch.float64)

    def measure(self, params: Params, examples: Examples) -> tuple[float, float]:
        """Measure a model on a held-out set.

        Returns:
            Mean loss and accuracy in [0, 1].
        """
        self._program.load(params)
        return self._measure(examples.x, examples.y)

    def server_loss(self, params: Params) -> float:
        """Return a model's mean loss on the server's holdout.

        Raises:
            UserError: If the run has no server holdout.
        """
        if self._server is None:
            raise UserError("the selector asks for the server's loss: set data.server to a share above 0.")
        return self.measure(params, self._server)[0]

    def on_clients(self, params: Params) -> tuple[Tensor, Tensor]:
        """Measure a model on every client's training data.

        Returns:
            Mean losses and accuracies, each float64 ``[N]``; NaN for a client without examples.
        """
        self._program.load(params)
        data = self._program.population
        rows = [
            self._measure(data.x[shard], data.y[shard]) if len(shard) else (float("nan"), float("nan"))
            for shard in data.shards
        ]
        table = torch.tensor(rows, dtype=torch.float64)
        return table[:, 0], table[:, 1]

    def losses(self, params: Params, clients: Sequence[int]) -> Tensor:
        """Return the clients' mean training losses, float64 ``[n]``; NaN for one without examples."""
        self._program.load(params)
        if isinstance(self._program.task, Classifier):
            return self._pooled_losses(self._program.task, clients)
        data = self._program.population
        return torch.tensor(
            [
                self._measure(data.x[data.shards[c]], data.y[data.shards[c]])[0]
                if len(data.shards[c])
                else float("nan")
                for c in clients
            ],
            dtype=torch.float64,
        )

    def _pooled_losses(self, task: Classifier, clients: Sequence[int]) -> Tensor:
        """Evaluate several clients per forward pass and take the means client by client."""
        data = self._program.population
        sizes = torch.tensor([len(data.shards[c]) for c in clients])
        if len(clients) == 0:
            return torch.empty(0, dtype=torch.float64)
        where = torch.cat([data.shards[c] for c in clients])
        losses = torch.empty(len(where), dtype=torch.float64)
        task.eval()
        with torch.inference_mode(), self._fabric.autocast():
            for first in range(0, len(where), self._batch_size):
                part = slice(first, first + self._batch_size)
                x, y = self._program.batch(where[part])
                losses[part] = torch.nn.functional.cross_entropy(task(x), y, reduction="none").cpu().double()
        owner = torch.repeat_interleave(torch.arange(len(clients)), sizes)
        sums = torch.zeros(len(clients), dtype=torch.float64).index_add_(0, owner, losses)
        return sums / sizes

    def _measure(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Measure the loaded model on raw examples."""
        task, device = self._program.task, self._program.task.device
        self._accuracy.reset()
        self._loss.reset()
        task.eval()
        with torch.inference_mode(), self._fabric.autocast():
            for first in range(0, len(y), self._batch_size):
                labels = y[first : first + self._batch_size].to(device)
                inputs = self._program.population.normalize(x[first : first + self._batch_size].to(device))
                logits = task(inputs)
                if isinstance(task, Classifier):
                    loss = torch.nn.functional.cross_entropy(logits, labels)
                else:
                    loss = loss_of(task.training_step((inputs, labels), first))
                self._loss.update(loss.double(), weight=len(labels))
                self._accuracy.update((logits.argmax(dim=1) == labels).double())
        return float(self._loss.compute()), float(self._accuracy.compute())
