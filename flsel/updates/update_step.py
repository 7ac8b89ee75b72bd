"""The contract of a step of an update, and what a step knows about the clients that send."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from flsel.arguments import Checked
from flsel.params import Params
from flsel.rng import generator
from flsel.selector.state import Stateful


@dataclass(frozen=True)
class Senders:
    """The clients whose updates a step changes.

    Attributes:
        clients: Ids of K distinct clients, int64 ``[K]``.
        turns: What the randomness of each depends on besides seed and client: the round, or the client's
            earlier trainings in an asynchronous run.
        total: N, the number of clients.
        seed: The run's seed.
        place: Position of the step in the list ``updates``.
        bound: Largest Euclidean norm of an update before the step; infinite if nothing bounds it.
    """

    clients: Tensor
    turns: Sequence[int]
    total: int
    seed: int
    place: int = 0
    bound: float = math.inf

    def generators(self, purpose: str) -> list[np.random.Generator]:
        """Return one generator for each client, which no other client, round or step shares."""
        pairs = zip(self.turns, self.clients.tolist(), strict=True)
        return [generator(self.seed, purpose, self.place, turn, client) for turn, client in pairs]


@dataclass(frozen=True)
class Message:
    """The size of an update on the wire.

    Attributes:
        numbers: Parameters whose values are sent.
        bits: Bits of each value.
        index_bits: Bits that say which parameter a value belongs to; 0 if all are sent in order.
        beside: Further bytes, running statistics of normalisation layers among them.
    """

    numbers: int
    bits: int
    index_bits: int = 0
    beside: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the whole message."""
        return math.ceil(self.numbers * (self.bits + self.index_bits) / 8) + self.beside


class UpdateStep(Checked, Stateful, ABC):
    """One step between a client's end model and the aggregate.

    The methods get the updates of the trainable parameters. Running statistics of normalisation layers
    are sent as they are. State is in attributes whose names end in ``_``, as in a selector. A method that is
    not overridden costs nothing. All random numbers come from the generators that a method is given.
    """

    @property
    def changes_updates(self) -> bool:
        """Whether what is sent or aggregated changes; a step may change labels only."""
        own = type(self)
        return own.on_client is not UpdateStep.on_client or own.at_server is not UpdateStep.at_server

    @property
    def changes_labels(self) -> bool:
        """Whether the labels change that some clients train on."""
        return type(self).labels is not UpdateStep.labels

    @property
    def on_server(self) -> bool:
        """Whether the server takes the step, on the aggregate; the clients' steps come before it."""
        return False

    @property
    def needs_bound(self) -> bool:
        """Whether a step before it must bound the norm of the updates."""
        return False

    @property
    def fills(self) -> bool:
        """Whether a client's numbers are new ones after the step, which undoes a compression before it."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether clients keep something between their updates, such as the error of a compression."""
        return False

    def bound(self, before: float) -> float:
        """Return the largest Euclidean norm that an update can have after the step; infinite by default.

        Args:
            before: The same before the step.
        """
        return math.inf

    def reset(self, params: Params, clients: int) -> None:
        """Allocate state for ``clients`` clients.

        Args:
            params: The trainable parameters, on the device that trains. Do not keep them.
            clients: N.
        """

    def labels(self, y: Tensor, client: int, of: Senders, num_classes: int) -> Tensor:
        """Return the labels that a client trains on, int64 ``[n]``; called once, before the run.

        Args:
            y: The client's labels, int64 ``[n]``. Do not write to them.
            client: Client id.
            of: All N clients.
            num_classes: C.
        """
        return y

    def on_client(self, deltas: Params, senders: Senders) -> Params:
        """Return what the clients send in place of their updates.

        Args:
            deltas: Updates of the trainable parameters, each tensor ``[K, ...]``. Do not write to them.
            senders: The K clients.
        """
        return deltas

    def message(self, before: Message) -> Message:
        """Return the size of a client's update after the step.

        Args:
            before: The same before the step.
        """
        return before

    def at_server(self, delta: Params, sensitivity: float, rng: np.random.Generator) -> Params:
        """Return the aggregate after the step.

        Args:
            delta: The weighted sum of the updates. Do not write to it.
            sensitivity: The bound of an update before the step, times the largest weight of a client.
            rng: The server's generator for this round and step.
        """
        return delta


Compress = Callable[[Tensor], Tensor]
"""Maps updates as rows of numbers, ``[K, P]``, to what is sent of them."""
