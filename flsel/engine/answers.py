"""The rules and costs of what a selector asks, one method for each need (:class:`flsel.selector.View`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flsel.engine.respondents import Respondents
from flsel.engine.stopwatch import Stopwatch
from flsel.errors import UserError
from flsel.metrics import Cost, Ledger, models_down, models_up, training
from flsel.params import Params, height


@dataclass(frozen=True)
class Answers:
    """Answer a selector's questions in one round, at a counted cost, whoever responds.

    A client that is asked twice in one question answers once.

    Attributes:
        who: Who answers.
        available: Tells who is available in a communication round, bool ``[N]``.
        round: Communication round.
        params: The global model.
        ledger: Cost of the round so far.
        stopwatch: Simulated seconds of the round so far; None without devices.
    """

    who: Respondents
    available: Callable[[int], Tensor]
    round: int
    params: Params
    ledger: Ledger
    stopwatch: Stopwatch | None = None

    def labels(self) -> Tensor:
        """Return the label counts."""
        return self.who.labels()

    def true_models(self) -> Tensor:
        """Return the models that labelled the clients' examples."""
        return self.who.true_models()

    def losses(self, clients: Sequence[int], at: Params | None) -> Tensor:
        """Return the clients' losses; NaN for those unavailable or without examples."""
        free = self.available(self.round)
        asked = [client for client in dict.fromkeys(clients) if free[client]]
        self._charge(asked, models_down(1, self.params) + Cost(passes=1, scalars_up=1), at=at)
        answered = torch.full((len(free),), torch.nan, dtype=torch.float64)
        if asked:
            answered[asked] = self.who.losses(asked, self.params if at is None else at, self.round)
        return answered[list(clients)]

    def shadow(self, clients: Sequence[int]) -> Params:
        """Return the end models of the clients' training."""
        asked = self._available(clients, "to train")
        each = training(self.params, down=self.who.messages, up=1) + self.who.beside(self.params)
        self._charge(asked, each + Cost(shadow_trainings=1))
        return _in_order(clients, asked, self.who.shadow(asked, self.params, self.round))

    def gradients(self, clients: Sequence[int]) -> Params:
        """Return the gradients of the clients' losses at the global model."""
        asked = self._available(clients, "for its gradient")
        both_ways = models_down(1, self.params) + models_up(1, self.params)
        self._charge(asked, both_ways + Cost(passes=1), backward=True)
        return _in_order(clients, asked, self.who.gradients(asked, self.params, self.round))

    def server_loss(self, at: Params) -> float:
        """Return the loss on the server's holdout."""
        self.ledger.charge(Cost(server_passes=1))
        return self.who.server_loss(at)

    def server_losses(self, models: Params) -> Tensor:
        """Return the losses of a stack of models on the server's holdout."""
        self.ledger.charge(Cost(server_passes=height(models)))
        return self.who.server_losses(models)

    def noise_outputs(self, models: Params) -> Tensor:
        """Return the models' mean outputs on noise."""
        self.ledger.charge(Cost(server_passes=height(models)))
        return self.who.noise_outputs(models)

    def available_at(self, hop: int) -> Tensor:
        """Tell which clients are available ``hop`` rounds from now."""
        return self.available(self.round + hop).clone()

    def durations(self, clients: Sequence[int]) -> Tensor:
        """Return the parts of a local training in seconds, float64 ``[n, 3]``."""
        free = self.available(self.round)
        untimed = [client for client in self.who.untimed(clients) if free[client]]
        if untimed:
            self.shadow(untimed)
        return self.who.durations(list(clients))

    def _charge(
        self, clients: Sequence[int], each: Cost, *, at: Params | None = None, backward: bool = False
    ) -> None:
        """Charge what a question costs, in counts and, with devices, in simulated seconds."""
        self.ledger.charge(each, len(clients))
        if self.stopwatch is not None:
            clock = self.stopwatch.clock
            passes = (
                clock.training(clients, self.round)
                if each.trainings
                else clock.forward(clients, backward=backward)
            )
            self.stopwatch.ask(clients, each, passes, known_model=at is None)

    def _available(self, clients: Sequence[int], what: str) -> list[int]:
        """Return the clients, each once; refuse those that are not available."""
        free = self.available(self.round)
        for client in clients:
            if not free[client]:
                raise UserError(
                    f"the selector asked client {client} {what}, who is not available in round {self.round}."
                )
        return list(dict.fromkeys(clients))


def _in_order(clients: Sequence[int], asked: Sequence[int], stack: Params) -> Params:
    """Return the rows of distinct clients in the order of all that were named."""
    if len(asked) == len(clients):
        return stack
    where = {client: row for row, client in enumerate(asked)}
    index = torch.tensor([where[client] for client in clients])
    return {name: value[index.to(value.device)] for name, value in stack.items()}
