"""The checks of the contract; each takes a factory of selectors and raises an ``AssertionError``."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import MISSING, replace

import numpy as np
import torch

from flsel.arguments import arguments
from flsel.errors import UserError
from flsel.selector import Need, Selector
from flsel.selector.diagnostic import diagnostics_of
from flsel.testing.fake import CLASSES, FakeFederation
from flsel.testing.rounds import (
    Factory,
    RoundDecisions,
    begin,
    coming,
    loaded,
    require_plan,
    run_or_refuse,
    run_rounds,
    same,
    saved,
    state_of,
    step,
    unchanged,
    usual_world,
)

Check = Callable[[Factory], None]

_PATIENCE = 40  # Rounds in which every declared need must be read; covers the papers' warm-up phases.


def check_selector(factory: Factory) -> None:
    """Run every check on the selectors that ``factory`` makes; a class with defaults is a factory.

    Raises:
        AssertionError: Naming the selector and the first rule that it breaks.
    """
    for check in CHECKS:
        check(factory)


def check_constructor(factory: Factory) -> None:
    """The constructor has defaults and stores its arguments under their names, and nothing else."""
    selector = _made(factory)
    name = type(selector).__name__
    known = arguments(type(selector))
    required = [key for key, argument in known.items() if argument.default is MISSING]
    assert not required, f"{name}: every constructor argument must have a default, {required} have none"
    assert set(vars(selector)) == set(known), (
        f"{name}: the constructor must store its arguments {sorted(known)} under their names and "
        f"nothing else, it stores {sorted(vars(selector))}"
    )
    default = type(selector)()
    changed = [key for key in known if not same(vars(default)[key], known[key].default)]
    assert not changed, f"{name}: the constructor must store its arguments as given, it changes {changed}"


def check_plan(factory: Factory) -> None:
    """Plans have at most K paths of available clients, round after round."""
    for presence in (0.5, 1.0):
        run_rounds(factory, replace(usual_world(factory), presence=presence))


def check_small_pools(factory: Factory) -> None:
    """Pools of one, of two and of fewer clients than K get a plan; rounds in which nobody is there pass."""
    for clients, clients_per_round in ((1, 1), (2, 1), (2, 2)):
        run_rounds(factory, usual_world(factory, clients, clients_per_round))
    for presence in (0.0, 0.2):
        run_rounds(factory, replace(usual_world(factory, clients_per_round=6), presence=presence))
    run_rounds(factory, replace(usual_world(factory), empty=(0, 2, 3)))


def check_same_seed(factory: Factory) -> None:
    """The same views give the same plans, weights and state; ``reset`` leaves nothing behind."""
    world = usual_world(factory)
    name = type(factory()).__name__
    first = run_rounds(factory, world)
    assert same(first, run_rounds(factory, world)), (
        f"{name}: the same views must give the same plans and state"
    )
    used = factory()
    for _ in range(2):
        again = run_rounds(lambda: used, world)
    assert same(first, again), f"{name}: reset must restore a new selector's state, a second run differs"


def check_other_seed(factory: Factory) -> None:
    """A selector that draws from ``view.rng`` chooses other plans under another seed.

    A draw that only breaks ties shows where all clients are alike.
    """
    world = usual_world(factory)
    clients = len(world.counts)
    if world.clients_per_round == clients:
        return
    drew = False
    for case in (world, replace(world, counts=torch.full((clients, CLASSES), 5), alike=True)):
        runs = (run_rounds(factory, replace(case, seed=seed)) for seed in range(6))
        first = next(runs)
        plans = [one.plan for one in first]
        if any([one.plan for one in other] != plans for other in runs):
            return
        drew = drew or any(one.drew for one in first)
    name = type(factory()).__name__
    assert not drew, f"{name}: another seed must give another plan, six seeds gave the same ones"


def check_global_rngs(factory: Factory) -> None:
    """No global random generator is used or seeded; draws come from ``view.rng``."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    run_rounds(factory, usual_world(factory))
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    for owner, old, new in zip(("random", "numpy.random", "torch"), before, after, strict=True):
        name = type(factory()).__name__
        assert same(old, new), f"{name}: the global generator of {owner} must stay untouched; use view.rng"


def check_read_only(factory: Factory) -> None:
    """The view, the model and the updates are not written to."""
    selector, federation = begin(factory, usual_world(factory))
    for _ in coming(federation, 6):
        view = federation.view(selector.needs)
        seen = [view.available, view.sizes, federation.counts, view.params]
        with unchanged(selector, "select", seen):
            plan = selector.select(view)
        require_plan(plan, federation.view(Need.NONE), type(selector).__name__)
        updates = federation.updates(plan, selector.needs)
        seen += [updates.sizes, updates.steps, dict(updates.answers)]
        with unchanged(selector, "weigh", seen):
            weights = selector.weigh(view, updates)
        with unchanged(selector, "observe", [*seen, weights]):
            selector.observe(view, updates, weights)
        federation.advance(updates, weights)


def check_needs(factory: Factory) -> None:
    """The selector reads only the information that its ``needs`` declare, and all of it."""
    small = replace(usual_world(factory), rounds=_PATIENCE)
    name = type(factory()).__name__
    reads = Need.NONE
    # What is asked only of a large enough cohort shows in the second world.
    for world in (small, replace(small, clients_per_round=len(small.counts))):
        selector, federation = begin(factory, world)
        for _ in coming(federation, _PATIENCE):
            step(selector, federation)
            reads |= federation.reads
            undeclared = reads & ~selector.needs
            assert not undeclared, f"{name}: needs must declare {undeclared}, which is read past the view"
            if reads == selector.needs:
                return
    unread = factory().needs & ~reads
    raise AssertionError(f"{name}: needs must not declare {unread}, unread in {_PATIENCE} rounds")


def check_weights(factory: Factory) -> None:
    """Weights are finite, not negative and one per update, also if updates were lost on the way."""
    world = usual_world(factory)
    for counts in (world.counts, world.counts * 100_000):
        for lose in (False, True):
            run_rounds(factory, replace(world, counts=counts, lose=lose))


def check_state(factory: Factory) -> None:
    """State lives in attributes ending in ``_``: tensors and plain values, the same keys from reset on."""
    selector, federation = begin(factory, usual_world(factory))
    name = type(selector).__name__
    keys = set(state_of(selector))
    for _ in coming(federation, 6):
        stray = set(vars(selector)) - set(arguments(type(selector))) - keys
        assert not stray, (
            f"{name}: state must be allocated by reset under names ending in _, got {sorted(stray)}"
        )
        restored = loaded(saved(selector))
        assert same(restored, state_of(selector)), f"{name}: state must survive torch.save and torch.load"
        step(selector, federation)


def check_diagnostics(factory: Factory) -> None:
    """Diagnostics fit the clients that they are asked of, from reset on, and change nothing."""
    selector, federation = begin(factory, usual_world(factory))
    name = type(selector).__name__
    clients = np.arange(0, len(federation.sizes), 2)
    for _ in coming(federation, 6):
        before = loaded(saved(selector))
        try:
            diagnostics_of(selector, clients)
        except UserError as error:
            raise AssertionError(str(error)) from error
        assert same(before, state_of(selector)), f"{name}: diagnostics must leave the state as it is"
        step(selector, federation)


def check_resume(factory: Factory) -> None:
    """A selector restored at any round boundary continues exactly as one that was never interrupted."""
    selector, federation = begin(factory, usual_world(factory))
    name = type(selector).__name__
    boundaries: list[tuple[FakeFederation, bytes]] = []
    decided: list[RoundDecisions] = []
    for _ in coming(federation, 8):
        boundaries.append((copy.deepcopy(federation), saved(selector)))
        decided.append(step(selector, federation))
    for boundary, (world, state) in enumerate(boundaries):
        twin = factory()
        twin.reset(world.sizes, CLASSES)
        twin.load_state_dict(loaded(state))
        for expected in decided[boundary:]:
            assert same(step(twin, world), expected), (
                f"{name}: resuming must be exact, but a run resumed before step {boundary} goes another way"
            )


def check_non_finite(factory: Factory) -> None:
    """Losses and updates that are NaN or infinite give a plan or a ``UserError``, nothing else."""
    for poison in (math.nan, math.inf, -math.inf):
        for poisoned in (0.3, 1.0):
            world = replace(usual_world(factory), poison=poison, poisoned=poisoned)
            run_or_refuse(factory, world, f"reports of {poison}")


def check_odd_data(factory: Factory) -> None:
    """Empty shards, equal sizes and single labels are fine; with no data at all a ``UserError`` will do."""
    world = usual_world(factory)
    counts = world.counts
    empty, single, one = counts.clone(), torch.zeros_like(counts), torch.zeros_like(counts)
    empty[::3] = 0
    single[torch.arange(len(counts)), torch.arange(len(counts)) % CLASSES] = 10
    one[:, 1] = counts.sum(1)
    for odd in (empty, torch.full_like(counts, 5), single, one):
        run_rounds(factory, replace(world, counts=odd))
    run_or_refuse(factory, replace(world, counts=torch.zeros_like(counts)), "clients without examples")
    run_or_refuse(factory, replace(world, head_bias=False), "an output layer without bias")


def check_hyperparameters(factory: Factory) -> None:
    """The constructor's arguments never change."""
    selector, federation = begin(factory, usual_world(factory))
    stored = [key for key in arguments(type(selector)) if key in vars(selector)]
    before = copy.deepcopy({key: vars(selector)[key] for key in stored})
    for _ in coming(federation, 6):
        step(selector, federation)
    changed = [key for key, value in before.items() if not same(vars(selector).get(key), value)]
    name = type(selector).__name__
    assert not changed, (
        f"{name}: constructor arguments must never change, {changed} did; use names ending in _"
    )


def _made(factory: Factory) -> Selector:
    try:
        return factory()
    except TypeError as error:
        raise AssertionError(f"the factory must make a selector without arguments: {error}") from error


CHECKS: tuple[Check, ...] = (
    check_constructor,
    check_plan,
    check_small_pools,
    check_same_seed,
    check_other_seed,
    check_global_rngs,
    check_read_only,
    check_needs,
    check_weights,
    check_state,
    check_diagnostics,
    check_resume,
    check_non_finite,
    check_odd_data,
    check_hyperparameters,
)
"""Every check, in the order in which :func:`check_selector` runs them."""
