"""One communication round: select, train, weigh, observe. Owns no state."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.data.population import FederatedData
from flsel.engine import reports, selector_calls
from flsel.engine.answers import Answers
from flsel.engine.arrival import Arrival
from flsel.engine.check_plans import check_aggregate, check_hops, check_phases
from flsel.engine.clock import Clock, RoundTime
from flsel.engine.evaluation import Evaluator
from flsel.engine.flights import Slots
from flsel.engine.returned import head_of, local_updates, returned
from flsel.engine.round_job import RoundJob, RoundOutcome, passed
from flsel.engine.stopwatch import Stopwatch
from flsel.engine.watches import unwritten
from flsel.errors import DivergedError, UserError
from flsel.local.program import Program
from flsel.local.reach import Reach
from flsel.local.trainer import LocalTrainer
from flsel.metrics import CLIENT_SECOND, NOTHING, Ledger, models_up, training
from flsel.objectives.objective import overrides
from flsel.params import Params, finite_rows, rows, weighted_sum, whole
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
        head: Names of the output layer's weight and bias (None without one).
        rounds: Communication rounds of the run.
        clients_per_round: Most paths per round that are aggregated.
        clock: What clients' work takes on their simulated devices; None without devices.
    """

    data: FederatedData
    program: Program
    trainer: LocalTrainer
    evaluator: Evaluator
    available: Callable[[int], Tensor]
    reach: Reach
    head: tuple[str, str | None] | None
    rounds: int
    clients_per_round: int
    clock: Clock | None = None
    sizes: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    trained: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", self.data.population.sizes)
        object.__setattr__(self, "labels", self.data.population.label_counts())
        used = [min(size, self.program.spec.num_examples(size)) for size in self.sizes.tolist()]
        object.__setattr__(self, "trained", whole(used))

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
        objective = self.program.objective
        view = self.view(round, params, selector.needs, started)
        if not bool(view.available.any()):
            # The round passes, and the selector is not asked.
            seconds = time.perf_counter() - began
            return RoundJob(view, Plan(()), selector, self.program, None, seconds)
        plan = selector_calls.select(selector, view, params.values())
        check_hops(plan, objective, self.program.memory is not None, type(selector).__name__)
        check_phases(selector, objective)
        arrival = self._arrival(plan, view, selector)
        asked = whole([visits[0] for visits in plan.visits])
        plan = plan if arrival is None else arrival.plan
        own_loss = reports.own_losses(self.trainer, self.program, plan, view)
        seconds = time.perf_counter() - began
        job = RoundJob(view, plan, selector, self.program, own_loss, seconds, arrival, asked)
        if self.program.memory is not None:
            self.program.memory.forget()  # of trainings that the selector asked for
        if arrival is None:
            told = reports.told(selector.needs)
            if told is not NOTHING:
                view.ledger.charge(told, len({visits[0] for visits in plan.visits}))
            each_way, beside = objective.messages, objective.cost(params)
            for hop in range(plan.hops):
                up = 0 if selector.two_phase and hop == plan.hops - 1 else each_way
                count = job.trainings(hop)
                view.ledger.charge(training(params, down=each_way, up=up), count)
                view.ledger.charge(beside, count)
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
        view, plan, selector, objective = job.view, job.plan, job.selector, self.program.objective
        if len(plan) == 0:
            waited = None if self.clock is None else RoundTime(self.clock.rules.overhead, 0.0, 0.0, 0.0)
            return passed(job, view.ledger, waited)
        deltas = {name: end.sub_(view.params[name]) for name, end in ends.items()}
        keep = finite_rows(deltas)
        if len(keep) == 0 and self.trainer.unanswered:
            return passed(job, view.ledger, None, [path[-1] for path in plan.visits])
        if len(keep) == 0:
            raise DivergedError(
                f"every client of round {view.round} returned a non-finite model; lower the learning rate of "
                "local.optimizer or check the data."
            )
        updates = self._updates(job, keep, deltas)
        if self.program.memory is not None:
            self.program.memory.keep(dict.fromkeys(updates.clients.tolist()))
        weights = selector_calls.weigh(selector, view, updates, deltas)
        if selector.two_phase:
            sent = {updates.plan.paths[k] for k in weights.nonzero().flatten().tolist()}
            view.ledger.charge(models_up(len(sent) * objective.messages, view.params))
            if view.stopwatch is not None:
                view.stopwatch.collect({path[-1] for path in sent})
        selector_calls.observe(selector, view, updates, weights, deltas)
        if overrides(objective, "observe"):
            told = local_updates(
                view, updates, keep, deltas, by=(self.data.population, self.program, self.reach)
            )
            with unwritten(f"{type(objective).__name__}.observe", [*view.params.values(), *deltas.values()]):
                objective.observe(told)
        every = torch.zeros(len(plan), dtype=torch.float64).index_copy_(0, keep, weights)
        delta = weighted_sum(rows(deltas, keep), weights)
        if overrides(objective, "aggregate"):
            with self.program.drawing("aggregate", view.round):
                aggregated = objective.aggregate(delta)
            delta = check_aggregate(aggregated, delta, type(objective).__name__)
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

    def _arrival(self, plan: Plan, view: View, selector: Selector) -> Arrival | None:
        """Let a plan run on simulated devices, and charge what took place; None without devices."""
        if self.clock is None:
            return None
        rules, hops = self.clock.rules, plan.hops
        if hops > 1 and rules.over_selection > 1:
            raise UserError(
                f"time.over_selection must be 1 with {type(selector).__name__}, which chains {hops} "
                f"clients, got {rules.over_selection:g}: it is defined for paths of one client."
            )
        params, ledger, objective = view.params, view.ledger, self.program.objective
        extra, held = reports.told(selector.needs), selector.two_phase
        arrival: Arrival = view.stopwatch.train(plan, extra, wanted=self.clients_per_round, held=held)
        count, kept = arrival.trainings, arrival.trainings_in(hops - 1) if held else 0
        ledger.charge(training(params, down=objective.messages, up=objective.messages), count - kept)
        if held:
            ledger.charge(training(params, down=objective.messages, up=0), kept)
        ledger.charge(objective.cost(params), count)
        if extra is not NOTHING:
            ledger.charge(extra, arrival.firsts)
        return arrival

    def _finish(self, job: RoundJob, lost: Sequence[int]) -> RoundTime | None:
        """Return what a round took on simulated devices, and charge it; None without devices."""
        if job.arrival is None:
            return None
        ledger = job.view.ledger
        time: RoundTime = job.view.stopwatch.finish(job.arrival, ledger["server_passes"], lost)
        ledger.charge(CLIENT_SECOND, time.client_seconds)
        return time

    def view(
        self, round: int, params: Params, needs: Need, started: float, slots: Slots | None = None
    ) -> View:
        """Return what a selector may know before a round, with an empty ledger.

        Args:
            round: Communication round that begins.
            params: The global model.
            needs: What the selector declares.
            started: Simulated seconds of the run so far.
            slots: The free slots of an asynchronous run.
        """
        ledger, clock, wanted = Ledger(), self.clock, self.clients_per_round
        stopwatch = None if clock is None else Stopwatch(clock, round, started)
        available = self._present(round)
        if slots is not None:
            wanted, available = slots.free, slots.in_rounds(round, available)
        return View(
            round=round,
            rounds=self.rounds,
            clients_per_round=wanted if clock is None else clock.rules.asked(wanted, len(clock.sizes)),
            # Copies: writes to an array over a tensor's memory go unnoticed.
            available=available(round).clone(),
            sizes=self.sizes.clone(),
            num_classes=self.data.population.num_classes,
            params=params,
            rng=generator(self.program.seed, *(("select", round) if slots is None else slots.draw)),
            ledger=ledger,
            needs=needs,
            stopwatch=stopwatch,
            trained=self.trained.clone(),
            running={} if slots is None else slots.running,
            answers=Answers(
                evaluator=self.evaluator,
                trainer=self.trainer,
                program=self.program,
                availability=available,
                label_counts=self.labels,
                round=round,
                params=params,
                ledger=ledger,
                stopwatch=stopwatch,
            ),
        )

    def _present(self, round: int) -> Callable[[int], Tensor]:
        """Return the available clients of a round, as far as they are connected now."""
        reachable = self.trainer.reachable(round)
        if reachable is None:
            return self.available
        return lambda at: self.available(at) & reachable

    def _updates(self, job: RoundJob, keep: Tensor, deltas: Params) -> Updates:
        kept, needs = job.plan, job.view.needs
        if len(keep) < len(kept):
            kept = Plan(tuple(kept.paths[k] for k in keep.tolist()))
        answers: dict[str, Any] = {}
        if job.own_loss is not None:
            answers["own_loss"] = job.own_loss[keep]
        if Need.SQUARED_LOSS in needs:
            answers["squared_loss"] = reports.squared(self.trainer, self.program, kept, job.view)
        if Need.DURATIONS in needs and job.arrival is not None:
            answers["durations"] = torch.tensor(job.arrival.durations, dtype=torch.float64)[keep]
        if Need.DELTAS in needs:
            answers["deltas"] = rows(deltas, keep)
        if Need.HEAD in needs:
            assert self.head is not None
            answers["head"] = rows(head_of(deltas, self.head), keep)
        return returned(
            kept,
            answers,
            needs,
            by=(self.data.population, self.program.spec, self.reach),
            late={} if job.arrival is None else job.arrival.late,
            asked=job.asked,
        )
