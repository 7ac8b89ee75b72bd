"""The server, which runs round after round: the only stateful object of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from flsel.config.groups import EvaluationConfig
from flsel.config.simulated_time import AsyncConfig
from flsel.data.heterogeneity import cohort_entropy
from flsel.engine.asynchronous import Arrivals, BufferedRound
from flsel.engine.clock import Elapsed
from flsel.engine.federation import Federation
from flsel.engine.flights import Flights
from flsel.engine.round_job import OpenRound, RoundJob, RoundOutcome, train
from flsel.local.optimizers import rate_of
from flsel.local.torch_internals import without_compiler
from flsel.metrics import CLIENT_LOG, SCORE, Better, Cost, Ledger, Score, names, score_of
from flsel.params import Params, whole
from flsel.selector import Selector

_KEPT_TABLE = 2**20  # Counts of the clients' labels that are kept for the entropy of cohorts.
_LEDGER, _PHASES, _KNOWN = names("ledger"), names("seconds"), names("test")


@dataclass(frozen=True)
class RoundRecord:
    """One round of the server.

    Attributes:
        round: Communication round that it began with.
        completed: Communication rounds completed after it.
        outcome: What the round did.
        metrics: What was measured, or None if no evaluation was due.
    """

    round: int
    completed: int
    outcome: RoundOutcome
    metrics: dict[str, float] | None


@final
class Server:
    """Hold a run's state and run its rounds.

    Args:
        federation: The clients and the rules of a round.
        config: When and what to measure.
        selector: Who trains; reset here, like the federation's objective.
        optimizer: Makes the server optimizer of the trainable parameters; it sees minus the aggregated update
            as its gradient, so SGD with learning rate 1 is FedAvg. Running statistics are averaged.
        asynchronous: The rules of asynchronous rounds; None executes synchronous ones.
        limits: Amounts after which the run ends, by the columns of the ledger whose sum they limit.
    """

    def __init__(
        self,
        federation: Federation,
        config: EvaluationConfig,
        selector: Selector,
        optimizer: Callable[[Iterable[torch.nn.Parameter]], Optimizer],
        *,
        asynchronous: AsyncConfig | None = None,
        limits: Mapping[tuple[str, ...], float] | None = None,
    ) -> None:
        program = federation.program
        self.federation = federation
        self.evaluator = federation.evaluator
        self.config = config
        self.selector = selector
        self.objective = program.objective
        self.round = 0
        self.rounds_to_target: int | None = None
        self.score = SCORE
        self.total_read = False
        self.counts = torch.zeros(len(federation.data.population), dtype=torch.int64)
        self.ledger = Ledger()
        self.elapsed = Elapsed()
        self.limits = dict(limits or {})
        self.arrivals = None if asynchronous is None else Arrivals(federation, asynchronous)
        self.flights = None if asynchronous is None else Flights(len(self.counts))
        self.params: Params = {
            name: torch.nn.Parameter(value.detach().clone(), requires_grad=False)
            for name, value in program.shared().items()
        }
        trainable = program.trainable()
        self._trainable = [name for name in self.params if name in trainable]
        with without_compiler():
            self.optimizer = optimizer([self.params[name] for name in self._trainable])  # type: ignore[misc]
        self._logged: dict[str, float] = {}
        self._seconds: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        with program.drawing("reset"):
            selector.reset(federation.sizes.clone(), federation.data.population.num_classes)
            program.seed_draws("reset", 1)  # whatever the selector drew
            self.objective.reset({name: self.params[name] for name in self._trainable}, len(self.counts))

    @property
    def directions(self) -> dict[str, Better | None]:
        """Which way further metrics are better, by name without their set; None where that is not known."""
        own = {} if self.score == SCORE else {self.score.name: self.score.better}
        return {name: way for name, way in (self.evaluator.directions | own).items() if name not in _KNOWN}

    @property
    def finished(self) -> bool:
        """Whether all rounds are run, the target ends the run, or what it may spend is spent."""
        reached = self.rounds_to_target is not None and self.config.stop_at_target
        return reached or self.spent or self.round >= self.federation.rounds

    @property
    def spent(self) -> bool:
        """Whether the simulated time, or another cost, is used up after which the run ends."""
        clock = self.federation.clock
        limit = None if clock is None else clock.rules.stop_after_seconds
        if limit is not None and self.elapsed.seconds >= limit:
            return True
        return any(sum(self.ledger[name] for name in names) >= most for names, most in self.limits.items())

    @property
    def expected_score(self) -> Score:
        """What the run is judged by, before it has begun.

        Raises:
            UserError: If the score is not measured, or does not say which way it is better.
        """
        if self.federation.program.classifies and self.config.score in (None, SCORE.column):
            return SCORE if self.config.better != "lower" else Score(SCORE.column, "min")
        self.evaluate(torch.empty(0, dtype=torch.int64))
        return self.score

    def step(self) -> RoundRecord:
        """Run one round: open it, train, close it."""
        job = self.open()
        started = time.perf_counter()
        (ends,) = train([job], self.federation.trainer)
        return self.close(job, ends, time.perf_counter() - started)

    def open(self) -> OpenRound:
        """Decide which clients train in the coming round.

        Nothing that is kept changes but the selector's state, and the flights of an asynchronous run.
        """
        if self.arrivals is not None and self.flights is not None:
            return self.arrivals.open(self.flights, self.round, self.params, self.selector)
        return self.federation.open(self.round, self.params, self.selector, self.elapsed.seconds)

    def close(self, job: OpenRound, ends: Params, seconds: float = 0.0) -> RoundRecord:
        """Aggregate what came back, step the server optimizer, and evaluate when due.

        Args:
            job: What :meth:`open` returned.
            ends: End models of its paths (:func:`flsel.engine.round_job.train`); written to.
            seconds: Wall time that they took.
        """
        began, logs = self.round, self.federation.program.logs or ()
        self._logged = {name: float(ends.pop(name).nanmean()) for name in _columns(logs) if name in ends}
        self._seconds["train"] += seconds
        outcome = self._aggregated(job, ends)
        self.total_read |= bool(job.view.asked_total)
        started = time.perf_counter()
        if len(outcome.dropped) < len(
            outcome.plan
        ):  # else the round passes, and no optimizer of the server steps
            self._apply(outcome.delta, float(outcome.weights.sum()))
        clients = whole([c for visits in outcome.plan.visits for c in visits])
        self.counts.index_add_(0, clients, torch.ones_like(clients))
        self.ledger.charge(outcome.ledger)
        if outcome.time is not None:
            self.elapsed.add(outcome.time)
        if self.flights is not None:
            self.elapsed.seconds = self.flights.clock  # which no sum of differences drifts from
        if outcome.dropped:
            self.ledger.charge(Cost(dropped_updates=len(outcome.dropped)))
        self.round = began + max(job.plan.hops, 1)
        for phase, seconds in outcome.seconds.items():
            self._seconds[phase] += seconds
        self._seconds["aggregate"] += time.perf_counter() - started
        due = self.round // self.config.every > began // self.config.every
        metrics = None
        if due or self.round >= self.federation.rounds or self.spent:
            metrics = self.evaluate(clients)
        return RoundRecord(began, self.round, outcome, metrics)

    def evaluate(self, cohort: Tensor) -> dict[str, float]:
        """Measure the global model, and note the round that reaches the target.

        Args:
            cohort: Clients that trained in the last round, int64 ``[K]``; may be empty.

        Returns:
            Metrics by name; losses in nats, accuracies in [0, 1], ``seconds/*`` since the last evaluation.
        """
        started = time.perf_counter()
        data, metrics = self.federation.data, dict[str, float]()
        for name, examples in (("test", data.test), ("validation", data.validation)):
            if examples is not None:
                scores = self.evaluator.score(self.params, examples, self.round, test=name == "test")
                metrics |= {f"{name}/{what}": value for what, value in scores.items()}
        self.score = score_of(self.config.score, self.config.better, metrics, self.evaluator.directions)
        if self.config.per_client:
            metrics |= self._client_metrics()
        for column in _columns(self.federation.program.logs or ()):
            metrics[column] = self._logged.get(column, float("nan"))
        metrics |= self._selection_metrics(cohort)
        timed = self.federation.clock is not None
        counted = [name for name in _LEDGER if timed or name != "client_seconds"]
        metrics |= {f"ledger/{name}": float(self.ledger[name]) for name in counted}
        if timed:
            metrics |= self.elapsed.measure(self.round)
        if self.flights is not None:
            metrics["clock/wasted_client_seconds"] += self.flights.client_seconds
            metrics |= self.flights.measure()
        self._seconds["evaluate"] += time.perf_counter() - started
        metrics |= {f"seconds/{phase}": self._seconds[phase] for phase in _PHASES}
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        value, target = metrics[self.score.column], self.config.target
        if self.rounds_to_target is None and target is not None and self.score.reaches(value, target):
            self.rounds_to_target = self.round
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return everything that survives a round."""
        kept = {name: part.state_dict() for name, part in self._parts().items()}
        if self.flights is not None:
            kept["flights"] = self.flights.state_dict()
        with without_compiler():
            optimizer = self.optimizer.state_dict()
        return {
            **kept,
            "round": self.round,
            "rounds_to_target": self.rounds_to_target,
            "score": vars(self.score) | {"directions": dict(self.evaluator.directions)},
            "total_read": self.total_read,
            "model": {name: value.data for name, value in self.params.items()},
            "server_optimizer": optimizer,
            "counts": self.counts,
            "ledger": dict(self.ledger),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            ValueError: If the state belongs to another model, selector or objective.
        """
        shapes = {name: value.shape for name, value in self.params.items()}
        if {name: value.shape for name, value in state["model"].items()} != shapes:
            raise ValueError("the model's parameters have other names or shapes")
        for name, part in self._parts().items():
            if name in state or name != "agreement":  # which those of an older flsel do not have
                part.load_state_dict(state[name])
        for name, value in state["model"].items():
            self.params[name].copy_(value)
        with without_compiler():
            self.optimizer.load_state_dict(state["server_optimizer"])
        self.counts = state["counts"]
        self.ledger = Ledger(state["ledger"])
        if self.flights is not None:
            self.flights.load_state_dict(state["flights"], next(iter(self.params.values())).device)
        self.round = state["round"]
        self.rounds_to_target = state["rounds_to_target"]
        if "score" in state:  # not in those of an older flsel
            self.score = Score(state["score"]["column"], state["score"]["better"])
            self.evaluator.directions |= state["score"]["directions"]
        self.total_read = state["total_read"]

    def _parts(self) -> dict[str, Any]:
        """Return by name what keeps state of its own, as far as the run has it."""
        federation = self.federation
        parts = {
            "selector": self.selector,
            "objective": self.objective,
            "agreement": federation.program.agreement,
            "optimizer_memory": federation.program.memory,
            "clock": None if federation.clock is None else self.elapsed,
            "personal": federation.program.personal,
            "updates": federation.steps,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _aggregated(self, job: OpenRound, ends: Params) -> RoundOutcome:
        if isinstance(job, RoundJob):
            return self.federation.close(job, ends)
        assert isinstance(job, BufferedRound)
        assert self.arrivals is not None
        self.total_read |= job.flights.total_read
        return self.arrivals.close(job, ends)

    def _apply(self, delta: Params, weight: float) -> None:
        rate = rate_of(self.optimizer)
        if rate is None:
            for name in self._trainable:
                self.params[name].grad = -delta[name]
            # One of the user's own may add noise.
            with self.federation.program.drawing("server optimizer", self.round):
                self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            for name in self._trainable:
                self.params[name].add_(delta[name], alpha=rate)
        # Running statistics stay a mean: with weights that sum to more, a variance could turn negative. The
        # discount of stale updates does not apply to them.
        total = weight if self.flights is not None and weight > 0 else max(weight, 1.0)
        for name in self.params.keys() - set(self._trainable):
            self.params[name] += delta[name] / total

    def _client_metrics(self) -> dict[str, float]:
        losses, accuracies = self.evaluator.on_clients(self.params, self.round)
        classifies, data = self.federation.program.classifies, self.federation.data
        # The accuracy is NaN where there are no examples, and there alone; a loss may overflow.
        some = ~accuracies.isnan() if classifies else self.federation.sizes > 0
        metrics = {"client_train/loss_mean": float(losses[some].mean())}
        metrics |= _over_clients("client_train", *_judged(losses, accuracies, classifies), some)
        if data.client_tests is not None:
            some = torch.tensor([len(part) > 0 for part in data.client_tests])
            losses, accuracies = self.evaluator.on_client_tests(self.params, data)
            metrics |= _over_clients("client_test", *_judged(losses, accuracies, classifies), some)
            if self.score.name not in ("accuracy", "loss"):
                values = self.evaluator.scores_of_clients(self.params, data, self.score.name)
                metrics |= _over_clients("client_test", self.score.name, values, self.score.better, some)
        return metrics

    def _selection_metrics(self, cohort: Tensor) -> dict[str, float]:
        counts = self.counts.double()
        metrics = {
            "selection/variance": float(counts.var(correction=0)),
            "selection/distinct": float((counts > 0).sum()),
        }
        metrics["cohort/entropy"] = self._entropy(cohort) if len(cohort) else float("nan")
        return metrics

    def _entropy(self, cohort: Tensor) -> float:
        population = self.federation.data.population
        if population.has_large_table or len(population) * population.num_classes > _KEPT_TABLE:
            return cohort_entropy(population.label_counts(cohort.tolist()).numpy(), range(len(cohort)))
        return cohort_entropy(self._label_counts, cohort.numpy())

    @cached_property
    def _label_counts(self) -> np.ndarray:
        """Examples per client and label, ``[N, C]``."""
        return self.federation.data.population.label_counts().numpy()


def _columns(logs: Sequence[str]) -> list[str]:
    return [CLIENT_LOG + name for name in logs]


def _judged(losses: Tensor, accuracies: Tensor, classifies: bool) -> tuple[str, Tensor, Better]:
    return ("accuracy", accuracies, "max") if classifies else ("loss", losses, "min")


def _over_clients(group: str, name: str, values: Tensor, better: Better, some: Tensor) -> dict[str, float]:
    """Return mean, mean of the worst tenth, and variance of a metric of some clients, ``values[some]``."""
    values = values[some]
    worst = values.sort(descending=better == "min").values[: max(1, round(len(values) / 10))]
    return {
        f"{group}/{name}_mean": float(values.mean()),
        f"{group}/{name}_worst10": float(worst.mean()),
        f"{group}/{name}_variance": float(values.var(correction=0)),
    }
