"""What a federation answers when a selector asks, one method for each need (:class:`flsel.selector.View`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flsel.engine.evaluation import Evaluator
from flsel.engine.stopwatch import Stopwatch
from flsel.errors import UserError
from flsel.local.program import Program
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, from_one
from flsel.metrics import Cost, Ledger, models_down, models_up, training
from flsel.params import Params, height, repeated


@dataclass(frozen=True)
class Answers:
    """Answer a selector's questions in one round, at a counted cost.

    Attributes:
        evaluator: Losses and outputs of models on what the server holds.
        trainer: Trains and asks clients.
        program: The client's side of the federation.
        availability: Tells who is available in a communication round, bool ``[N]``.
        label_counts: Label counts of every client, int64 ``[N, C]``.
        round: Communication round.
        params: The global model.
        ledger: Cost of the round so far.
        stopwatch: Simulated seconds of the round so far; None without devices.
    """

    evaluator: Evaluator
    trainer: LocalTrainer
    program: Program
    availability: Callable[[int], Tensor]
    label_counts: Tensor
    round: int
    params: Params
    ledger: Ledger
    stopwatch: Stopwatch | None = None

    def labels(self) -> Tensor:
        """Return the label counts."""
        return self.label_counts.clone()

    def true_models(self) -> Tensor:
        """Return the models that labelled the clients' examples."""
        known = self.program.population.true_models
        if known is None:
            raise UserError(
                "the selector asked for the clients' true models, which only generated data with natural "
                "clients have (data.name: synthetic, generator fedgs, and no partition)."
            )
        return torch.from_numpy(known())

    def losses(self, clients: Sequence[int], at: Params | None) -> Tensor:
        """Return the clients' losses; NaN for those unavailable or without examples."""
        free = self.availability(self.round)
        asked = [int(c) for c in clients if free[int(c)]]
        self._charge(asked, models_down(1, self.params) + Cost(passes=1, scalars_up=1), at=at)
        answered = torch.full((len(clients),), torch.nan, dtype=torch.float64)
        if asked:
            rows = torch.tensor([i for i, c in enumerate(clients) if free[int(c)]], dtype=torch.int64)
            answered[rows] = self.trainer.losses(self._visits(asked, at))
        return answered

    def shadow(self, clients: Sequence[int]) -> Params:
        """Return the end models of the clients' training."""
        self._require_available(clients, "to train")
        objective = self.program.objective
        each = training(self.params, down=objective.messages, up=1) + objective.cost(self.params)
        self._charge(clients, each + Cost(shadow_trainings=1))
        if len(clients) == 0:
            return repeated(self.params, 0)
        return self.trainer.train(self._visits(clients))

    def server_loss(self, at: Params) -> float:
        """Return the loss on the server's holdout."""
        self.ledger.charge(Cost(server_passes=1))
        return self.evaluator.server_loss(at)

    def server_losses(self, models: Params) -> Tensor:
        """Return the losses of a stack of models on the server's holdout."""
        self.ledger.charge(Cost(server_passes=height(models)))
        return self.evaluator.server_losses(models)

    def gradients(self, clients: Sequence[int]) -> Params:
        """Return the gradients of the clients' losses at the global model."""
        self._require_available(clients, "for its gradient")
        both_ways = models_down(1, self.params) + models_up(1, self.params)
        self._charge(clients, both_ways + Cost(passes=1), backward=True)
        if len(clients) == 0:
            return repeated(self.program.trainable(), 0)
        return self.trainer.gradients(self._visits(clients))

    def noise_outputs(self, models: Params) -> Tensor:
        """Return the models' mean outputs on noise."""
        self.ledger.charge(Cost(server_passes=height(models)))
        return self.evaluator.noise_outputs(models)

    def available_at(self, hop: int) -> Tensor:
        """Tell which clients are available ``hop`` rounds from now."""
        return self.availability(self.round + hop).clone()

    def durations(self, clients: Sequence[int]) -> Tensor:
        """Return the parts of a local training by the table of devices, in simulated seconds."""
        assert self.stopwatch is not None  # see runner.build
        return torch.from_numpy(self.stopwatch.clock.parts(clients))

    def _charge(
        self, clients: Sequence[int], each: Cost, *, at: Params | None = None, backward: bool = False
    ) -> None:
        """Charge what a question costs, in counts and, with devices, in simulated seconds."""
        self.ledger.charge(each, len(clients))
        if self.stopwatch is not None:
            clock, asked = self.stopwatch.clock, [int(client) for client in clients]
            passes = clock.training(asked) if each.trainings else clock.forward(asked, backward=backward)
            self.stopwatch.ask(asked, each, passes, known_model=at is None)

    def _visits(self, clients: Sequence[int], at: Params | None = None) -> list[Visit]:
        return from_one(self.params if at is None else at, clients, self.round, self.program)

    def _require_available(self, clients: Sequence[int], what: str) -> None:
        free = self.availability(self.round)
        for client in clients:
            if not free[int(client)]:
                raise UserError(
                    f"the selector asked client {client} {what}, who is not available in round {self.round}."
                )
