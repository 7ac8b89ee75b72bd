"""What an asynchronous run keeps between two arrivals: clients in flight, the buffer, and live models."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from flsel.metrics import Ledger
from flsel.params import Params


class Flight(NamedTuple):
    """One local training on its way; flights are ordered by when they arrive, then by when they started.

    Attributes:
        finish: Simulated seconds at which its update arrives.
        order: Flights that were started before it.
        client: Client id.
        version: Rounds before it started (v), which made the model that the client received.
        turn: Earlier flights of the client.
        seconds: Simulated seconds that the client works.
        lost: Whether the client drops out, and its update does not arrive.
    """

    finish: float
    order: int
    client: int
    version: int
    turn: int
    seconds: float
    lost: bool = False


@dataclass(frozen=True)
class Slots:
    """The slots that a selector may fill.

    Attributes:
        free: How many, at most the clients that can fill them; the buffer where updates are weighed.
        available: Clients available now and not in flight, bool ``[N]``.
        running: Clients in flight and the versions that they started from, in the order of their start.
        draw: Purpose and index of the selector's generator.
    """

    free: int
    available: Tensor
    running: Mapping[int, int]
    draw: tuple[str, int]

    def in_rounds(self, round: int, usual: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
        """Tell which clients are available: in this round those that can fill a slot, later as usual."""
        return lambda at: self.available if at == round else usual(at)


@final
class Flights:
    """The state of an asynchronous run, beside the server's own; all of it survives a checkpoint.

    Args:
        clients: N.

    Attributes:
        clock: Simulated seconds, at the last arrival or round.
        stepped_at: Simulated seconds after the last round.
        filled: Round in which slots were filled last; -1 before the first.
        total_read: Whether the selector has read the number of rounds.
        started: Flights so far (q).
        turns: Flights of each client so far, N numbers.
        flying: The flights in the air, a heap.
        running: Clients in flight and the versions that they started from, in the order of their start.
        buffer: The flights that arrived since the last round, in the order of arrival.
        stale: Those since then that started too long ago to be aggregated.
        models: Models of versions that a flight started from, by version.
        ends: Models that flights will arrive with, as far as they are trained, by the flight's order.
        ledger: What was charged since the last round.
        waited: Seconds since then in which slots waited for answers to questions, mean over the slots.
        wasted: Client seconds since then without effect on the model.
    """

    def __init__(self, clients: int) -> None:
        self.clock = 0.0
        self.stepped_at = 0.0
        self.filled = -1
        self.total_read = False
        self.started = 0
        self.turns = [0] * clients
        self.flying: list[Flight] = []
        self.running: dict[int, int] = {}
        self.buffer: list[Flight] = []
        self.stale: list[Flight] = []
        self.models: dict[int, Params] = {}
        self.ends: dict[int, Params] = {}
        self.ledger = Ledger()
        self.waited = 0.0
        self.wasted = 0.0
        self._measured = [0, 0, 0]  # Updates since the last evaluation, sum and maximum of their staleness.

    def slots(self, free: int, available: Tensor, purpose: str, index: int) -> Slots:
        """Describe free slots.

        Args:
            free: How many.
            available: Who is available, bool ``[N]``.
            purpose: What the selector's generator is for.
            index: Its index.
        """
        there = available.clone()
        there.numpy()[list(self.running)] = False
        return Slots(free, there, dict(self.running), (purpose, index))

    def start(
        self,
        clients: Sequence[int],
        seconds: Sequence[float],
        at: float,
        version: int,
        lost: Collection[int] = (),
    ) -> None:
        """Start flights.

        Args:
            clients: Who flies.
            seconds: How long each works.
            at: Simulated seconds at which they start.
            version: Rounds so far.
            lost: Who drops out at the end.
        """
        for client, took in zip(clients, seconds, strict=True):
            turn = self.turns[client]
            flight = Flight(at + took, self.started, client, version, turn, took, client in lost)
            heapq.heappush(self.flying, flight)
            self.running[client] = version
            self.turns[client] += 1
            self.started += 1

    def land(self) -> Flight:
        """Remove and return the next flight to arrive, and set the clock to its arrival."""
        flight = heapq.heappop(self.flying)
        del self.running[flight.client]
        self.clock = max(self.clock, flight.finish)
        return flight

    def stepped(self, staleness: Sequence[int]) -> None:
        """Empty the buffer after a round, and drop what belonged to its flights.

        Args:
            staleness: Staleness of the updates that it aggregated.
        """
        self.buffer = []
        self.passed()
        count, total, most = self._measured
        self._measured = [count + len(staleness), total + sum(staleness), max(most, *staleness)]

    def passed(self) -> None:
        """Begin to count anew after a round, and drop what belongs to no flight in the air or the buffer."""
        self.stepped_at = self.clock
        self.stale, self.ledger = [], Ledger()
        self.waited = self.wasted = 0.0
        kept = [*self.flying, *self.buffer]
        orders, versions = {flight.order for flight in kept}, {flight.version for flight in kept}
        self.ends = {order: end for order, end in self.ends.items() if order in orders}
        self.models = {version: model for version, model in self.models.items() if version in versions}

    def measure(self) -> dict[str, float]:
        """Return the columns ``async/*``; those on staleness are about the updates since the last call."""
        count, total, most = self._measured
        self._measured = [0, 0, 0]
        return {
            "async/staleness_mean": total / count if count else 0.0,
            "async/staleness_max": float(most),
            "async/in_flight": float(len(self.flying)),
        }

    @property
    def client_seconds(self) -> float:
        """Seconds of the clients in flight, which have no effect on the model yet."""
        return sum(flight.seconds for flight in self.flying)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint."""
        lists = {name: [list(flight) for flight in getattr(self, name)] for name in _LISTS}
        return {
            **lists,
            **{name: getattr(self, name) for name in _PLAIN},
            "turns": list(self.turns),
            "models": dict(self.models),
            "ends": dict(self.ends),
            "ledger": dict(self.ledger),
            "measured": list(self._measured),
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore what :meth:`state_dict` returned.

        Args:
            state: The state.
            device: Where the models go.
        """
        for name in _LISTS:
            setattr(self, name, [Flight(*flight) for flight in state[name]])
        for name in _PLAIN:
            setattr(self, name, state[name])
        begun = sorted(self.flying, key=lambda flight: flight.order)
        self.running = {flight.client: flight.version for flight in begun}
        for name in ("models", "ends"):
            stored = {
                key: {n: value.to(device) for n, value in model.items()} for key, model in state[name].items()
            }
            setattr(self, name, stored)
        self.turns = list(state["turns"])
        self.ledger = Ledger(state["ledger"])
        self._measured = [int(value) for value in state["measured"]]


_LISTS = ("flying", "buffer", "stale")
_PLAIN = ("clock", "stepped_at", "filled", "total_read", "started", "waited", "wasted")
