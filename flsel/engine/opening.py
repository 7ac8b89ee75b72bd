"""The opening of every round: what the selector sees, its plan, and the costs of the planned trainings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from flsel.engine.answers import Answers
from flsel.engine.check_plans import check_plan
from flsel.engine.respondents import Respondents
from flsel.engine.stopwatch import Stopwatch
from flsel.engine.watches import own_draws, remembered, unwritten
from flsel.metrics import NOTHING, Cost, Ledger, training
from flsel.params import Params
from flsel.selector import Need, Plan, Selector, View

_REPORTED = {
    Need.OWN_LOSS: Cost(passes=1, scalars_up=1),
    # These losses come up in training, which takes no pass of its own.
    Need.SQUARED_LOSS: Cost(scalars_up=1),
}


@dataclass(frozen=True)
class Moment:
    """When a round begins, and who can take part.

    Attributes:
        round: Communication round that begins.
        rounds: Communication rounds of the run.
        clients_per_round: Most paths of a plan.
        available: Tells who is available in a communication round, bool ``[N]``.
        rng: The selector's generator in this round.
        clock: Seconds of the run so far.
        stopwatch: Simulated seconds of the round; None without devices.
        running: Clients in flight and the versions that they started from.
    """

    round: int
    rounds: int
    clients_per_round: int
    available: Callable[[int], Tensor]
    rng: np.random.Generator
    clock: float = 0.0
    stopwatch: Stopwatch | None = None
    running: Mapping[int, int] = field(default_factory=dict)


def make_view(who: Respondents, params: Params, needs: Need, at: Moment) -> View:
    """Return what a selector may know before a round, with an empty ledger.

    Args:
        who: Who answers its questions.
        params: The global model.
        needs: What the selector declares.
        at: When the round begins.
    """
    ledger = Ledger()
    return View(
        round=at.round,
        rounds=at.rounds,
        clients_per_round=at.clients_per_round,
        # Copies: writes to an array over a tensor's memory go unnoticed.
        available=at.available(at.round).clone(),
        sizes=who.sizes.clone(),
        num_classes=who.num_classes,
        params=params,
        rng=at.rng,
        ledger=ledger,
        needs=needs,
        answers=Answers(who, at.available, at.round, params, ledger, at.stopwatch),
        stopwatch=at.stopwatch,
        trained=None if who.trained is None else who.trained.clone(),
        running=at.running,
        clock=at.clock,
    )


def select(
    view: View,
    selector: Selector,
    *,
    shown: Iterable[Tensor] | None = None,
    check: Callable[[object, View, str], None] = check_plan,
) -> Plan:
    """Return a selector's plan, checked; an empty one if nobody is available, and the round passes.

    Args:
        view: What the selector sees.
        selector: Who decides; it is asked about an empty pool only if it declares ``plans_empty_rounds``.
        shown: Tensors of the view that it must not write to; None stands for the model.
        check: Refuses a plan that breaks the contract.

    Raises:
        UserError: If the plan breaks the contract, or the selector writes to what it is shown.
    """
    if not selector.plans_empty_rounds and not bool(view.available.any()):
        return Plan(())
    name = type(selector).__name__
    watched = unwritten(f"{name}.select", view.params.values() if shown is None else shown)
    with own_draws(name, view), remembered(selector, view.round), watched:
        plan = selector.select(view)
    check(plan, view, name)
    return plan


def charge_trainings(view: View, who: Respondents, count: int, *, firsts: int, held: int = 0) -> None:
    """Charge local trainings and what participants tell besides.

    Args:
        view: The round, whose ledger is charged.
        who: Who trains.
        count: Trainings.
        firsts: Clients whose training is the first of a path: they tell what the selector declares.
        held: Trainings whose update stays with the client for the time being.
    """
    ledger = view.ledger
    ledger.charge(training(view.params, down=who.messages, up=0), count)
    ledger.charge(who.upload(view.params), count - held)
    ledger.charge(who.beside(view.params), count)
    ledger.charge(reported(view.needs), firsts)


@functools.cache
def reported(needs: Need) -> Cost:
    """Return what a client's first training of a path costs besides, by what it has to tell."""
    costs = [cost for need, cost in _REPORTED.items() if need in needs]
    return sum(costs[1:], start=costs[0]) if costs else NOTHING
