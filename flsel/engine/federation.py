"""One communication round: select, train, weigh, observe. Owns no state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flsel.availability import Trace
from flsel.data.federate import labels_of
from flsel.data.population import FederatedData
from flsel.engine.arrival import Arrival
from flsel.engine.check_plans import check_hops, check_phases, check_same_form, check_weights
from flsel.engine.check_updates import check_alike, check_one_hop
from flsel.engine.clock import Clock, RoundTime
from flsel.engine.closing import Closing, Returned, divergence_error
from flsel.engine.evaluation import Evaluator
from flsel.engine.flights import Slots
from flsel.engine.opening import Moment, charge_trainings, make_view, reported, select
from flsel.engine.respondents import ProgramClients
from flsel.engine.round_job import RoundJob, RoundOutcome, passed
from flsel.engine.stopwatch import Stopwatch
from flsel.engine.update_steps import UpdateSteps
from flsel.engine.watches import unwritten
from flsel.errors import UserError
from flsel.local.program import Program
from flsel.local.schedule import Reach
from flsel.local.trainer import LocalTrainer
from flsel.metrics import CLIENT_SECOND
from flsel.objectives import LocalUpdates
from flsel.objectives.objective import overrides
from flsel.params import Params, finite_rows, rows, whole
from flsel.rng import generator
from flsel.selector import Need, Plan, Selector, Updates, View


@dataclass(frozen=True)
class Federation:
    """The clients and the rules of a round.

    Attributes:
        data: The clients' data and the three sets beside it.
        program: The client's side.
        trainer: Trains and asks clients.
        evaluator: Losses and outputs of models on what the server holds.
        available: Tells who is available in a communication round, bool ``[N]``.
        reach: How far a constant gradient moves the parameters in numbers of steps.
        closing: What becomes of end models.
        rounds: Communication rounds of the run.
        clients_per_round: Most paths per round that are aggregated.
        clock: What clients' work takes on their simulated devices; None without devices.
        steps: What happens to updates on their way; None joins them as they are.
        record: When each client comes and goes; None if nobody leaves within a round.
        who: Who answers a round's questions.
    """

    data: FederatedData
    program: Program
    trainer: LocalTrainer
    evaluator: Evaluator
    available: Callable[[int], Tensor]
    reach: Reach
    closing: Closing
    rounds: int
    clients_per_round: int
    clock: Clock | None = None
    steps: UpdateSteps | None = None
    record: Trace | None = None
    who: ProgramClients = field(init=False)

    def __post_init__(self) -> None:
        update = None if self.steps is None else self.steps.message.bytes
        who = ProgramClients(self.program, self.trainer, self.evaluator, self.reach, self.clock, update)
        object.__setattr__(self, "who", who)

    @property
    def sizes(self) -> Tensor:
        """Training examples per client, int64 ``[N]``."""
        return self.who.sizes

    def open(self, round: int, params: Params, selector: Selector, started: float = 0.0) -> RoundJob:
        """Decide which clients train; none if nobody is available.

        Args:
            round: Communication round that begins.
            params: The global model; not written to, and not to change until the round is closed.
            selector: Who decides.
            started: Simulated seconds of the run so far.

        Raises:
            UserError: If the selector's plan breaks the contract.
        """
        began = time.perf_counter()
        waited = self.waits(started)
        moment = self.moment(round, started + waited, waited=waited)
        view = make_view(self.who, params, selector.needs, moment)
        plan = select(view, selector)
        if not plan.paths:
            return RoundJob(view, plan, selector, self.program, time.perf_counter() - began)
        objective = self.program.objective
        check_hops(plan, objective, self.program.memory is not None, type(selector).__name__)
        check_phases(selector, objective)
        if self.program.personal is not None and plan.hops > 1:
            raise UserError(
                f"local.personal must be empty with {type(selector).__name__}, which chains {plan.hops} "
                "clients."
            )
        if self.steps is not None:
            check_one_hop(self.steps, plan, type(selector).__name__)
        firsts, leaves = [visits[0] for visits in plan.visits], self.leaving(plan, view)
        arrival = self._arrival(plan, view, selector, leaves)
        gone = set(leaves) if arrival is None else set(arrival.gone)
        stay = Plan(tuple(path for path in plan.paths if path[0] not in gone)) if gone else plan
        plan = stay if arrival is None else arrival.plan
        seconds = time.perf_counter() - began
        job = RoundJob(view, plan, selector, self.program, seconds, arrival, tuple(firsts))
        if self.program.memory is not None:
            self.program.memory.forget()  # of trainings that the selector asked for
        each = job if arrival is None else arrival
        held = each.trainings_in(plan.hops - 1) if selector.two_phase else len(gone)
        count = len(set(firsts)) if arrival is None else arrival.firsts
        trainings = each.trainings + (len(gone) if arrival is None else 0)
        charge_trainings(view, self.who, trainings, firsts=count, held=held)
        return job

    def close(self, job: RoundJob, ends: Params) -> RoundOutcome:
        """Drop what is not finite, weigh the rest, let selector and objective learn, and aggregate.

        Args:
            job: The round.
            ends: End models of its paths, each tensor ``[K, ...]``; turned into updates in place.

        Raises:
            DivergedError: If every path ended in a non-finite model.
            UserError: If the selector's weights break the contract.
        """
        started = time.perf_counter()
        view, plan = job.view, job.plan
        if len(plan) == 0:
            overhead = None if self.clock is None else RoundTime(self.clock.rules.overhead, 0.0, 0.0, 0.0)
            return passed(job, view.ledger, overhead if job.arrival is None else self._finish(job, ()))
        personal = self.program.personal
        finite = finite_rows(ends) if personal is not None else None
        deltas = self.closing.updates(ends, view.params, plan, [view.round] * len(plan))
        keep = finite_rows(deltas)
        if len(keep) == 0 and self.trainer.unanswered:
            return passed(job, view.ledger, None, [path[-1] for path in plan.visits])
        if len(keep) == 0:
            who = f"every client of round {view.round}"
            raise divergence_error(who, self.program.model, view.params, deltas)
        deltas, returned = rows(deltas, keep), self._returned(job, keep)
        if personal is not None and finite is not None:  # after answers with the parts that clients had
            at = {plan.paths[k][0]: k for k in finite.tolist()}
            personal.keep([*at], rows(ends, whole([*at.values()])))
        if self.program.memory is not None:
            self.program.memory.keep(dict.fromkeys(visits[0] for visits in returned.plan.visits))
        updates, weights = self.closing.weigh(job.selector, view, deltas, returned)
        weights = self.reweighed(job.selector, updates, weights, view.round)
        self._note_draw(job)
        if job.selector.two_phase:
            self._collect(view, updates, weights)
        delta = self._aggregated(view, updates, deltas, weights)
        every = torch.zeros(len(plan), dtype=torch.float64).index_copy_(0, keep, weights)
        lost = sorted(set(range(len(plan))).difference(keep.tolist()))
        return RoundOutcome(
            delta=delta,
            plan=plan,
            weights=every,
            dropped=tuple(plan.visits[k][-1] for k in lost),
            available=int(np.count_nonzero(view.available.numpy())),
            ledger=view.ledger,
            seconds={"select": job.seconds, "aggregate": time.perf_counter() - started},
            time=self._finish(job, lost),
        )

    @property
    def in_seconds(self) -> bool:
        """Whether clients come and go at simulated seconds, instead of with the rounds."""
        return self.record is not None and self.record.in_seconds

    def waits(self, seconds: float) -> float:
        """Return how long the server waits from a simulated second on until a client is available."""
        return 0.0 if self.record is None else self.record.wait(seconds)

    def here(self, round: int, seconds: float) -> Tensor:
        """Tell who is available in a round at a simulated second of the run, bool ``[N]``."""
        if self.record is None or not self.record.in_seconds:
            return self.available(round)
        return torch.from_numpy(self.record(round, seconds))

    def leaving(self, plan: Plan, view: View) -> dict[int, float]:
        """Return the clients of a plan of one hop that leave within the round, by the seconds that they stay.

        Minus infinity stands for a client that leaves at an unknown time, because its record is in rounds.
        """
        if self.record is None or self.record.records is None or plan.hops > 1:
            return {}
        clients = sorted({path[0] for path in plan.paths})
        stays = dict(zip(clients, self.record.stays(clients, view.round, view.clock).tolist(), strict=True))
        if self.record.in_seconds:
            return {client: seconds for client, seconds in stays.items() if seconds < math.inf}
        return {client: -math.inf for client, rounds in stays.items() if rounds < 1}

    def moment(
        self, round: int, started: float, slots: Slots | None = None, *, waited: float = 0.0
    ) -> Moment:
        """Return when a round begins, and who can take part.

        Args:
            round: Communication round that begins.
            started: Simulated seconds of the run so far.
            slots: The free slots of an asynchronous run.
            waited: Seconds that the server waited for a client to be available.
        """
        clock, wanted, available = self.clock, self.clients_per_round, self._present(round, started)
        if slots is not None:
            wanted, available = slots.free, slots.in_rounds(round, available)
        return Moment(
            round=round,
            rounds=self.rounds,
            clients_per_round=wanted if clock is None else clock.rules.asked(wanted, len(clock.sizes)),
            available=available,
            rng=generator(self.program.seed, *(("select", round) if slots is None else slots.draw)),
            clock=0.0 if clock is None else started,
            stopwatch=None if clock is None else Stopwatch(clock, round, waited),
            running={} if slots is None else slots.running,
        )

    def _present(self, round: int, seconds: float) -> Callable[[int], Tensor]:
        """Return the available clients of a round, as far as they are connected now."""
        reachable = self.trainer.reachable(round)
        if reachable is None:
            return partial(self.here, seconds=seconds)
        return lambda at: self.here(at, seconds) & reachable

    def _arrival(
        self, plan: Plan, view: View, selector: Selector, leaves: Mapping[int, float]
    ) -> Arrival | None:
        """Let a plan run on simulated devices; None without devices."""
        if self.clock is None:
            return None
        rules, hops = self.clock.rules, plan.hops
        if hops > 1 and rules.over_selection > 1:
            raise UserError(
                f"time.over_selection must be 1 with {type(selector).__name__}, which chains {hops} "
                f"clients, got {rules.over_selection:g}: it is defined for paths of one client."
            )
        if hops > 1 and rules.late == "partial":
            raise UserError(
                f"time.late must be drop or rest with {type(selector).__name__}, which chains {hops} "
                "clients, got partial: a chain goes on with whole trainings."
            )
        arrival: Arrival = view.stopwatch.train(
            plan,
            reported(view.needs),
            wanted=self.clients_per_round,
            held=selector.two_phase,
            leaves=leaves,
        )
        return arrival

    def _returned(self, job: RoundJob, keep: Tensor) -> Returned:
        """Return what comes with the updates in the rows ``keep``."""
        plan, arrival = job.plan, job.arrival
        if len(keep) < len(plan):
            plan = Plan(tuple(plan.paths[k] for k in keep.tolist()))
        reports = self.who.reports(job.view.needs, [job.first(k) for k in keep.tolist()])
        if arrival is not None:
            reports[Need.DURATIONS] = torch.tensor(arrival.durations, dtype=torch.float64)[keep]
        return Returned(
            plan,
            self.who.work(plan, job.steps(plan)),
            reports,
            late={} if arrival is None else arrival.late,
            asked=whole(job.asked),
        )

    def _note_draw(self, job: RoundJob) -> None:
        """Note for the privacy of a round who was drawn from how many, and who sent an update."""
        if self.steps is not None:
            drawn, pool = len(set(job.asked)), int((job.view.available & (self.sizes > 0)).sum())
            gone = () if job.arrival is None else job.arrival.gone
            sent = sorted(set(job.asked).difference(gone))
            self.steps.note(sent, (drawn, pool if job.selector.draws_uniformly else drawn))

    def reweighed(self, selector: Selector, updates: Updates, weights: Tensor, round: int) -> Tensor:
        """Return the weights that the updates are joined with.

        Args:
            selector: Who weighed the updates.
            updates: The updates.
            weights: Its weights, float64 ``[K]``.
            round: Communication round.

        Raises:
            UserError: If the selector's or the objective's weights do not fit.
        """
        objective = self.program.objective
        if self.steps is not None:
            check_alike(self.steps, weights, type(selector).__name__, round)
        if not overrides(objective, "reweigh"):
            return weights
        reweighed = objective.reweigh(weights, updates.travel)
        return check_weights(reweighed, len(weights), type(objective).__name__, "reweigh")

    def _collect(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Charge the updates that clients held back until they had a weight."""
        sent = {updates.plan.paths[k] for k in weights.nonzero().flatten().tolist()}
        view.ledger.charge(self.who.upload(view.params), len(sent))
        if view.stopwatch is not None:
            view.stopwatch.collect({path[-1] for path in sent})

    def _aggregated(self, view: View, updates: Updates, deltas: Params, weights: Tensor) -> Params:
        """Return the change of the model, once the objective has seen the updates."""
        objective = self.program.objective
        name = type(objective).__name__
        if overrides(objective, "observe"):
            with unwritten(f"{name}.observe", [*view.params.values(), *deltas.values()]):
                objective.observe(self._local_updates(view, updates, deltas))
        senders = [visits[-1] for visits in updates.plan.visits]
        delta = self.closing.aggregate(deltas, weights, senders, view.round)
        if not overrides(objective, "aggregate"):
            return delta
        with self.program.drawing("aggregate", view.round):
            aggregated = objective.aggregate(delta)
        return check_same_form(aggregated, delta, f"{name}.aggregate")

    def _local_updates(self, view: View, updates: Updates, deltas: Params) -> LocalUpdates:
        """Describe to the objective what the clients of a one-hop plan did, each client once."""
        firsts: dict[int, int] = {}
        for row, client in enumerate(updates.clients.tolist()):
            firsts.setdefault(client, row)
        first = torch.tensor(list(firsts.values()))
        steps = updates.steps[first]
        return LocalUpdates(
            clients=updates.clients[first],
            starts=view.params,
            deltas=rows(deltas, first),
            steps=steps,
            reach=partial(self.reach, view.round, steps),
            labels=partial(_trained_labels, self.program, view.round, [*firsts], steps.tolist()),
            round=view.round,
            rng=generator(self.program.seed, "server objective", view.round),
        )

    def _finish(self, job: RoundJob, lost: Sequence[int]) -> RoundTime | None:
        """Return what a round took on simulated devices, and charge it; None without devices."""
        if job.arrival is None:
            return None
        ledger = job.view.ledger
        time: RoundTime = job.view.stopwatch.finish(job.arrival, ledger["server_passes"], lost)
        ledger.charge(CLIENT_SECOND, time.client_seconds)
        return time


def _trained_labels(program: Program, round: int, clients: Sequence[int], steps: Sequence[int]) -> Tensor:
    """Count the labels of the batches of some visits, int64 ``[K, C]``."""
    population = program.population
    population.require_labels(f"objective {type(program.objective).__name__}")
    y = labels_of(population.examples)
    tables = (program.batch_table(c, round)[:most] for c, most in zip(clients, steps, strict=True))
    counts = [np.bincount(y[table[table >= 0]], minlength=population.num_classes) for table in tables]
    return torch.from_numpy(np.stack(counts))
