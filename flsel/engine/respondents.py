"""Who answers a round's questions: clients by messages, by formulas, or (here) by a program and a trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from flsel.data.population import Population
from flsel.engine.clock import Clock
from flsel.engine.evaluation import Evaluator
from flsel.errors import UserError
from flsel.local.program import Program
from flsel.local.schedule import Reach
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, from_one
from flsel.metrics import NOTHING, Cost, models_up
from flsel.params import Params, height, repeated, row, whole
from flsel.selector import Need, Plan


class Respondents(ABC):
    """The clients of a federation, and its server as far as it measures.

    :class:`flsel.engine.answers.Answers` has the rules and costs of every question. It asks clients that are
    available, each once. A respondent only answers.

    Attributes:
        sizes: Training examples per client, int64 ``[N]``.
        num_classes: C.
        trained: Distinct examples in a local training of each client, int64 ``[N]``; None means ``sizes``.
        messages: Model-sized messages that go each way at a local training.
        sends_messages: Whether answers came by messages, which may draw from global generators.
    """

    sizes: Tensor
    num_classes: int
    trained: Tensor | None = None
    messages: int = 1
    sends_messages: bool = False

    def beside(self, params: Params) -> Cost:
        """Return what a local training from a model costs besides its messages."""
        return NOTHING

    def upload(self, params: Params) -> Cost:
        """Return what sending the result of a local training costs: as many models as :attr:`messages`."""
        return models_up(self.messages, params)

    @abstractmethod
    def labels(self) -> Tensor:
        """Return the label counts of every client, int64 ``[N, C]``."""

    def true_models(self) -> Tensor:
        """Return the models that labelled the clients' examples, float64 ``[N, d]``."""
        raise UserError(
            "the selector asked for the clients' true models, which only generated data with natural "
            "clients have (data.name: synthetic, generator fedgs, and no partition)."
        )

    @abstractmethod
    def losses(self, clients: list[int], at: Params, round: int) -> Tensor:
        """Return the clients' losses of a model, float64 ``[n]``; NaN where there is no answer."""

    @abstractmethod
    def shadow(self, clients: list[int], params: Params, round: int) -> Params:
        """Return the end models of the clients' training from a model, each tensor ``[n, ...]``."""

    @abstractmethod
    def gradients(self, clients: list[int], params: Params, round: int) -> Params:
        """Return the gradients of the clients' losses at a model, each tensor ``[n, ...]``."""

    @abstractmethod
    def server_loss(self, at: Params) -> float:
        """Return the loss of a model on the server's holdout."""

    def server_losses(self, models: Params) -> Tensor:
        """Return the losses of a stack of models on the server's holdout, float64 ``[n]``."""
        alone = [self.server_loss(row(models, index)) for index in range(height(models))]
        return torch.tensor(alone, dtype=torch.float64)

    @abstractmethod
    def noise_outputs(self, models: Params) -> Tensor:
        """Return the mean outputs of a stack of models on noise, float64 ``[n, C]``."""

    def untimed(self, clients: Sequence[int]) -> list[int]:
        """Return the clients whose durations only a probe training can tell."""
        return []

    @abstractmethod
    def durations(self, clients: list[int]) -> Tensor:
        """Return the parts of the clients' local training, in seconds, float64 ``[n, 3]``."""


@dataclass(eq=False)
class ProgramClients(Respondents):
    """Clients that run a program, in this process or wherever a trainer asks them.

    Their answers leave the global generators of random numbers as they were.

    Attributes:
        program: The clients' side.
        trainer: Trains and asks clients.
        evaluator: Losses and outputs of models on what the server holds.
        reach: How far a constant gradient moves the parameters in numbers of steps.
        clock: What clients' work takes on their simulated devices; None without devices.
        update: Bytes of a client's update; None stands for those of a model.
    """

    program: Program
    trainer: LocalTrainer
    evaluator: Evaluator
    reach: Reach
    clock: Clock | None = None
    update: int | None = None

    def __post_init__(self) -> None:
        spec = self.program.spec
        self.sizes = self.population.sizes
        self.num_classes = self.population.num_classes
        self.trained = whole([min(size, spec.num_examples(size)) for size in self.sizes.tolist()])
        self.messages = self.program.objective.messages

    @property
    def population(self) -> Population:
        """The clients' data."""
        return self.program.population

    def beside(self, params: Params) -> Cost:
        """Return what the objective sends besides models."""
        return self.program.objective.cost(params)

    def upload(self, params: Params) -> Cost:
        """Return what sending an update costs, after the steps that make it smaller."""
        if self.update is None:
            return super().upload(params)
        return models_up(self.messages - 1, params) + Cost(models_up=1, bytes_up=self.update)

    def labels(self) -> Tensor:
        """Return the label counts."""
        return self._counts.clone()

    @cached_property
    def _counts(self) -> Tensor:
        return self.population.label_counts()

    def true_models(self) -> Tensor:
        """Return the models that generated data were labelled by."""
        known = self.population.true_models
        return super().true_models() if known is None else torch.from_numpy(known())

    def losses(self, clients: list[int], at: Params, round: int) -> Tensor:
        """Return the clients' losses."""
        with self.program.drawing("answer"):
            return self.trainer.losses(from_one(at, clients, round, self.program))

    def shadow(self, clients: list[int], params: Params, round: int) -> Params:
        """Return the end models of the clients' training."""
        if not clients:
            return repeated(params, 0)
        with self.program.drawing("answer"):
            ends = self.trainer.train(from_one(params, clients, round, self.program))
        return {name: ends[name] for name in params}

    def gradients(self, clients: list[int], params: Params, round: int) -> Params:
        """Return the clients' gradients over the trainable parameters."""
        if not clients:
            own = {name: value for name, value in self.program.trainable().items() if name in params}
            return repeated(own, 0)
        with self.program.drawing("answer"):
            gradients = self.trainer.gradients(from_one(params, clients, round, self.program))
        return {name: value for name, value in gradients.items() if name in params}

    def server_loss(self, at: Params) -> float:
        """Return the loss on the server's holdout."""
        return self.evaluator.server_loss(at)

    def server_losses(self, models: Params) -> Tensor:
        """Return the losses on the server's holdout, computed together where possible."""
        return self.evaluator.server_losses(models)

    def noise_outputs(self, models: Params) -> Tensor:
        """Return the models' mean outputs on noise."""
        return self.evaluator.noise_outputs(models)

    def durations(self, clients: list[int]) -> Tensor:
        """Return the parts of a local training by the table of devices, in simulated seconds."""
        assert self.clock is not None  # see runner.build
        return torch.from_numpy(self.clock.parts(clients))

    def reports(self, needs: Need, firsts: Sequence[Visit]) -> dict[Need, Tensor]:
        """Return what participants tell of the model that they received, each float64 ``[K]``.

        Args:
            needs: What the selector declared.
            firsts: The first training of each path; equal ones are asked once.
        """
        asked = {Need.OWN_LOSS: self.trainer.losses, Need.SQUARED_LOSS: self.trainer.squared_losses}
        distinct = {(v.client, v.round, v.turn): v for v in firsts}
        where = {key: position for position, key in enumerate(distinct)}
        at = torch.tensor([where[v.client, v.round, v.turn] for v in firsts])
        return {need: ask([*distinct.values()])[at] for need, ask in asked.items() if need in needs}

    def work(self, plan: Plan, steps: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return what the trainings along each path amount to, as :class:`~flsel.selector.Updates` has it.

        Args:
            plan: The paths.
            steps: Local steps of the trainings along each of them.
        """
        shards = self.population.shards
        sizes = [[len(shards[client]) for client in visits] for visits in plan.visits]
        return {
            "sizes": whole([sum(path) for path in sizes]),
            "steps": whole([sum(path) for path in steps]),
            "travelled": partial(_travel, self.reach, steps),
        }


def _travel(reach: Reach, steps: Sequence[Sequence[int]]) -> Tensor:
    """Add up how far a constant gradient comes in the visits of each path, float64 ``[K]``."""
    far = [float(reach.travel(torch.tensor(visits)).sum()) for visits in steps]
    return torch.tensor(far, dtype=torch.float64)
