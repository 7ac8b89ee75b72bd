"""A Flower app of its own, whose clients are those of a flsel run: both must come to the same model."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from grids import LocalGrid

from flsel.flower import answer
from flsel.local.sequential import SequentialTrainer
from flsel.local.visit import Visit
from flsel.params import Params
from flsel.runner.build import Built


class OwnApp:
    """One ClientApp for the clients of a built run; client i is node 100 + i."""

    def __init__(self, built: Built) -> None:
        self.program, self.trainer = built.program, SequentialTrainer()
        self._first = {name: value.detach().clone() for name, value in self.program.state().items()}
        self.app = ClientApp()
        self.app.train()(self.train)
        self.app.evaluate()(self.evaluate)
        answer(self.app, labels=self.labels, losses=self.losses, gradient=self.gradient)

    def grid(self, **more: Any) -> LocalGrid:
        clients = range(len(self.program.population))
        return LocalGrid({100 + i: (self.app, {"partition-id": i} | more) for i in clients})

    def initial(self) -> ArrayRecord:
        return ArrayRecord(self._first)

    def visit(self, arrays: ArrayRecord, context: Context, round: int = 0) -> Visit:
        known = self.program.state()
        start: Params = {n: value for n, value in arrays.to_torch_state_dict().items() if n in known}
        return Visit(start, int(context.node_config["partition-id"]), round, self.program)

    def train(self, message: Message, context: Context) -> Message:
        config = message.content.config_records["config"]
        visit = self.visit(message.content.array_records["arrays"], context, config["server-round"] - 1)
        ends = {name: value[0] for name, value in self.trainer.train([visit]).items()}
        steps = len(self.program.batches(visit.client, visit.round))
        metrics = MetricRecord({"steps": steps, "num-examples": len(self.labels(context)), "train-loss": 2.0})
        return Message(RecordDict({"arrays": ArrayRecord(ends), "metrics": metrics}), reply_to=message)

    def evaluate(self, message: Message, context: Context) -> Message:
        visit = self.visit(message.content.array_records["arrays"], context)
        loss = float(self.trainer.losses([visit])[0])
        metrics = MetricRecord({"loss": loss, "num-examples": len(self.labels(context))})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def labels(self, context: Context) -> list[int]:
        shard = self.program.population.shards[int(context.node_config["partition-id"])]
        return list(self.program.population.y[shard].tolist())

    def losses(self, arrays: ArrayRecord, context: Context) -> list[float]:
        visit, data = self.visit(arrays, context), self.program.population
        with self.program.measuring(visit.start):
            x, y = self.program.batch(data.shards[visit.client])
            found = torch.nn.functional.cross_entropy(self.program.task(x), y, reduction="none")
        return list(found.double().tolist())

    def gradient(self, arrays: ArrayRecord, context: Context) -> ArrayRecord:
        found = self.trainer.gradients([self.visit(arrays, context)])
        return ArrayRecord({name: value[0] for name, value in found.items()})
