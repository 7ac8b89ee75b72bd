"""Answer a selector's questions if clients are reached by messages only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from flsel.errors import UserError, users_code
from flsel.flower.members import Members, label_table
from flsel.flower.remote_model import Holdout, Model, single
from flsel.flower.wire import Channel, Models, Reply, Request, Value, to_params
from flsel.metrics import Cost, Ledger, models_down, models_up, training
from flsel.params import Params, height, row
from flsel.selector import Need

_ASKED = {"losses": Need.LOSSES, "gradients": Need.GRADIENTS}
_ONCE = Need.OWN_LOSS | Need.SQUARED_LOSS


@dataclass(frozen=True)
class RemoteAnswers:
    """Answer a selector's questions in one round by messages, at a counted cost.

    Attributes:
        channel: Carries the messages.
        members: The clients.
        available: Clients that can be asked now, bool ``[N]``.
        round: Communication round.
        model: The global model.
        classes: C.
        timeout: Seconds that a node has for an answer.
        holdout: What the server can measure.
        config: Settings of a training, as the app's own rounds send them.
        took: Seconds of each client's last training, float64 ``[N]``; NaN where it is not known. Written to.
        ledger: Cost of the round so far.
    """

    channel: Channel
    members: Members
    available: Tensor
    round: int
    model: Model
    classes: int
    timeout: float
    holdout: Holdout
    config: Mapping[str, Value]
    took: Tensor
    ledger: Ledger = field(default_factory=Ledger)

    def labels(self) -> Tensor:
        """Return the label counts."""
        return label_table(self.members.label_counts, self.classes)

    def losses(self, clients: Sequence[int], at: Params | None) -> Tensor:
        """Return the clients' losses; NaN for those unavailable, and for those that do not answer."""
        return self.both_losses(clients, at)[0]

    def both_losses(self, clients: Sequence[int], at: Params | None) -> tuple[Tensor, Tensor]:
        """Return the clients' mean losses and mean squared losses, each float64 ``[n]``."""
        asked = [client for client in dict.fromkeys(clients) if self.available[client]]
        self.ledger.charge(models_down(1, self.model.params) + Cost(passes=1, scalars_up=1), len(asked))
        replies = self._ask("losses", asked, {"start0": self.model.sent(at or self.model.params)})
        table = [
            [_number(replies[client].values, name) if client in replies else math.nan for client in clients]
            for name in ("loss", "squared")
        ]
        mean, squared = torch.tensor(table, dtype=torch.float64).reshape(2, -1)
        return mean, squared

    def shadow(self, clients: Sequence[int]) -> Params:
        """Return the end models of probe trainings, rows of NaN where a client gave none."""
        self._require_available(clients)
        params, distinct = self.model.params, list(dict.fromkeys(clients))
        each = training(params, down=1, up=1) + Cost(shadow_trainings=1)
        self.ledger.charge(each, len(distinct))
        models = {"arrays": self.model.sent(params)}
        replies = self._ask("train", distinct, models, {**self.config, "flsel-probe": True})
        ends = self._stack(clients, replies, params, self.model.received)
        for client, reply in replies.items():
            self.took[client] = reply.seconds
        return ends

    def gradients(self, clients: Sequence[int]) -> Params:
        """Return the gradients of the clients' losses, rows of NaN where a client gave none."""
        self._require_available(clients)
        params, distinct = self.model.params, list(dict.fromkeys(clients))
        each = models_down(1, params) + models_up(1, params) + Cost(passes=1)
        self.ledger.charge(each, len(distinct))
        replies = self._ask("gradients", distinct, {"start0": self.model.sent(params)})
        # Which of the tensors are trained the clients know: the first answer tells.
        first = next((reply.models.get("answer", {}) for reply in replies.values()), {})
        like = {name: value for name, value in params.items() if name in first} or params
        return self._stack(clients, replies, like, lambda arrays: to_params(arrays, like))

    def server_loss(self, at: Params) -> float:
        """Return the loss on the server's holdout."""
        assert self.holdout.loss is not None  # see check_needs
        self.ledger.charge(Cost(server_passes=1))
        with users_code("server_loss failed"):
            return float(self.holdout.loss(self.model.sent(at)))

    def noise_outputs(self, models: Params) -> Tensor:
        """Return the models' mean outputs on noise, float64 ``[n, C]``."""
        assert self.holdout.outputs is not None  # see check_needs
        self.ledger.charge(Cost(server_passes=height(models)))
        with users_code("noise_outputs failed"):
            rows = [
                [float(value) for value in self.holdout.outputs(self.model.sent(row(models, k)))]
                for k in range(height(models))
            ]
        return torch.tensor(rows, dtype=torch.float64)

    def available_at(self, hop: int) -> Tensor:
        """Return the clients that can be asked now; those of later hops are not known."""
        return self.available.clone()

    def durations(self, clients: Sequence[int]) -> Tensor:
        """Return the seconds of each client's last training as its computing time, float64 ``[n, 3]``.

        Clients that never trained are timed by a probe training; where that is not possible, they count
        like the mean of the others.
        """
        new = [c for c in dict.fromkeys(clients) if self.took[c].isnan() and self.available[c]]
        if new:
            self.shadow(new)
        known = self.took[~self.took.isnan()]
        mean = float(known.mean()) if len(known) else self.timeout
        found = torch.zeros(len(clients), 3, dtype=torch.float64)
        found[:, 1] = self.took[torch.tensor(list(clients), dtype=torch.int64)].nan_to_num(mean)
        return found

    def _ask(
        self,
        action: str,
        clients: Sequence[int],
        models: Models,
        values: Mapping[str, Value] | None = None,
    ) -> dict[int, Reply]:
        """Ask clients, each once, and return the replies of those that answered."""
        requests = [Request(self.members.nodes[client], action, models, values or {}) for client in clients]
        replies = self.channel.exchange(requests, self.timeout) if requests else []
        for client, reply in zip(clients, replies, strict=True):
            self.members.heard(client, self.round, reply.error)
        return {client: r for client, r in zip(clients, replies, strict=True) if not r.error}

    def _stack(
        self,
        clients: Sequence[int],
        replies: Mapping[int, Reply],
        like: Params,
        read: Callable[[Mapping[str, np.ndarray]], Params],
    ) -> Params:
        """Stack the models of replies in the order of the clients; rows of NaN where there is none."""
        found = {n: v.new_full((len(clients), *v.shape), math.nan) for n, v in like.items()}
        for position, client in enumerate(clients):
            if client not in replies:
                continue
            try:
                model = read(single(replies[client].models))
            except UserError as error:
                self.members.heard(client, self.round, str(error))
                continue
            for name, value in model.items():
                found[name][position] = value
        return found

    def _require_available(self, clients: Sequence[int]) -> None:
        for client in clients:
            if not self.available[client]:
                raise UserError(
                    f"the selector asked client {client}, who is not available in round {self.round}."
                )


def check_needs(needs: Need, name: str, holdout: Holdout, members: Members) -> None:
    """Refuse a selector whose questions no client can answer.

    Args:
        needs: What it declares.
        name: Its name.
        holdout: What the server can measure.
        members: The clients, if they were met; else only what does not depend on them is checked.

    Raises:
        UserError: Naming the need, and who would have to answer.
    """
    if Need.TRUE_MODELS in needs:
        raise UserError(f"{name} needs the clients' true models, which only generated data have.")
    for need, given, argument in (
        (Need.SERVER_LOSS, holdout.loss, "server_loss"),
        (Need.NOISE_OUTPUTS, holdout.outputs, "noise_outputs"),
    ):
        if need in needs and given is None:
            raise UserError(f"{name} asks the server itself: give SelectorStrategy {argument}=.")
    asked = {word for word, need in _ASKED.items() if need in needs} | (
        {"losses"} if needs & _ONCE else set()
    )
    for client, able in members.answers.items():
        for word in sorted(asked - able):
            argument = "gradient" if word == "gradients" else word
            raise UserError(
                f"{name} asks clients for their {word}, and client {members.names[client]} does not answer: "
                f"give {argument}= to flsel.flower.answer in its ClientApp."
            )


def _number(values: Mapping[str, Value], name: str) -> float:
    found = values.get(name)
    return float(found) if isinstance(found, int | float) else math.nan
