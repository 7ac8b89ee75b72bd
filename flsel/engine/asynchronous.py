"""Asynchronous rounds: dispatch, arrive, close. Owns no state: that is in :mod:`flsel.engine.flights`.

J. Nguyen et al.: "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (FedBuff);
C. Xie, S. Koyejo, I. Gupta: "Asynchronous Federated Optimization", 2019 (FedAsync).

A flight is one client's local training. Arrivals are ordered by simulated seconds, then by when they started.
An arrival is handled completely, the round's closing included, before its slot is filled again and before the
next arrival of the same time. Which flights a round aggregates follows from the clock, without training: so
all flights whose start is known train in one call, once one of them is due.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flsel.config.simulated_time import AsyncConfig
from flsel.engine.check_plans import check_flights
from flsel.engine.clock import RoundTime
from flsel.engine.closing import ANY_UPDATE, Returned, divergence_error
from flsel.engine.federation import Federation
from flsel.engine.flights import Flight, Flights
from flsel.engine.opening import charge_trainings, make_view, reported, select
from flsel.engine.round_job import RoundOutcome, passed, train
from flsel.local.program import Program
from flsel.local.visit import Visit
from flsel.metrics import CLIENT_SECOND
from flsel.params import Params, finite_rows, row, stacked
from flsel.selector import Need, Plan, Selector, View


@dataclass(frozen=True, eq=False)
class BufferedRound:
    """An open round whose flights have arrived; their models may still have to be trained.

    It is to :func:`flsel.engine.round_job.train` what a :class:`~flsel.engine.round_job.RoundJob` is.

    Attributes:
        view: What the selector sees when it weighs; its cost holds what the round itself costs.
        plan: The clients whose updates arrived, in the order of arrival.
        selector: Who weighs.
        program: The client's side of the federation.
        flights: The state of the run.
        seconds: Wall time that dispatching took.
        lost: Flights since the last round whose models were not finite.
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
        flying = [flight for flight in flights.flying if not flight.lost] if due else []
        begun = sorted(flight for flight in flying if flight.order not in flights.ends)
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

    def open(self, flights: Flights, round: int, params: Params, selector: Selector) -> BufferedRound:
        """Let flights start and arrive until the next round can be closed.

        Args:
            flights: The state of the run, with the updates that have arrived since the last round.
            round: Communication rounds so far (t).
            params: The global model; not to change until the round is closed.
            selector: Who gets a free slot.

        Raises:
            UserError: If the selector's plan breaks the contract.
        """
        began = time.perf_counter()
        while len(flights.buffer) < self.federation.clients_per_round:
            self.dispatch(flights, round, params, selector)
            if flights.flying:
                self.arrive(flights, round)
            elif waited := self.federation.waits(flights.clock):
                flights.clock += waited
            else:
                break  # nobody is available: the round passes, and the buffer waits
        wanted, available = self.federation.clients_per_round, self.federation.here(round, flights.clock)
        slots = flights.slots(wanted, available, "weigh", round)
        at = self.federation.moment(round, flights.clock, slots)
        view = make_view(self.federation.who, params, selector.needs, at)
        arrived = flights.buffer if len(flights.buffer) >= wanted else []
        plan = Plan.star([flight.client for flight in arrived])
        return BufferedRound(
            view, plan, selector, self.federation.program, flights, time.perf_counter() - began
        )

    def dispatch(self, flights: Flights, round: int, params: Params, selector: Selector) -> None:
        """Fill the free slots, as far as clients are available; see :meth:`open`."""
        assert self.rules.concurrency is not None
        if self.rules.refill == "step" and flights.filled == round and flights.flying:
            return
        federation = self.federation
        free = self.rules.concurrency - len(flights.flying)
        available = federation.here(round, flights.clock)
        slots = flights.slots(free, available, "select", flights.started)
        if (there := int(np.count_nonzero(slots.available.numpy()))) < free:
            slots = replace(slots, free=there)
        if slots.free == 0:
            return
        at = federation.moment(round, flights.clock, slots)
        view = make_view(federation.who, params, selector.needs, at)
        # Each model once: looking at it takes longer than most selections.
        plan = select(view, selector, shown=() if round in flights.models else None, check=check_flights)
        clients = [path[0] for path in plan.paths]
        turns = [flights.turns[client] for client in clients]
        took = view.stopwatch.fly(clients, turns, reported(selector.needs))
        spent: RoundTime = view.stopwatch.spent(view.ledger["server_passes"])
        if round not in flights.models:
            flights.models[round] = {key: value.detach().clone() for key, value in params.items()}
        stays = federation.leaving(plan, view) if federation.in_seconds else {}
        ends = [max(stays.get(client, math.inf) - spent.seconds, 0.0) for client in clients]
        lost = {client for client, end, seconds in zip(clients, ends, took, strict=True) if seconds > end}
        took = [min(end, seconds) for end, seconds in zip(ends, took, strict=True)]
        flights.start(clients, took, flights.clock + spent.seconds, round, lost)
        flights.filled = round
        flights.total_read |= bool(view.asked_total)
        flights.waited += spent.seconds * len(clients) / self.rules.concurrency
        flights.wasted += spent.wasted
        charge_trainings(view, federation.who, len(clients), firsts=len(clients), held=len(lost))
        flights.ledger.charge(view.ledger)
        flights.ledger.charge(CLIENT_SECOND, spent.client_seconds)

    def arrive(self, flights: Flights, round: int) -> None:
        """Take the next arrival, and buffer its update unless it is too stale; a client must be in flight."""
        flight = flights.land()
        fresh = self.rules.bound is None or round - flight.version <= self.rules.bound
        if fresh and not flight.lost:
            flights.buffer.append(flight)
        else:
            flights.stale.append(flight)
            flights.wasted += flight.seconds

    def close(self, job: BufferedRound, ends: Params) -> RoundOutcome:
        """Weigh the updates that arrived, let the selector learn, and aggregate.

        Updates that are not finite are dropped, and the server waits for as many others.

        Args:
            job: What :meth:`open` returned.
            ends: The models that arrived, each tensor ``[K, ...]``.

        Raises:
            DivergedError: If more updates are not finite than there are slots.
            UserError: If the selector's weights break the contract.
        """
        started = time.perf_counter()
        job, ends = self._finite(job, ends)
        flights, view, selector = job.flights, job.view, job.selector
        if self.federation.steps is not None:
            counted = flights.buffer if job.plan.paths else []
            sent = [f.client for f in (*counted, *job.lost, *flights.stale) if not f.lost]
            self.federation.steps.note(sent, (1, 1) if counted else None)
        if not job.plan.paths:
            lost = [flight.client for flight in job.lost]
            outcome = passed(job, flights.ledger, self._finish(job), lost)
            flights.passed()
            return outcome
        closing, by_models = self.federation.closing, self.rules.mixing == "models"
        seen = bool(selector.needs & ANY_UPDATE) or closing.on_client is not None
        given = {key: end.clone() for key, end in ends.items()} if by_models and seen else ends
        deltas = self._updates(job, given) if seen or not by_models else {}
        updates, weights = closing.weigh(selector, view, deltas, self._returned(job))
        weights = self.federation.reweighed(selector, updates, weights, view.round)
        final = self._discounted(weights, updates.staleness)
        if by_models and closing.on_client is not None:
            starts = self._starts(flights)
            deltas = {key: delta + (starts[key] - view.params[key]) for key, delta in deltas.items()}
        elif by_models:
            deltas = {key: end - view.params[key] for key, end in ends.items()}
        delta = closing.aggregate(deltas, final, updates.clients.tolist(), view.round)
        lost, used = [flight.client for flight in job.lost], updates.staleness.tolist()
        outcome = RoundOutcome(
            delta=delta,
            plan=Plan(job.plan.paths + Plan.star(lost).paths) if lost else job.plan,
            weights=torch.cat([final, final.new_zeros(len(lost))]),
            dropped=tuple(lost),
            available=int(self.federation.here(view.round, flights.clock).sum()),
            ledger=flights.ledger,
            seconds={"select": job.seconds, "aggregate": time.perf_counter() - started},
            time=self._finish(job),
            staleness=(*used, *(view.round - flight.version for flight in job.lost)),
        )
        flights.stepped(used)
        return outcome

    def _finite(self, job: BufferedRound, ends: Params) -> tuple[BufferedRound, Params]:
        """Wait for others in place of updates that are not finite."""
        flights, lost = job.flights, list(job.lost)
        while True:
            keep = finite_rows(ends).tolist() if job.plan.paths else []
            if len(keep) == len(flights.buffer) or not job.plan.paths:
                return replace(job, lost=tuple(lost)), ends
            round = job.view.round
            dropped = [flight for k, flight in enumerate(flights.buffer) if k not in keep]
            lost += dropped
            if len(lost) > (self.rules.concurrency or 0):
                who = f"{len(lost)} clients in a row up to round {round}"
                raise divergence_error(who, self.federation.program.model, job.view.params, ends)
            flights.buffer = [flights.buffer[k] for k in keep]
            flights.wasted += math.fsum(flight.seconds for flight in dropped)
            job = self.open(flights, round, job.view.params, job.selector)
            (ends,) = train([job], self.federation.trainer)

    def _starts(self, flights: Flights) -> Params:
        """Return the models that the flights in the buffer started from, each tensor ``[K, ...]``."""
        return stacked([flights.models[flight.version] for flight in flights.buffer])

    def _updates(self, job: BufferedRound, ends: Params) -> Params:
        """Return what arrived, relative to the models of the starts; ``ends`` are written to."""
        turns = [flight.turn for flight in job.flights.buffer]
        return self.federation.closing.updates(ends, self._starts(job.flights), job.plan, turns)

    def _returned(self, job: BufferedRound) -> Returned:
        """Return what comes with the updates."""
        flights, who = job.flights, self.federation.who
        visits = job.visits_of(flights.buffer)
        reports = who.reports(job.view.needs, visits)
        seconds = [flight.seconds for flight in flights.buffer]
        since = [job.view.round - flight.version for flight in flights.buffer]
        return Returned(
            job.plan,
            who.work(job.plan, [[visit.steps] for visit in visits]),
            {**reports, Need.DURATIONS: torch.tensor(seconds, dtype=torch.float64)},
            late={f.client: f.seconds for f in flights.stale if (f.client,) not in job.plan.paths},
            steps_since=torch.tensor(since, dtype=torch.int64),
        )

    def _discounted(self, weights: Tensor, staleness: Tensor) -> Tensor:
        """Return the selector's weights times s, float64 ``[K]``."""
        final = weights * self.rules.weight(staleness)
        if self.rules.division == "weights" and (total := float(final.sum())) > 0:
            final = final * (float(weights.sum()) / total)
        return final

    def _finish(self, job: BufferedRound) -> RoundTime:
        """Let the time of the round itself pass, and return what happened since the last one."""
        flights, view, stopwatch = job.flights, job.view, job.view.stopwatch
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
