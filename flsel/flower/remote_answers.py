"""Clients that are reached by messages only, as those who answer a selector's questions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from flsel.engine.respondents import Respondents
from flsel.errors import UserError, users_code
from flsel.flower.decoder import Malformed, names_among, number, read
from flsel.flower.members import Members, label_table
from flsel.flower.remote_model import Holdout, Model, single
from flsel.flower.wire import Channel, Reply, Request, Value
from flsel.params import Params, height, row
from flsel.selector import Need

T = TypeVar("T")
# NaN is the answer of a client without examples.
_LOSSES = {"loss": number(missing=True), "squared": number(0, missing=True)}
_ASKED = {"losses": Need.LOSSES, "gradients": Need.GRADIENTS}
_ONCE = Need.OWN_LOSS | Need.SQUARED_LOSS


@dataclass
class RemoteClients(Respondents):
    """Answer a selector's questions in one round by messages.

    Attributes:
        channel: Carries the messages.
        members: The clients.
        model: The global model.
        num_classes: C.
        timeout: Seconds that a node has for an answer.
        holdout: What the server can measure.
        config: Settings of a training, as the app's own rounds send them.
        took: Seconds of each client's last training, float64 ``[N]``; NaN where it is not known. Written to.
        squared: Mean squared loss that each client told last.
    """

    channel: Channel
    members: Members
    model: Model
    num_classes: int
    timeout: float
    holdout: Holdout
    config: Mapping[str, Value]
    took: Tensor
    squared: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = self.members.sizes

    def labels(self) -> Tensor:
        """Return the label counts."""
        return label_table(self.members.label_counts, self.num_classes)

    def losses(self, clients: list[int], at: Params, round: int) -> Tensor:
        """Return the clients' losses; NaN for those that do not answer."""
        told = self._ask(
            "losses", clients, self.model.sent(at), lambda reply: read(reply.values, _LOSSES, _LOSSES), round
        )
        nothing = dict.fromkeys(_LOSSES, math.nan)
        self.squared |= {client: told.get(client, nothing)["squared"] for client in clients}
        return torch.tensor([told.get(c, nothing)["loss"] for c in clients], dtype=torch.float64)

    def shadow(self, clients: list[int], params: Params, round: int) -> Params:
        """Return the end models of probe trainings, rows of NaN where a client gave none."""

        def end(reply: Reply) -> tuple[Params, float]:
            return self.model.received(single(reply.models)), reply.seconds

        found = self._ask("train", clients, self.model.sent(params), end, round, {"flsel-probe": True})
        for client, (_, seconds) in found.items():
            self.took[client] = seconds
        return _stack(clients, {client: end for client, (end, _) in found.items()}, params)

    def gradients(self, clients: list[int], params: Params, round: int) -> Params:
        """Return the gradients of the clients' losses, rows of NaN where a client gave none."""

        def gradient(reply: Reply) -> Params:
            names = read(reply.values, {"trained": names_among(params)}, ["trained"])["trained"]
            return self.model.gradient(single(reply.models), names)

        found = self._ask("gradients", clients, self.model.sent(params), gradient, round)
        # Which of the tensors are trained the clients know: what most of them say.
        most = Counter(frozenset(told) for told in found.values()).most_common(1)
        like = {name: value for name, value in params.items() if not most or name in most[0][0]}
        for client in [client for client, told in found.items() if told.keys() != like.keys()]:
            self.members.heard(client, round, "it trains other arrays than most clients")
            del found[client]
        return _stack(clients, found, like)

    def server_loss(self, at: Params) -> float:
        """Return the loss on the server's holdout."""
        assert self.holdout.loss is not None  # see check_needs
        with users_code("server_loss failed"):
            return float(self.holdout.loss(self.model.sent(at)))

    def noise_outputs(self, models: Params) -> Tensor:
        """Return the models' mean outputs on noise, float64 ``[n, C]``."""
        assert self.holdout.outputs is not None  # see check_needs
        with users_code("noise_outputs failed"):
            rows = [
                [float(value) for value in self.holdout.outputs(self.model.sent(row(models, k)))]
                for k in range(height(models))
            ]
        return torch.tensor(rows, dtype=torch.float64)

    def untimed(self, clients: Sequence[int]) -> list[int]:
        """Return the clients that never trained: a probe training times them."""
        return [client for client in dict.fromkeys(clients) if self.took[client].isnan()]

    def durations(self, clients: list[int]) -> Tensor:
        """Return the seconds of each client's last training as its computing time, float64 ``[n, 3]``.

        Clients that could not be timed count like the mean of the others.
        """
        known = self.took[~self.took.isnan()]
        mean = float(known.mean()) if len(known) else self.timeout
        found = torch.zeros(len(clients), 3, dtype=torch.float64)
        found[:, 1] = self.took[torch.tensor(clients, dtype=torch.int64)].nan_to_num(mean)
        return found

    def _ask(
        self,
        action: str,
        clients: Sequence[int],
        model: Mapping[str, np.ndarray],
        reader: Callable[[Reply], T],
        round: int,
        values: Mapping[str, Value] | None = None,
    ) -> dict[int, T]:
        """Ask clients about a model, each once, and return what those say whose answer can be read."""
        self.sends_messages = True
        asked = {**self.config, **(values or {})}
        requests = [Request(self.members.nodes[c], action, {"arrays": model}, asked) for c in clients]
        replies = self.channel.exchange(requests, self.timeout) if requests else []
        found: dict[int, T] = {}
        for client, reply in zip(clients, replies, strict=True):
            error = reply.error
            try:
                found |= {} if error else {client: reader(reply)}
            except Malformed as malformed:
                error = str(malformed)
            self.members.heard(client, round, error)
        return found


def asked_of_clients(needs: Need) -> frozenset[str]:
    """Return what a selector asks clients for, in the words of their hellos."""
    words = {word for word, need in _ASKED.items() if need in needs}
    return frozenset(words | ({"losses"} if needs & _ONCE else set()))


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
    for client, able in members.answers.items():
        for word in sorted(asked_of_clients(needs) - able):
            argument = "gradient" if word == "gradients" else word
            raise UserError(
                f"{name} asks clients for their {word}, and client {members.names[client]} does not answer: "
                f"give {argument}= to flsel.flower.answer in its ClientApp."
            )


def _stack(clients: Sequence[int], found: Mapping[int, Params], like: Params) -> Params:
    """Stack models in the order of the clients; rows of NaN where there is none that is finite."""
    stack = {n: v.new_full((len(clients), *v.shape), math.nan) for n, v in like.items()}
    for position, client in enumerate(clients):
        if client in found and all(bool(value.isfinite().all()) for value in found[client].values()):
            for name, value in found[client].items():
                stack[name][position] = value
    return stack
