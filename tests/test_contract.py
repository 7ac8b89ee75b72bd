"""The contract: every selector of the package passes every check, and broken ones fail the right one."""

from __future__ import annotations

import copy
import importlib
import inspect
import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
from torch import Tensor

import flsel.selectors
from flsel.errors import UserError
from flsel.selector import Diagnostic, Need, Plan, Range, Selector
from flsel.selectors import (
    AFL,
    E3CS,
    F3AST,
    HACCS,
    OSMD,
    UCBCS,
    DivFL,
    FedAU,
    FedCBS,
    FedCor,
    FedGS,
    FedPNS,
    GradientNorm,
    GreedyFed,
    HiCS,
    KVib,
    OptimalSampling,
    PowD,
)
from flsel.testing import CHECKS, check_selector, contract


def _shipped() -> list[type[Selector]]:
    """Every selector class defined in a public module of ``flsel/selectors``."""
    folder = Path(flsel.selectors.__file__).parent
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    modules = [importlib.import_module(f"flsel.selectors.{name}") for name in names]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if getattr(value, "__module__", "") == module.__name__
        and inspect.isclass(value)
        and issubclass(value, Selector)
    ]


SHIPPED = _shipped()


def test_every_module_holds_one_selector():
    modules = [selector.__module__ for selector in SHIPPED]
    assert len(modules) == len(set(modules))
    assert {"Uniform", "MD", "PowD", "AFL", "Complete"} <= {selector.__name__ for selector in SHIPPED}
    assert not [selector for selector in SHIPPED if inspect.isabstract(selector)]
    assert all(selector.__mro__[1] is Selector for selector in SHIPPED)


def test_every_check_runs():
    defined = {name for name in vars(contract) if name.startswith("check_")} - {"check_selector"}
    assert [check.__name__ for check in CHECKS] == [name for name in vars(contract) if name in defined]


# FedCor fits by 100 steps that are alike; it takes all of them where numbers may go wrong.
FEWER_STEPS = {FedCor: partial(FedCor, steps=5)}
ALL_STEPS = (contract.check_constructor, contract.check_non_finite, contract.check_odd_data)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("selector", SHIPPED, ids=lambda selector: selector.__name__)
def test_contract(selector, check):
    check(selector if check in ALL_STEPS else FEWER_STEPS.get(selector, selector))


OTHER_ARGUMENTS = [
    partial(DivFL, mode="no_overhead", optimizer="greedy", weights="equal"),
    partial(DivFL, mode="no_overhead", signal="update", weights="represented"),
    partial(DivFL, signal="update", optimizer="stochastic", rho=0.01),
    partial(DivFL, sketch=16),
    partial(E3CS, 1.0, 0.25, 2.0),
    partial(F3AST, 0.5),
    partial(FedAU, AFL(), cutoff=2, shares="equal"),
    partial(FedAU, PowD(), cutoff=2, shares="equal"),
    partial(FedCBS, 0.0, 5.0),
    partial(FedCor, warmup=1, delta_t=2, samples=2, d=3, steps=2, variant="paper"),
    partial(FedCor, warmup=1, delta_t=2, samples=2, d=3, steps=2, variant="reference"),
    partial(FedGS, graph="secure", variant="reference"),
    partial(FedGS, graph="cosine", gap=2.0),
    partial(FedGS, graph="functional", variant="paper"),
    partial(FedPNS, v=0.3, expectation="mean", p_min=0.05),
    partial(GradientNorm, 1, per_step=False),
    partial(GreedyFed, "softmax", exact=0, sweeps=3, scale=5.0),
    partial(HACCS, rho=0.0, distance="euclidean", privacy=1.0),
    partial(HiCS, temperature_per_client=True),
    partial(HiCS, signal="layer", keep_first_update=True, clustered_from_variance=0.0, warm_up_by_id=True),
    partial(KVib, gamma=1e-3, theta=1.0),
    partial(OptimalSampling, 1.0, "exact"),
    partial(OSMD, 0.9, eta=50.0),
    partial(UCBCS, 1.0, 0.0),
]


@pytest.mark.parametrize("made", OTHER_ARGUMENTS, ids=lambda made: made.func.__name__)
def test_contract_with_other_arguments(made):
    # FedAU's inner selector keeps state: every selector that is checked needs one of its own.
    check_selector(lambda: copy.deepcopy(made)())


class Good(Selector):
    """Reads, learns and draws as it should; the broken selectors below change one thing each."""

    needs = ~Need.NONE

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = alpha

    def reset(self, sizes, num_classes):
        self.count_ = torch.zeros(len(sizes), dtype=torch.int64)
        self.last_ = None

    def select(self, view):
        pool = view.pool
        losses = view.losses(pool.tolist()).nan_to_num(0.0)
        view.noise_outputs(view.shadow(pool[:1].tolist()))
        view.gradients(pool[:1].tolist())
        view.server_loss(view.params)
        assert len(view.true_models) == len(view.sizes)
        rank = view.labels[pool].sum(1) + losses + self.count_[pool] * self.alpha
        noise = torch.from_numpy(view.rng.gumbel(size=len(pool)))
        return Plan.star(
            pool[(noise - rank.nan_to_num(0.0, 0.0, 0.0)).argsort()[: view.clients_per_round].numpy()]
        )

    def weigh(self, view, updates):
        deltas, head = updates.deltas, updates.head
        assert len(deltas["head.weight"]) == len(head["weight"]) == len(updates.own_loss)
        assert len(updates.squared_loss) == len(updates.durations) == len(updates.plan)
        return torch.full((len(updates.plan),), 1.0 / len(updates.plan), dtype=torch.float64)

    def observe(self, view, updates, weights):
        self.count_ = self.count_.index_add(0, updates.clients, torch.ones_like(updates.clients))
        self.last_ = view.round


@dataclass
class Declared(Good):
    """The same as a dataclass, with a default that no two selectors may share."""

    alpha: Annotated[float, Range(0)] = 0.5
    names: list[str] = field(default_factory=list)
    count_: Tensor = field(init=False, repr=False)
    last_: int | None = field(init=False, repr=False)


@pytest.mark.parametrize("selector", [Good, Declared])
def test_a_good_selector_passes_and_twice(selector):
    check_selector(selector)
    check_selector(lambda: selector(alpha=2.0))


BROKEN: list[tuple[str, str, type[Selector]]] = []


def broken(check: str, message: str):
    """Register a selector that must fail ``check`` with ``message``."""

    def register(selector: type[Selector]) -> type[Selector]:
        BROKEN.append((check, message, selector))
        return selector

    return register


@broken("constructor", "must store its arguments .* nothing else")
class StoresMore(Good):
    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = alpha
        self.beta = 2 * alpha


@broken("constructor", "must store its arguments .* nothing else, it stores .*'last_'")
@dataclass
class StoresState(Good):
    alpha: float = 0.5
    last_: list[int] = field(init=False, default_factory=list)


@broken("constructor", r"must store its arguments as given, it changes \['alpha'\]")
class StoresOther(Good):
    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = alpha + 1


@broken("constructor", "must make a selector without arguments")
class NoDefault(Good):
    def __init__(self, alpha: float) -> None:
        self.alpha = alpha


@broken("plan", "planned 4 paths in round 0; clients_per_round is 3")
class OverBudget(Good):
    def select(self, view):
        return Plan.star(np.resize(view.pool, view.clients_per_round + 1))


@broken("plan", r"planned client \d, who is not available in round")
class IgnoresAvailability(Good):
    def select(self, view):
        return Plan.star(view.rng.choice(len(view.sizes), view.clients_per_round, replace=False))


@broken("plan", r"planned client \d, who is not available in round")
class IgnoresLaterAvailability(Good):
    def select(self, view):
        return Plan(tuple((int(client), int(client)) for client in view.pool[: view.clients_per_round]))


@broken("plan", "planned paths of different lengths")
class UnequalPaths(Good):
    def select(self, view):
        first = int(view.pool[0])
        return Plan(((first,), (first, first)))


@broken("diagnostics", "'size' must be a client of . clients, in numbers")
class TellsOfAll(Good):
    def diagnostics(self, clients):
        return (Diagnostic("size", "client", np.zeros(1000)),)


@broken("plan", "returned an empty plan in round 0; a plan needs at least one path")
class Nobody(Good):
    def select(self, view):
        return Plan(())


@broken("plan", r"select must return a Plan, such as Plan.star\(clients\), got \[0, 1\]")
class ReturnsList(Good):
    def select(self, view):
        return [0, 1]


@broken("small_pools", "select must not fail, got ValueError: Cannot take a larger sample")
class NeedsFullPool(Good):
    def select(self, view):
        return Plan.star(view.rng.choice(view.pool, view.clients_per_round, replace=False))


_HIDDEN_RNG = np.random.default_rng(3)


@broken("same_seed", "the same views must give the same plans")
class OwnGenerator(Good):
    def select(self, view):
        return Plan.star(_HIDDEN_RNG.permutation(view.pool)[: view.clients_per_round])


@broken("same_seed", "reset must restore a new selector's state")
class ForgetsToForget(Good):
    def reset(self, sizes, num_classes):
        if not hasattr(self, "count_") or len(self.count_) != len(sizes):
            super().reset(sizes, num_classes)


@broken("other_seed", "another seed must give another plan")
class IgnoresSeed(Good):
    def select(self, view):
        view.rng.random()
        return Plan.star(view.pool[: view.clients_per_round])


class Deterministic(Good):
    def select(self, view):
        return Plan.star(view.pool[: view.clients_per_round])


class BreaksTies(Good):
    def select(self, view):
        order = np.lexsort((view.rng.random(len(view.pool)), -view.sizes.numpy()[view.pool]))
        return Plan.star(view.pool[order[: view.clients_per_round]])


@pytest.mark.parametrize("selector", [Deterministic, BreaksTies])
def test_other_seed_lets_deterministic_selectors_and_ties_pass(selector):
    contract.check_other_seed(selector)


@broken("global_rngs", "the global generator of random must stay untouched")
class UsesPython(Good):
    def select(self, view):
        return Plan.star(random.sample(view.pool.tolist(), 1))


@broken("global_rngs", r"the global generator of numpy\.random must stay untouched")
class SeedsNumpy(Good):
    def select(self, view):
        np.random.seed(view.round)
        return super().select(view)


@broken("global_rngs", "the global generator of torch must stay untouched")
class UsesTorch(Good):
    def weigh(self, view, updates):
        torch.rand(1)
        return super().weigh(view, updates)


@broken("read_only", "select must not write to the view")
class WritesAvailability(Good):
    def select(self, view):
        plan = super().select(view)
        view.available[:] = False
        return plan


@broken("read_only", "select must not write to the view")
class WritesLabels(Good):
    def select(self, view):
        view.labels.add_(1)
        return super().select(view)


@broken("read_only", "select must not write to the view, the model")
class ReplacesModel(Good):
    def select(self, view):
        plan = super().select(view)
        view.params.pop("body.weight")
        return plan


@broken("read_only", "weigh must not write to the view, the model or the updates")
class WritesDeltas(Good):
    def weigh(self, view, updates):
        updates.deltas["body.weight"].zero_()
        return super().weigh(view, updates)


@broken("read_only", "observe must not write")
class WritesModel(Good):
    def observe(self, view, updates, weights):
        super().observe(view, updates, weights)
        view.params["head.bias"] += 1.0


@broken("needs", r"UndeclaredNeedError: the selector asked for LOSSES.* add Need\.LOSSES")
class DeclaresTooLittle(Good):
    needs = Good.needs & ~Need.LOSSES


@broken("needs", r"needs must not declare Need\.SHADOW, unread in 40 rounds")
class DeclaresTooMuch(Good):
    def select(self, view):
        view.losses(view.pool.tolist())
        view.server_loss(view.params)
        view.noise_outputs({name: value[None] for name, value in view.params.items()})
        view.gradients(view.pool.tolist())
        assert len(view.true_models)
        return Plan.star(view.pool[: int(view.labels.shape[0] > 0)])


@broken("needs", r"needs must not declare Need\.[A-Z_|]*(LABELS|LOSSES)")
class DeclaresByArgument(Good):
    """Its needs depend on an argument: only an instance has them."""

    @property
    def needs(self):
        return ~Need.NONE if self.alpha > 0 else Need.NONE

    def select(self, view):
        return Plan.star(view.rng.permutation(view.pool)[: view.clients_per_round])


@broken("needs", r"UndeclaredNeedError: the selector asked for LABELS.* add Need\.LABELS")
class DeclaresTooLittleByArgument(Good):
    @property
    def needs(self):
        return ~Need.NONE if self.alpha < 0 else ~Need.LABELS


@broken("needs", r"needs must declare Need\.SERVER_LOSS, which is read past the view")
class GoesPastTheView(Good):
    needs = Good.needs & ~Need.SERVER_LOSS

    def select(self, view):
        view.answers.server_loss(view.params)
        return Plan.star(view.pool[:1])


@broken("weights", "weigh must return 3 finite weights >= 0")
class NegativeWeights(Good):
    def weigh(self, view, updates):
        return -super().weigh(view, updates)


@broken("weights", r"weigh must return 3 finite weights >= 0, got .* of shape \(1,\)")
class OneWeight(Good):
    def weigh(self, view, updates):
        return torch.ones(1, dtype=torch.float64)


@broken("weights", r"weigh must return float64, got torch\.float32")
class SinglePrecision(Good):
    def weigh(self, view, updates):
        return super().weigh(view, updates).float()


@broken("weights", "weigh must return a tensor of 3 weights, got")
class WeightList(Good):
    def weigh(self, view, updates):
        return [1.0] * len(updates.plan)


@broken("weights", r"weigh must return 2 finite weights >= 0, got .* of shape \(3,\)")
class ForgetsLostUpdates(Good):
    def weigh(self, view, updates):
        return torch.ones(min(view.clients_per_round, len(view.pool)), dtype=torch.float64)


@broken("state", r"ArrayState.seen_ must be made of tensors, .* got numpy.ndarray")
class ArrayState(Good):
    def reset(self, sizes, num_classes):
        super().reset(sizes, num_classes)
        self.seen_ = np.zeros(3)


@broken("state", r"under names ending in _, got \['memory'\]")
class HiddenState(Good):
    def observe(self, view, updates, weights):
        super().observe(view, updates, weights)
        self.memory = view.round


@broken("state", r"allocated by reset under names ending in _, got \['late_'\]")
class LateState(Good):
    def observe(self, view, updates, weights):
        super().observe(view, updates, weights)
        self.late_ = view.round


_REMEMBERED: dict[int, int] = {}


@broken("resume", "resuming must be exact, but a run resumed before step 1 goes another way")
class RemembersElsewhere(Good):
    def reset(self, sizes, num_classes):
        super().reset(sizes, num_classes)
        _REMEMBERED[id(self)] = 0

    def select(self, view):
        _REMEMBERED[id(self)] += 1
        return Plan.star(view.pool[: 1 + _REMEMBERED[id(self)] % min(2, len(view.pool))])


@broken("resume", "resuming must be exact")
class KeepsTheLiveModel(Good):
    def select(self, view):
        if self.last_ is None:
            self.last_ = view.params["head.bias"]
        return super().select(view)

    def observe(self, view, updates, weights):
        self.count_ = self.count_ + int(self.last_.sum() != 0)


@broken("non_finite", r"select must not fail, got RuntimeError: .* \(reports of nan must give a valid plan")
class DrawsByLoss(Good):
    def select(self, view):
        losses = view.losses(view.pool.tolist())
        if self.count_.any() and losses.isnan().any():
            raise RuntimeError("probabilities contain NaN")
        return super().select(view)


@broken(
    "non_finite", r"finite weights >= 0, got .*nan.* \(reports of nan must give a valid plan or a UserError\)"
)
class WeighsByDelta(Good):
    def weigh(self, view, updates):
        norm = updates.deltas["body.weight"].flatten(1).double().norm(dim=1)
        return norm / norm.sum()


@broken("odd_data", "weigh must return 3 finite weights >= 0")
class DividesBySize(Good):
    def weigh(self, view, updates):
        return 1.0 / updates.sizes.double()


@broken("odd_data", "select must not fail, got UserError: equal sizes are not supported")
class NeedsUnequalSizes(Good):
    def select(self, view):
        if len(set(view.sizes.tolist())) == 1 and view.sizes[0] > 0:
            raise UserError("equal sizes are not supported.")
        return super().select(view)


@broken("hyperparameters", r"constructor arguments must never change, \['alpha'\] did")
class Anneals(Good):
    def observe(self, view, updates, weights):
        super().observe(view, updates, weights)
        self.alpha *= 0.9


@broken("plan", "reset must not fail, got ZeroDivisionError")
class ResetFails(Good):
    def reset(self, sizes, num_classes):
        1 / 0  # noqa: B018


@pytest.mark.parametrize(
    ("check", "message", "selector"), BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_broken_selectors_fail(check, message, selector):
    state = np.random.get_state(), torch.get_rng_state(), random.getstate()
    with pytest.raises(AssertionError, match=message) as failure:
        getattr(contract, f"check_{check}")(selector)
    np.random.set_state(state[0])
    torch.set_rng_state(state[1])
    random.setstate(state[2])
    assert "\n" not in str(failure.value)
    if check != "constructor":
        assert str(failure.value).startswith(selector.__name__)


def test_every_check_can_fail():
    assert {f"check_{check}" for check, _, _ in BROKEN} == {check.__name__ for check in CHECKS}


def test_check_selector_reports_the_first_broken_rule():
    with pytest.raises(AssertionError, match="Anneals: constructor arguments must never change"):
        check_selector(Anneals)
