"""Asynchronous rounds: dispatch, arrive, step. Owns no state: that is in :mod:`flsel.engine.flights`.

J. Nguyen et al.: "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (FedBuff);
C. Xie, S. Koyejo, I. Gupta: "Asynchronous Federated Optimization", 2019 (FedAsync).

A flight is one client's local training. Arrivals are ordered by simulated seconds, then by when they started.
An arrival is handled completely, the server's step included, before its slot is filled again and before the
next arrival of the same time. Which flights a step aggregates follows from the clock, without training: so
all flights whose start is known train in one call, once one of them is due.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.config.simulated_time import AsyncConfig
from flsel.engine import reports, selector_calls
from flsel.engine.check_plans import check_flights
from flsel.engine.clock import RoundTime
from flsel.engine.federation import Federation
from flsel.engine.flights import Flight, Flights
from flsel.engine.returned import ANY_UPDATE, head_of, returned
from flsel.engine.round_job import RoundOutcome, passed, train
from flsel.errors import DivergedError
from flsel.local.measure import squared_losses
from flsel.local.program import Program
from flsel.local.visit import Visit
from flsel.metrics import CLIENT_SECOND, training
from flsel.params import Params, finite_rows, row, stacked, weighted_sum
from flsel.selector import Need, Plan, Selector, Updates, View


@dataclass(frozen=True, eq=False)
class Step:
    """A step of the server whose flights have arrived; their models may still have to be trained.

    It is to :func:`flsel.engine.round_job.train` what a :class:`~flsel.engine.round_job.RoundJob` is.

    Attributes:
        view: What the selector sees when it weighs; its cost holds what the step itself costs.
        plan: The clients whose updates arrived, in the order of arrival.
        selector: Who weighs.
        program: The client's side of the federation.
        flights: The state of the run.
        seconds: Wall time that dispatching took.
        lost: Flights since the last step whose models were not finite.
    """

    view: View
    plan: Plan
    selector: Selector
    program: Program
    flights: Flights
    seconds: float
    lost: tuple[Flight, ...] = ()

    def visits(self, hop: int, at: Params | None = None) -> list[Visit]:
        """Return the trainings that are due, and others that have begun; none before one is due."""
        return self.visits_of(self._untrained())

    def visits_of(self, flights: Sequence[Flight]) -> list[Visit]:
        """Return the trainings of some flights."""
        models = self.flights.models
        return [Visit(models[f.version], f.client, f.version, self.program, f.turn) for f in flights]

    def place(self, hop: int, ends: Params | None, at: Params | None = None) -> Params:
        """Keep the models that were trained, and return those that are due, each tensor ``[K, ...]``."""
        if ends is not None:
            due = {flight.order for flight in self.flights.buffer}
            for k, flight in enumerate(self._untrained()):
                # A copy: a row would keep the whole stack until the slowest client arrives.
                end = row(ends, k)
                late = flight.order not in due
                kept = {name: value.clone() for name, value in end.items()} if late else end
                self.flights.ends[flight.order] = kept
        return stacked([self.flights.ends[flight.order] for flight in self.flights.buffer])

    def _untrained(self) -> list[Flight]:
        """Return the flights to train now: those that are due, then the next to arrive.

        Their number is a power of two, or what is due: a stack of a new width may have to be compiled.
        """
        flights = self.flights
        due = [flight for flight in flights.buffer if flight.order not in flights.ends]
        begun = sorted(flight for flight in flights.flying if flight.order not in flights.ends) if due else []
        width = 1 << max((len(due) + len(begun)).bit_length() - 1, 0)
        return due + begun[: max(width - len(due), 0)]


@dataclass(frozen=True)
class Arrivals:
    """The rules of an asynchronous round.

    Attributes:
        federation: The clients; its ``clients_per_round`` is the buffer (K).
        rules: Concurrency, staleness and mixing.
    """

    federation: Federation
    rules: AsyncConfig

    def open(self, flights: Flights, round: int, params: Params, selector: Selector) -> Step:
        """Let flights start and arrive until the next step of the server is due.

        Args:
            flights: The state of the run, with the updates that have arrived since the last step.
            round: Server steps so far (t).
            params: The global model; not to change until the step is closed.
            selector: Who gets a free slot.

        Raises:
            UserError: If the selector's plan breaks the contract.
        """
        began = time.perf_counter()
        while len(flights.buffer) < self.federation.clients_per_round:
            self.dispatch(flights, round, params, selector)
            if not flights.flying:
                break  # nobody is available: the step passes, and the buffer waits
            self.arrive(flights, round)
        wanted, available = self.federation.clients_per_round, self.federation.available(round)
        slots = flights.slots(wanted, available, "weigh", round)
        view = self.federation.view(round, params, selector.needs, flights.clock, slots)
        arrived = flights.buffer if len(flights.buffer) >= wanted else []
        plan = Plan.star([flight.client for flight in arrived])
        return Step(view, plan, selector, self.federation.program, flights, time.perf_counter() - began)

    def dispatch(self, flights: Flights, round: int, params: Params, selector: Selector) -> None:
        """Fill the free slots, as far as clients are available; see :meth:`open`."""
        assert self.rules.concurrency is not None
        if self.rules.refill == "step" and flights.filled == round and flights.flying:
            return
        federation = self.federation
        free, available = self.rules.concurrency - len(flights.flying), federation.available(round)
        slots = flights.slots(free, available, "select", flights.started)
        if (there := int(np.count_nonzero(slots.available.numpy()))) < free:
            slots = replace(slots, free=there)
        if slots.free == 0:
            return
        view = federation.view(round, params, selector.needs, flights.clock, slots)
        # Each model once: looking at it takes longer than most selections.
        shown = params.values() if round not in flights.models else ()
        plan = selector_calls.select(selector, view, shown, check_flights)
        clients, extra = [path[0] for path in plan.paths], reports.told(selector.needs)
        took = view.stopwatch.fly(clients, [flights.turns[client] for client in clients], extra)
        spent: RoundTime = view.stopwatch.spent(view.ledger["server_passes"])
        if round not in flights.models:
            flights.models[round] = {key: value.detach().clone() for key, value in params.items()}
        flights.start(clients, took, flights.clock + spent.seconds, round)
        flights.filled = round
        flights.total_read |= bool(view.asked_total)
        flights.waited += spent.seconds * len(clients) / self.rules.concurrency
        flights.wasted += spent.wasted
        objective, count = federation.program.objective, len(clients)
        flights.ledger.charge(view.ledger)
        flights.ledger.charge(training(params, down=objective.messages, up=objective.messages), count)
        flights.ledger.charge(extra, count)
        flights.ledger.charge(objective.cost(params), count)
        flights.ledger.charge(CLIENT_SECOND, spent.client_seconds)

    def arrive(self, flights: Flights, round: int) -> None:
        """Take the next arrival, and buffer its update unless it is too stale; a client must be in flight."""
        flight = flights.land()
        if self.rules.bound is None or round - flight.version <= self.rules.bound:
            flights.buffer.append(flight)
        else:
            flights.stale.append(flight)
            flights.wasted += flight.seconds

    def step(self, step: Step, ends: Params) -> RoundOutcome:
        """Weigh the updates that arrived, let the selector learn, and aggregate.

        Updates that are not finite are dropped, and the server waits for as many others.

        Args:
            step: What :meth:`open` returned.
            ends: The models that arrived, each tensor ``[K, ...]``.

        Raises:
            DivergedError: If more updates are not finite than there are slots.
            UserError: If the selector's weights break the contract.
        """
        started = time.perf_counter()
        step, ends = self._finite(step, ends)
        flights, view, selector = step.flights, step.view, step.selector
        if not step.plan.paths:
            lost = [flight.client for flight in step.lost]
            outcome = passed(step, flights.ledger, self._finish(step), lost)
            flights.passed()
            return outcome
        deltas = Params()
        if selector.needs & ANY_UPDATE or self.rules.mixing == "updates":
            starts = stacked([flights.models[flight.version] for flight in flights.buffer])
            deltas = {name: end - starts[name] for name, end in ends.items()}
        updates = self._updates(step, deltas)
        weights = selector_calls.weigh(selector, view, updates, deltas)
        selector_calls.observe(selector, view, updates, weights, deltas)
        final = self._discounted(weights, updates.staleness)
        if self.rules.mixing == "models":
            deltas = {key: end - view.params[key] for key, end in ends.items()}
        delta = self._summed(deltas, final)
        lost, used = [flight.client for flight in step.lost], updates.staleness.tolist()
        outcome = RoundOutcome(
            delta=delta,
            plan=Plan(step.plan.paths + Plan.star(lost).paths) if lost else step.plan,
            weights=torch.cat([final, final.new_zeros(len(lost))]),
            dropped=tuple(lost),
            available=int(self.federation.available(view.round).sum()),
            ledger=flights.ledger,
            seconds={"select": step.seconds, "aggregate": time.perf_counter() - started},
            time=self._finish(step),
            staleness=(*used, *(view.round - flight.version for flight in step.lost)),
        )
        flights.stepped(used)
        return outcome

    def _finite(self, step: Step, ends: Params) -> tuple[Step, Params]:
        """Wait for others in place of updates that are not finite."""
        flights, lost = step.flights, list(step.lost)
        while True:
            keep = finite_rows(ends).tolist() if step.plan.paths else []
            if len(keep) == len(flights.buffer) or not step.plan.paths:
                return replace(step, lost=tuple(lost)), ends
            round = step.view.round
            dropped = [flight for k, flight in enumerate(flights.buffer) if k not in keep]
            lost += dropped
            if len(lost) > (self.rules.concurrency or 0):
                raise DivergedError(
                    f"{len(lost)} clients in a row returned a non-finite model in round {round}; lower the "
                    "learning rate of local.optimizer or check the data."
                )
            flights.buffer = [flights.buffer[k] for k in keep]
            flights.wasted += math.fsum(flight.seconds for flight in dropped)
            step = self.open(flights, round, step.view.params, step.selector)
            (ends,) = train([step], self.federation.trainer)

    def _updates(self, step: Step, deltas: Params) -> Updates:
        """Describe the updates to the selector."""
        federation, flights, needs = self.federation, step.flights, step.view.needs
        answers: dict[str, Any] = {}
        if Need.OWN_LOSS in needs:
            answers["own_loss"] = federation.trainer.losses(step.visits_of(flights.buffer))
        if Need.SQUARED_LOSS in needs:
            answers["squared_loss"] = squared_losses(step.visits_of(flights.buffer))
        if Need.DURATIONS in needs:
            seconds = [flight.seconds for flight in flights.buffer]
            answers["durations"] = torch.tensor(seconds, dtype=torch.float64)
        if Need.DELTAS in needs:
            answers["deltas"] = deltas
        if Need.HEAD in needs:
            assert federation.head is not None
            answers["head"] = head_of(deltas, federation.head)
        since = [step.view.round - flight.version for flight in flights.buffer]
        return returned(
            step.plan,
            answers,
            needs,
            by=(federation.data.population, step.program.spec, federation.reach),
            late={f.client: f.seconds for f in flights.stale if (f.client,) not in step.plan.paths},
            steps_since=torch.tensor(since, dtype=torch.int64),
        )

    def _discounted(self, weights: Tensor, staleness: Tensor) -> Tensor:
        """Return the selector's weights times s, float64 ``[K]``."""
        final = weights * self.rules.weight(staleness)
        if self.rules.division == "weights" and (total := float(final.sum())) > 0:
            final = final * (float(weights.sum()) / total)
        return final

    def _summed(self, deltas: Params, weights: Tensor) -> Params:
        """Sum updates times weights; running statistics are averaged, which keeps a variance positive."""
        summed = weighted_sum({n: value for n, value in deltas.items() if n in self._trainable}, weights)
        running = {name: value for name, value in deltas.items() if name not in self._trainable}
        if not running:
            return summed
        total = float(weights.sum())
        if total == 0:
            return summed | {name: torch.zeros_like(value[0]) for name, value in running.items()}
        return summed | weighted_sum(running, weights / total)

    @cached_property
    def _trainable(self) -> frozenset[str]:
        return frozenset(self.federation.program.trainable())

    def _finish(self, step: Step) -> RoundTime:
        """Let the time of the step itself pass, and return what happened since the last one."""
        flights, view, stopwatch = step.flights, step.view, step.view.stopwatch
        own: RoundTime = stopwatch.spent(view.ledger["server_passes"])
        flights.clock += own.seconds + stopwatch.clock.rules.overhead
        flights.ledger.charge(view.ledger)
        flights.ledger.charge(CLIENT_SECOND, own.client_seconds)
        return RoundTime(
            seconds=flights.clock - flights.stepped_at,
            questions=flights.waited + own.questions,
            client_seconds=flights.ledger["client_seconds"],
            wasted=flights.wasted + own.wasted,
            late=tuple(sorted({flight.client for flight in flights.stale})),
        )
