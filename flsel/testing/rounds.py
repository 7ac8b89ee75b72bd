"""Run rounds for the contract checks, and compare their results."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.engine.check_plans import check_plan, check_weights
from flsel.errors import UserError
from flsel.selector import Need, Plan, Selector, View
from flsel.testing.fake import CLASSES, FakeFederation, World, label_counts

Factory = Callable[[], Selector]


@dataclass(frozen=True)
class RoundDecisions:
    """What one round decided, the selector's state after it, and whether it drew from ``view.rng``."""

    plan: Plan
    weights: Tensor
    state: dict[str, Any]
    drew: bool


def usual_world(factory: Factory, clients: int = 8, clients_per_round: int = 3) -> World:
    """Describe the federation that most checks run in.

    A selector may refuse a K below the pool with a ``UserError`` that names ``clients_per_round``, as
    complete participation does; it then gets K = N.
    """
    world = World(label_counts(clients), clients_per_round)
    try:
        run_rounds(factory, replace(world, presence=1.0), steps=1)
    except AssertionError as error:
        if isinstance(error.__cause__, UserError) and "clients_per_round" in str(error):
            return replace(world, clients_per_round=clients)
    return world


def begin(factory: Factory, world: World) -> tuple[Selector, FakeFederation]:
    """Make and reset a selector, and the federation of ``world`` before its first round."""
    federation = FakeFederation(world)
    selector = factory()
    with blame(selector, "reset"):
        selector.reset(federation.sizes.clone(), CLASSES)
    return selector, federation


def step(selector: Selector, federation: FakeFederation) -> RoundDecisions:
    """Run one round; what the selector returns is checked against the contract on the way."""
    view = federation.view(selector.needs)
    untouched = view.rng.bit_generator.state
    plan = Plan(())
    if selector.plans_empty_rounds or bool(view.available.any()):
        with blame(selector, "select"):
            plan = selector.select(view)
        require_plan(plan, federation.view(Need.NONE), type(selector).__name__)
    if not plan.paths:
        federation.round += 1
        weights = torch.zeros(0, dtype=torch.float64)
        return RoundDecisions(plan, weights, copy.deepcopy(state_of(selector)), drew=False)
    updates = federation.updates(plan, selector.needs)
    with blame(selector, "weigh"):
        weights = selector.weigh(view, updates)
    _require_weights(weights, len(updates.plan), type(selector).__name__)
    with blame(selector, "observe"):
        selector.observe(view, updates, weights)
    federation.advance(updates, weights)
    drew = view.rng.bit_generator.state != untouched
    return RoundDecisions(plan, weights, copy.deepcopy(state_of(selector)), drew)


def run_rounds(factory: Factory, world: World, steps: int = 8) -> list[RoundDecisions]:
    """Run some rounds with a new selector."""
    selector, federation = begin(factory, world)
    return [step(selector, federation) for _ in coming(federation, steps)]


def coming(federation: FakeFederation, steps: int) -> Iterator[int]:
    """Count up to ``steps`` rounds, as long as the run lasts: a path of several hops takes as many rounds."""
    for index in range(steps):
        if federation.round >= federation.world.rounds:
            return
        yield index


def run_or_refuse(factory: Factory, world: World, what: str) -> None:
    """Run some rounds, where a ``UserError`` is a fair answer to ``what`` and another error is not."""
    try:
        run_rounds(factory, world)
    except AssertionError as error:
        if not isinstance(error.__cause__, UserError):
            raise AssertionError(f"{error} ({what} must give a valid plan or a UserError)") from error


@contextmanager
def blame(selector: Selector, method: str) -> Iterator[None]:
    """Turn what ``method`` raises into an ``AssertionError`` that names it and is caused by the original."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(
            f"{type(selector).__name__}: {method} must not fail, got {type(error).__name__}: {error}"
        ) from error


def saved(selector: Selector) -> bytes:
    """Return the selector's state as a checkpoint file holds it."""
    buffer = io.BytesIO()
    torch.save(state_of(selector), buffer)
    return buffer.getvalue()


def loaded(state: bytes) -> dict[str, Any]:
    """Return what :func:`saved` wrote, read as a checkpoint is."""
    restored: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    return restored


@contextmanager
def unchanged(selector: Selector, method: str, given: Sequence[Any]) -> Iterator[None]:
    """Assert that ``method`` leaves what it was given as it was."""
    before = copy.deepcopy(given)
    with blame(selector, method):
        yield
    assert same(before, given), (
        f"{type(selector).__name__}: {method} must not write to the view, the model or the updates"
    )


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal to the bit, in type, and NaN to NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and same(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if is_dataclass(one) and not isinstance(one, type):
        # An argument may be a selector itself, whose state is not there before its reset.
        names = [field.name for field in fields(one)]
        return all(same(getattr(one, name, None), getattr(other, name, None)) for name in names)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


def state_of(selector: Selector) -> dict[str, Any]:
    """Return a selector's state, which must be what checkpoints keep."""
    try:
        return selector.state_dict()
    except UserError as error:
        raise AssertionError(f"{type(selector).__name__}: {error}") from error


@contextmanager
def _rules() -> Iterator[None]:
    """Turn what a federation refuses into an ``AssertionError``."""
    try:
        yield
    except UserError as error:
        raise AssertionError(str(error)) from None


def require_plan(plan: Plan, view: View, name: str) -> None:
    """Assert the rules of a round."""
    with _rules():
        check_plan(plan, view, name)


def _require_weights(weights: Tensor, count: int, name: str) -> None:
    """Assert the rules of a round, and double precision."""
    with _rules():
        check_weights(weights, count, name)
    assert weights.dtype == torch.float64, f"{name}.weigh must return float64, got {weights.dtype}"
