"""The simulated seconds of one round: each request takes what its cost says on the client's device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from flsel.engine.arrival import Arrival, arrive
from flsel.engine.clock import Clock, RoundTime, sent
from flsel.metrics import NOTHING, Cost
from flsel.selector import Plan


class Stopwatch:
    """Add up what a round takes.

    Args:
        clock: What requests take.
        round: Communication round that begins.
        waited: Seconds that the server waited for a client to be available.
    """

    def __init__(self, clock: Clock, round: int, waited: float = 0.0) -> None:
        self.clock = clock
        self.waited = waited
        self._round = round
        self._questions = 0.0
        self._collected = 0.0
        self._client_seconds = 0.0
        self._wasted = 0.0
        self._received: dict[int, int] = {}  # Messages of this round's global model, by client.
        self._longest: float | None = None  # Within one_request().

    def ask(
        self, clients: Sequence[int], each: Cost, passes: np.ndarray, *, known_model: bool = True
    ) -> None:
        """Let clients answer a question; all wait for the slowest.

        Args:
            clients: Ids of n clients.
            each: What one of them costs.
            passes: Forward passes of examples that each computes, ``[n]``.
            known_model: Whether the models sent are this round's global model, which a client then has.
        """
        if not len(clients):
            return
        down = np.full(len(clients), float(each.bytes_down))
        if known_model:
            down = self._to_send(clients, each.models_down)
        took = self.clock.seconds(clients, passes, down=down, up=sent(each), round=self._round)
        self._wait(took, wasted=each.shadow_trainings > 0)

    def traffic(self, clients: Sequence[int], cost: Cost) -> None:
        """Let clients send and receive an even share of a cost's bytes each; all wait for the slowest."""
        if not len(clients):
            return
        down, up = (
            count / len(clients)
            for count in (cost.bytes_down, max(cost.bytes_up, sent(cost) - cost.bytes_up))
        )
        took = self.clock.seconds(clients, np.zeros(len(clients)), down=down, up=up, round=self._round)
        self._wait(took, wasted=False)

    @contextmanager
    def one_request(self) -> Iterator[None]:
        """Count the questions within the block as one, whose parts do not wait for each other."""
        if self._longest is not None:
            yield
            return
        self._longest = 0.0
        try:
            yield
        finally:
            self._questions += self._longest
            self._longest = None

    def train(
        self,
        plan: Plan,
        extra: Cost,
        *,
        wanted: int,
        held: bool = False,
        leaves: Mapping[int, float] = MappingProxyType({}),
    ) -> Arrival:
        """Let a plan's clients train.

        Args:
            plan: Who trains.
            extra: What the first training of each path costs besides.
            wanted: Paths that the server waits for, where all have one hop.
            held: Whether clients keep the update of the last hop until :meth:`collect`.
            leaves: Seconds of the round after which clients drop out.
        """
        clock, asked = self.clock, self._questions
        left = {client: seconds - asked for client, seconds in leaves.items()}

        def request(hop: int, clients: list[int], first: list[bool]) -> dict[str, Any]:
            passes, reports = clock.training(clients, self._round + hop), np.array(0.0)
            if extra is not NOTHING:
                reports = np.array(first, dtype=np.float64)
                passes = passes + reports * extra.passes * clock.forward(clients)
            down = self._to_send(clients, clock.messages, keep=False, of_global=hop == 0)
            up = 0.0 if held and hop == plan.hops - 1 else clock.result
            return {
                "passes": passes,
                "down": down + clock.beside.bytes_down,
                "up": up + sent(clock.beside) + reports * sent(extra),
                "round": self._round + hop,
            }

        def take(hop: int, clients: list[int], first: list[bool]) -> list[float]:
            whole = clock.work is None and extra is NOTHING and not (held and hop == plan.hops - 1)
            if whole and not (self._received and hop == 0):
                return clock.train(clients, itertools.repeat(self._round + hop))
            return [*clock.seconds(clients, **request(hop, clients, first)).tolist()]

        def done(client: int, seconds: float) -> int:
            return clock.steps_within(client, seconds, request(0, [client], [True]), self._round)

        return arrive(plan, take, clock.rules, wanted=wanted, done=done, leaves=left)

    def fly(self, clients: Sequence[int], turns: Sequence[int], extra: Cost) -> list[float]:
        """Return what trainings take that start when the questions are answered, one number each.

        Args:
            clients: Ids of n clients.
            turns: Earlier trainings of each client, for the jitter.
            extra: What a training costs besides.
        """
        clock = self.clock
        if clock.work is None and extra is NOTHING and not self._received:
            took = clock.train(clients, turns)
        else:
            passes = clock.training(clients, turns) + extra.passes * clock.forward(clients)
            took = clock.seconds(
                clients,
                passes,
                down=self._to_send(clients, clock.messages, keep=False) + clock.beside.bytes_down,
                up=clock.result + sent(clock.beside) + sent(extra),
                round=np.asarray(turns, dtype=np.int64),
            ).tolist()
        self._client_seconds += math.fsum(took)
        return took

    def spent(self, server_passes: float) -> RoundTime:
        """Return what questions and trainings took so far, waiting for the server's own passes included."""
        waited = self._questions + self._collected + self.clock.rules.server_pass * server_passes
        return RoundTime(waited, self._questions, self._client_seconds, self._wasted)

    def collect(self, clients: Collection[int]) -> None:
        """Let clients send the updates that they held back; the server waits for the slowest."""
        who = sorted(clients)
        if who:
            up = self.clock.result
            took = self.clock.seconds(who, np.zeros(len(who)), down=0.0, up=up, round=self._round)
            self._client_seconds += math.fsum(took)
            self._collected += float(took.max())

    def finish(self, arrival: Arrival, server_passes: float, lost: Sequence[int]) -> RoundTime:
        """Return what the round took.

        Args:
            arrival: What became of the plan.
            server_passes: Passes over the server's holdout.
            lost: Rows of the arrived plan that were not finite.
        """
        rules = self.clock.rules
        around = rules.overhead * arrival.plan.hops + rules.server_pass * server_passes
        return RoundTime(
            seconds=self.waited + around + self._questions + arrival.seconds + self._collected,
            questions=self._questions,
            client_seconds=self._client_seconds + arrival.client_seconds,
            wasted=self._wasted + arrival.wasted(lost),
            late=tuple(arrival.late),
        )

    def _wait(self, took: np.ndarray, *, wasted: bool) -> None:
        total, longest = math.fsum(took), float(took.max())
        self._client_seconds += total
        self._wasted += total if wasted else 0.0
        if self._longest is None:
            self._questions += longest
        else:
            self._longest = max(self._longest, longest)

    def _to_send(
        self, clients: Sequence[int], messages: int, *, keep: bool = True, of_global: bool = True
    ) -> np.ndarray:
        """Return the bytes of models to send, float64 ``[n]``: not again what a client has."""
        has = [self._received.get(client, 0) if of_global else 0 for client in clients]
        if keep:
            self._received.update(
                {client: max(messages, known) for client, known in zip(clients, has, strict=True)}
            )
        return np.array([max(messages - known, 0) * self.clock.model for known in has], dtype=np.float64)
