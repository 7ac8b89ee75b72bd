"""The steps of a run's updates: their order and state, what they cost, and whom they protect."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from flsel.engine.check_plans import check_same_form
from flsel.params import Params, finite_rows, model_bytes, replaced, rows, whole
from flsel.rng import generator
from flsel.updates import Aggregate, Mean, Message, Senders, UpdateStep


@final
class UpdateSteps:
    """Apply the steps of a run's updates on clients and server, and join the updates.

    Args:
        steps: The steps, in order; reset here.
        aggregate: How the server joins updates.
        params: The tensors that are sent, on the device that trains.
        trainable: Names of those that are parameters.
        clients: N.
        seed: The run's seed.

    Attributes:
        steps: The steps.
        aggregate: How the server joins updates.
        message: The size of a client's update after its steps.
        draws: In how many rounds noise was added to an aggregate, by how many clients had been drawn evenly
            from how many; equal numbers stand for a draw that amplifies nothing.
        sent: Updates that each client has sent, int64 ``[N]``.
    """

    def __init__(
        self,
        steps: Sequence[UpdateStep] = (),
        aggregate: Aggregate | None = None,
        *,
        params: Params,
        trainable: Sequence[str],
        clients: int,
        seed: int,
    ) -> None:
        self.steps = tuple(steps)
        self.aggregate = aggregate or Mean()
        self.draws: dict[tuple[int, int], int] = {}
        self.sent = torch.zeros(clients, dtype=torch.int64)
        self._seed = seed
        self._names = [name for name in params if name in set(trainable)]
        own = {name: params[name] for name in self._names}
        self.message = sent_message(self.steps, params, own)
        self._bounds, bound = list[float](), math.inf
        for step in self.steps:
            step.reset(own, clients)
            self._bounds.append(bound)
            bound = step.bound(bound)

    @property
    def change_updates(self) -> bool:
        """Whether what is sent or aggregated is not what was trained."""
        return any(step.changes_updates for step in self.steps)

    @property
    def remember(self) -> bool:
        """Whether clients keep something between their updates."""
        return any(step.remembers for step in self.steps)

    @property
    def noise_at_server(self) -> bool:
        """Whether the server takes a step on the aggregate."""
        return any(step.on_server for step in self.steps)

    def on_clients(self, deltas: Params, clients: Sequence[int], turns: Sequence[int]) -> Params:
        """Return the updates that the server receives, each tensor ``[K, ...]``.

        Rows that are not finite stay as they are.

        Args:
            deltas: End models minus start models.
            clients: Who sends each row.
            turns: What the randomness of each row depends on besides seed and client.
        """
        sent, left = {name: deltas[name] for name in self._names}, finite_rows(deltas).tolist()
        while left:
            # A client with several updates sends them one after the other.
            at = sorted({clients[row]: row for row in reversed(left)}.values())
            changed = self._stepped(rows(sent, whole(at)), [clients[k] for k in at], [turns[k] for k in at])
            sent = replaced(sent, at, changed)
            left = [row for row in left if row not in at]
        return deltas | sent

    def _stepped(self, deltas: Params, clients: Sequence[int], turns: Sequence[int]) -> Params:
        """Return updates of distinct clients after the clients' steps."""
        for place, step in enumerate(self.steps):
            senders = Senders(whole(clients), turns, len(self.sent), self._seed, place, self._bounds[place])
            deltas = check_same_form(
                step.on_client(deltas, senders), deltas, f"{type(step).__name__}.on_client"
            )
        return deltas

    def joined(self, deltas: Params, weights: Tensor, clients: Sequence[int], round: int) -> Params:
        """Return the change of the global model.

        Args:
            deltas: Finite updates, each tensor ``[K, ...]``.
            weights: Their weights, float64 ``[K]``.
            clients: Who sent each.
            round: Communication round.
        """
        delta = self.aggregate.combined(deltas, weights)
        if not self.noise_at_server:
            return delta
        shares: dict[int, float] = {}
        for client, weight in zip(clients, weights.tolist(), strict=True):
            shares[client] = shares.get(client, 0.0) + weight
        own = {name: delta[name] for name in self._names}
        for place, step in enumerate(self.steps):
            if step.on_server:
                rng = generator(self._seed, "server step", place, round)
                after = step.at_server(own, self._bounds[place] * max(shares.values(), default=0.0), rng)
                own = check_same_form(after, own, f"{type(step).__name__}.at_server")
        return delta | own

    def note(self, clients: Sequence[int], draw: tuple[int, int] | None) -> None:
        """Note a round for the report on privacy.

        Args:
            clients: Who sent each update, whether or not it is aggregated.
            draw: How many clients were drawn evenly, from how many; equal numbers amplify nothing. None if
                nothing is aggregated.
        """
        if not self.change_updates:
            return
        self.sent += torch.bincount(whole(clients), minlength=len(self.sent))
        if draw is not None:
            self.draws[draw] = self.draws.get(draw, 0) + 1

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint."""
        return {
            "steps": [step.state_dict() for step in self.steps],
            "draws": [[*key, count] for key, count in self.draws.items()],
            "sent": self.sent,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for step, own in zip(self.steps, state["steps"], strict=True):
            step.load_state_dict(own)
        self.draws = {(drawn, pool): count for drawn, pool, count in state["draws"]}
        self.sent = state["sent"]


def sent_message(steps: Sequence[UpdateStep], params: Params, trainable: Collection[str]) -> Message:
    """Return the size of a client's update after some steps.

    Args:
        steps: The steps.
        params: The tensors that are sent.
        trainable: Names of those that are parameters.
    """
    trained = {name: params[name] for name in trainable}
    numbers, own = sum(value.numel() for value in trained.values()), model_bytes(trained)
    message = Message(numbers, 8 * own // max(numbers, 1), beside=model_bytes(params) - own)
    return functools.reduce(lambda before, step: step.message(before), steps, message)
