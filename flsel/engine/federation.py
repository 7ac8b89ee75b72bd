"""One communication round: select, train, weigh, observe. Owns no state."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flsel.data.population import FederatedData
from flsel.engine.answers import Answers
from flsel.engine.checks import check_hops, check_plan, check_weights
from flsel.engine.ledger import count_trainings
from flsel.errors import DivergedError
from flsel.objectives import Objective, Visits
from flsel.objectives.objective import overrides
from flsel.rng import generator
from flsel.selector import IDLE, Need, Plan, Selector, Updates, View
from flsel.stack import Params, finite_rows, replaced, rows, weighted_sum

if TYPE_CHECKING:
    from flsel.engine.evaluation import Evaluator
    from flsel.local.program import LocalTrainer


@dataclass(frozen=True)
class Outcome:
    """What a round did.

    Attributes:
        delta: Sum of weights times updates, to be added to the global model.
        plan: Who trained, dropped paths included.
        weights: Weight of each path, float64 ``[K]``; zero for dropped ones.
        dropped: Clients at the end of a path whose model was not finite.
        available: Number of clients that were available.
        ledger: What the round cost.
        seconds: Wall time of each phase.
    """

    delta: Params
    plan: Plan
    weights: Tensor
    dropped: tuple[int, ...]
    available: int
    ledger: Counter[str]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Federation:
    """The clients and the rules of a round.

    Attributes:
        data: The clients' data and the three sets beside it.
        trainer: Local training.
        evaluator: Losses of models.
        available: Tells who is available in a communication round, bool ``[N]``.
        steps: Local optimizer steps of one visit to a client with so many examples.
        reach: How far a constant gradient of one moves the parameters in a round, for numbers of steps
            (:class:`flsel.local.reach.Reach`).
        head: Names of the output layer's weight and bias (None without one).
        seed: The run's seed.
        rounds: Communication rounds of the run.
        budget: Most paths per round.
    """

    data: FederatedData
    trainer: LocalTrainer
    evaluator: Evaluator
    available: Callable[[int], Tensor]
    steps: Callable[[int], int]
    reach: Callable[[int, Tensor], Params]
    head: tuple[str, str | None] | None
    seed: int
    rounds: int
    budget: int
    sizes: Tensor = field(init=False)
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", self.data.population.sizes)
        object.__setattr__(self, "labels", self.data.population.label_counts())

    def play(self, round: int, params: Params, selector: Selector, objective: Objective) -> Outcome:
        """Play one round from the global model ``params``, which is not written to.

        Raises:
            DivergedError: If every path ended in a non-finite model.
            UserError: If the selector's plan or weights break the contract.
        """
        clock = _Clock()
        # 1. Who trains?
        view = self._view(round, params, selector.needs, objective.messages)
        plan = selector.select(view)
        check_plan(plan, view, type(selector).__name__)
        check_hops(plan, objective, type(selector).__name__)
        own_loss = self._own_loss(plan, view) if Need.OWN_LOSS in selector.needs else None
        clock.lap("select")
        # 2. Local training, hop by hop.
        deltas = self._train(plan, view, objective.messages)
        clock.lap("train")
        # 3. Drop what is not finite, weigh the rest, learn.
        keep = finite_rows(deltas)
        if len(keep) == 0 and len(plan) > 0:
            raise DivergedError(
                f"every client of round {round} returned a non-finite model; lower the learning rate of "
                "local.optimizer or check the data."
            )
        updates = self._updates(plan, keep, deltas, own_loss, selector.needs)
        weights = selector.weigh(view, updates)
        check_weights(weights, len(keep), type(selector).__name__)
        selector.observe(view, updates, weights)
        if overrides(objective, "observe"):
            objective.observe(self._visits(view, updates, keep, deltas))
        # 4. Aggregate.
        every = torch.zeros(len(plan), dtype=torch.float64).index_put_((keep,), weights)
        delta = objective.aggregate(weighted_sum(rows(deltas, keep), weights))
        clock.lap("aggregate")
        lost = sorted(set(range(len(plan))) - set(keep.tolist()))
        dropped = tuple(plan.visits[k][-1] for k in lost)
        return Outcome(delta, plan, every, dropped, int(view.available.sum()), view.ledger, clock.seconds)

    def _view(self, round: int, params: Params, needs: Need, messages: int) -> View:
        ledger: Counter[str] = Counter()
        return View(
            round=round,
            rounds=self.rounds,
            budget=self.budget,
            available=self.available(round),
            sizes=self.sizes,
            num_classes=self.data.population.num_classes,
            params=params,
            rng=generator(self.seed, "select", round),
            ledger=ledger,
            needs=needs,
            answers=Answers(
                self.evaluator, self.trainer, self.available, self.labels, round, params, ledger, messages
            ),
        )

    def _own_loss(self, plan: Plan, view: View) -> Tensor:
        clients = [visits[0] for visits in plan.visits]
        distinct = sorted(set(clients))
        view.ledger["passes"] += len(distinct)
        view.ledger["scalars_up"] += len(distinct)
        losses = self.evaluator.losses(view.params, distinct)
        return losses[torch.tensor([distinct.index(c) for c in clients])]

    def _train(self, plan: Plan, view: View, messages: int) -> Params:
        """Carry the stack along the paths and return end minus global model, each ``[K, ...]``."""
        stack = {name: value.expand(len(plan), *value.shape) for name, value in view.params.items()}
        for hop in range(plan.hops):
            clients = [path[hop] for path in plan.paths]
            train = self._fan_out if hop == 0 else self._move_on
            stack, trained = train(stack, clients, view.round + hop)
            count_trainings(view.ledger, trained, view.params, down=messages, up=messages)
        return {name: value.sub_(view.params[name]) for name, value in stack.items()}

    def _fan_out(self, stack: Params, clients: list[int], round: int) -> tuple[Params, int]:
        """Train the first hop; from one start a repeated client arrives at one end: it trains once."""
        on = [k for k, client in enumerate(clients) if client != IDLE]
        distinct = list(dict.fromkeys(clients[k] for k in on))
        starts = {name: value[: len(distinct)] for name, value in stack.items()}
        ends = self.trainer.train(starts, distinct, round)
        if clients == distinct:
            return ends, len(distinct)
        where = torch.tensor([distinct.index(clients[k]) for k in on], dtype=torch.int64)
        return replaced(stack, on, {n: e[where.to(e.device)] for n, e in ends.items()}), len(distinct)

    def _move_on(self, stack: Params, clients: list[int], round: int) -> tuple[Params, int]:
        """Train a later hop; copies that idle stay as they are."""
        on = [k for k, client in enumerate(clients) if client != IDLE]
        starts = rows(stack, torch.tensor(on, dtype=torch.int64))
        ends = self.trainer.train(starts, [clients[k] for k in on], round)
        return replaced(stack, on, ends), len(on)

    def _updates(
        self, plan: Plan, keep: Tensor, deltas: Params, own_loss: Tensor | None, needs: Need
    ) -> Updates:
        kept = Plan(tuple(plan.paths[k] for k in keep.tolist()))
        per_visit = [[int(self.sizes[c]) for c in visits] for visits in kept.visits]
        answers: dict[str, Any] = {}
        if own_loss is not None:
            answers["own_loss"] = own_loss[keep]
        if Need.DELTAS in needs:
            answers["deltas"] = rows(deltas, keep)
        if Need.HEAD in needs:
            assert self.head is not None
            weight, bias = self.head
            names = {"weight": weight} | ({"bias": bias} if bias is not None else {})
            # A 1x1 convolution's weight has two more dimensions, of length one.
            head = {
                key: deltas[name].flatten(2) if key == "weight" else deltas[name]
                for key, name in names.items()
            }
            answers["head"] = rows(head, keep)
        return Updates(
            plan=kept,
            sizes=torch.tensor([sum(sizes) for sizes in per_visit], dtype=torch.int64),
            steps=torch.tensor([sum(map(self.steps, sizes)) for sizes in per_visit], dtype=torch.int64),
            needs=needs,
            answers=answers,
        )

    def _visits(self, view: View, updates: Updates, keep: Tensor, deltas: Params) -> Visits:
        """Describe what the clients of a one-hop plan did, each client once."""
        firsts: dict[int, int] = {}
        for row, client in enumerate(updates.clients.tolist()):
            firsts.setdefault(client, row)
        first = torch.tensor(list(firsts.values()))
        steps = updates.steps[first]
        return Visits(
            clients=updates.clients[first],
            starts=view.params,
            deltas=rows(deltas, keep[first]),
            steps=steps,
            reach=partial(self.reach, view.round, steps),
        )


class _Clock:
    """Wall time of consecutive phases, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now
