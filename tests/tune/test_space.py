"""Search spaces: values lie where they should, conditions hold, and known points come first."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spaces import ANY_SPACE, config_of

from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.selector import Plan, Range, Selector, Tunable
from flsel.selectors.fedcat import FedCat
from flsel.selectors.hics import HiCS
from flsel_tune.space import KEPT, Dimension, auto_space, declared, lookup, named, ordered
from flsel_tune.space_checks import check_space
from flsel_tune.space_file import make_space, to_plain

HICS = config_of("HiCS")
OWN = f"{__name__}.Wide"
BOTH = {
    "selector": {"type": "choice", "values": ["HiCS", "FedCor", "FedCat"]},
    "selector.lam": [
        {"type": "uniform", "low": 0, "high": 1, "when": {"selector": "HiCS"}},
        {"type": "int", "low": 1, "high": 10, "when": {"selector": "FedCat"}},
    ],
    "selector.temperature": {"type": "loguniform", "low": 1e-4, "high": 1, "when": {"selector": "HiCS"}},
    "selector.beta": {"type": "uniform", "low": 0.5, "high": 1, "when": {"selector": "FedCor"}},
    "local.batch_size": {"type": "choice", "values": [5, 10]},
}


@dataclass
class Wide(Selector):
    width: Annotated[int, Range(1), Tunable(1, 1000, log=True)] = 3
    most: Annotated[int | None, Range(1), Tunable(1, 9)] = None

    def select(self, view):
        return Plan.star(view.pool[: view.clients_per_round])


def asked(space, seed=0, **attributes):
    """A trial of a random study, and what the space suggests to it."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    trial = study.ask()
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
    return space(trial)


def enqueued(space, point, kept):
    """What a space suggests to a trial that is given a point."""
    study = optuna.create_study()
    study.enqueue_trial(point, user_attrs={KEPT: kept})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return space(study.ask())


@given(entries=ANY_SPACE, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_suggestions_are_values_of_their_dimensions_and_no_others(entries, seed):
    space = make_space(entries, HICS)
    suggested = asked(space, seed)
    existing = [d for d in space.dimensions if d.applies(dict(space.fixed) | suggested)]
    assert [d.key for d in existing] == list(suggested)
    for dimension in existing:
        value = suggested[dimension.key]
        assert dimension.holds(value)
        if dimension.kind == "int":
            assert type(value) is int
        if dimension.kind == "choice":
            assert any(value is item or value == item for item in dimension.values)
        else:
            assert dimension.low <= value <= dimension.high


@given(entries=ANY_SPACE)
@settings(max_examples=60)
def test_grid_values_and_ends_are_values(entries):
    for dimension in make_space(entries, HICS).dimensions:
        assert all(dimension.holds(value) for value in dimension.ends())
        if dimension.kind in ("uniform", "loguniform") or dimension.log:
            with pytest.raises(UserError, match="must be a choice, int or quantised for the sampler grid"):
                dimension.grid()
        else:
            values = dimension.grid()
            assert all(dimension.holds(value) for value in values)
            assert len(set(map(repr, values))) == len(values)
            if dimension.kind != "choice":
                assert [values[0], values[-1]] == pytest.approx(dimension.ends())
                step = dimension.step or 1
                assert all(b - a == pytest.approx(step) for a, b in pairwise(values))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_conditions_hold_for_several_entries_of_a_key(seed):
    suggested = asked(make_space(BOTH, HICS), seed)
    expected = {
        "HiCS": {"selector", "local.batch_size", "selector.lam", "selector.temperature"},
        "FedCor": {"selector", "local.batch_size", "selector.beta"},
        "FedCat": {"selector", "local.batch_size", "selector.lam"},
    }[suggested["selector"]]
    assert set(suggested) == expected
    if suggested["selector"] == "FedCat":
        assert type(suggested["selector.lam"]) is int
        assert 1 <= suggested["selector.lam"] <= 10


def test_a_class_comes_before_its_arguments():
    space = make_space(dict(reversed(BOTH.items())), HICS)
    for seed in range(8):
        keys = list(asked(space, seed))
        assert all(keys.index("selector") < keys.index(k) for k in keys if k.startswith("selector."))


@pytest.mark.parametrize(
    ("kind", "values", "others"),
    [
        ({"kind": "uniform", "low": 0.0, "high": 1.0}, [0, 0.0, 0.3, 1], [-1e-9, 1.1, "0.5", None, True]),
        ({"kind": "loguniform", "low": 0.1, "high": 1.0}, [0.1, 1], [0.0, math.nan, math.inf]),
        ({"kind": "int", "low": 1.0, "high": 9.0}, [1, 9, 5.0], [0, 10, 1.5, True, "1", None]),
        ({"kind": "int", "low": 1.0, "high": 9.0, "step": 4.0}, [1, 5, 9], [2, 4, 8]),
        ({"kind": "int", "low": 1.0, "high": 9.0, "log": True}, [1, 2, 9], [2.5]),
        ({"kind": "quantised", "low": 0.1, "high": 0.7, "step": 0.2}, [0.1, 0.3, 0.5, 0.7], [0.2, 0.4]),
        ({"kind": "choice", "values": ("auto", 1, True)}, ["auto", 1, True], [1.0, False, "1", None]),
        ({"kind": "choice", "values": (None, 0.5)}, [None, 0.5], ["null", 0]),
    ],
)
def test_what_a_dimension_holds(kind, values, others):
    dimension = Dimension(key="x", **kind)
    assert [dimension.holds(value) for value in values] == [True] * len(values)
    assert [dimension.holds(value) for value in others] == [False] * len(others)


def test_first_points_are_the_configs_own_and_one_for_each_other_class():
    config = config_of("HiCS", temperature=0.01, lam=0.3)
    assert list(make_space(BOTH, config).first_points(config)) == [
        (
            {
                "selector": "HiCS",
                "local.batch_size": 10,
                "selector.temperature [selector=HiCS]": 0.01,
                "selector.lam [selector=HiCS]": 0.3,
            },
            [],
        ),
        ({"selector": "FedCor", "local.batch_size": 10, "selector.beta [selector=FedCor]": 0.95}, []),
        ({"selector": "FedCat", "local.batch_size": 10, "selector.lam [selector=FedCat]": 1}, []),
    ]


def test_values_that_a_range_cannot_hold_are_left_as_the_config_has_them():
    space = make_space(BOTH, HICS)
    (point, kept), *_ = space.first_points(HICS)
    assert HICS["selector"]["init_args"]["temperature"] == "auto"
    assert kept == ["selector.temperature [selector=HiCS]"]
    suggested = enqueued(space, point, kept)
    assert suggested == {"selector": "HiCS", "local.batch_size": 10, "selector.lam": 0.1}


def test_null_is_left_as_the_config_has_it():
    config = config_of("PowD")
    space = make_space({"selector.d": {"type": "int", "low": 6, "high": 30}}, config)
    assert list(space.first_points(config)) == [({}, ["selector.d"])]
    assert enqueued(space, {}, ["selector.d"]) == {}


def test_a_value_outside_the_range_is_left_as_the_config_has_it():
    config = config_of("HiCS", lam=0.9)
    space = make_space({"selector.lam": {"type": "uniform", "low": 0, "high": 0.5}}, config)
    assert list(space.first_points(config)) == [({}, ["selector.lam"])]


def test_a_class_that_is_not_searched_over_is_left_with_its_arguments():
    config = config_of("Uniform")
    points = list(make_space(BOTH, config).first_points(config))
    assert points[0] == ({"local.batch_size": 10}, ["selector"])
    assert [point["selector"] for point, _ in points[1:]] == ["HiCS", "FedCor", "FedCat"]
    assert enqueued(make_space(BOTH, config), *points[0]) == {"local.batch_size": 10}


def test_init_is_tried_first_and_the_configs_own_value_after_it():
    entry = {"type": "loguniform", "low": 1e-4, "high": 0.1, "init": 0.0025}
    space = make_space({"selector.temperature": entry, "local.batch_size": BOTH["local.batch_size"]}, HICS)
    own = {"local.batch_size": 10}
    first, second = space.first_points(HICS)
    assert enqueued(space, *first) == {"selector.temperature": 0.0025, **own}
    assert second == (own, ["selector.temperature"])  # auto, which the range does not hold


def test_the_arguments_of_a_class_that_init_names_are_its_defaults():
    entries = {
        "selector": {"type": "choice", "values": ["HiCS", "FedCat"], "init": "FedCat"},
        "selector.lam": {"type": "uniform", "low": 0, "high": 1},
    }
    described = config_of("HiCS", lam=0.3)
    points = [point for point, _ in make_space(entries, described).first_points(described)]
    assert points == [{"selector": "FedCat", "selector.lam": 1.0}, {"selector": "HiCS", "selector.lam": 0.3}]


def test_null_is_a_value_and_not_what_is_missing():
    made = Dimension("x", "uniform", 0, 1, when=(("selector.num_clusters", (None,)),))
    assert made.applies({"selector.num_clusters": None})
    assert not made.applies({})


def test_all_first_points_are_suggested_as_they_are():
    for point, kept in make_space(BOTH, HICS).first_points(HICS):
        suggested = enqueued(make_space(BOTH, HICS), point, kept)
        assert {key: suggested[key.partition(" [")[0]] for key in point} == point


def test_conditions_may_refer_to_the_config():
    entry = {
        "type": "uniform",
        "low": 0.5,
        "high": 1,
        "when": {"selector": ["FedCor", "HiCS"], "clients_per_round": 6},
    }
    space = make_space({"selector.lam": entry}, HICS)
    assert space.fixed == (("clients_per_round", 6), ("selector", "HiCS"))
    assert list(asked(space)) == ["selector.lam"]


def test_a_condition_of_a_condition():
    entries = {
        "objective.mu": {"type": "uniform", "low": 0, "high": 1, "when": {"objective": "FedProx"}},
        "objective": {"type": "choice", "values": ["FedAvg", "FedProx"], "when": {"selector": "HiCS"}},
        "selector": {"type": "choice", "values": ["HiCS", "FedCor"]},
    }
    space = make_space(entries, HICS)
    assert [d.key for d in space.dimensions] == ["selector", "objective", "objective.mu"]
    found = [set(asked(space, seed)) for seed in range(30)]
    assert {"selector"} in found
    assert {"selector", "objective"} in found
    assert {"selector", "objective", "objective.mu"} in found


def chain(*links):
    """Dimensions, each depending on those named after it."""
    return [
        Dimension(key=key, kind="choice", values=(1, 2), when=tuple((other, (1,)) for other in needed))
        for key, *needed in links
    ]


@given(st.permutations(range(6)))
def test_ordered_puts_what_others_depend_on_first(order):
    links = [("a",), ("b", "a"), ("c", "b", "a"), ("d", "c"), ("e",), ("f", "e", "d")]
    placed = [d.key for d in ordered(chain(*(links[n] for n in order)))]
    assert sorted(placed) == list("abcdef")
    for key, *needed in links:
        assert all(placed.index(other) < placed.index(key) for other in needed)


@pytest.mark.parametrize("links", [[("a", "a")], [("a", "b"), ("b", "c"), ("c", "a"), ("d",)]])
def test_ordered_refuses_circles(links):
    with pytest.raises(UserError, match=r"space a depends on itself through its `when`\."):
        ordered(chain(*links))


def test_the_selectors_own_ranges():
    assert declared(HiCS) == {
        "temperature": (Tunable(1e-4, 1e-1, log=True), False),
        "lam": (Tunable(0.0, 1.0), False),
        "gamma0": (Tunable(0.0, 8.0), False),
    }
    assert declared(FedCat)["lam"] == (Tunable(1, 10), True)
    assert auto_space(HICS) == {
        "selector.temperature": {"type": "loguniform", "low": 1e-4, "high": 1e-1, "init": 0.0025},
        "selector.lam": {"type": "uniform", "low": 0.0, "high": 1.0},
        "selector.gamma0": {"type": "uniform", "low": 0.0, "high": 8.0},
    }
    assert auto_space(config_of("FedCat"))["selector.lam"] == {"type": "int", "low": 1, "high": 10}
    assert auto_space(config_of(OWN)) == {
        "selector.width": {"type": "int", "low": 1, "high": 1000, "log": True},
        "selector.most": {"type": "int", "low": 1, "high": 9},
    }
    assert list(to_plain(make_space(auto_space(HICS), HICS))) == list(auto_space(HICS))


def test_a_selector_without_ranges_needs_a_file():
    with pytest.raises(UserError, match=r"Uniform declares no range; name a file, --space FILE\."):
        auto_space(config_of("Uniform"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clients_per_round", 6),
        ("data.name", "synthetic"),
        ("selector.lam", 0.1),
        ("selector.init_args.lam", 0.1),
        ("selector.class_path", "flsel.selectors.hics.HiCS"),
        ("selector.beta", None),
        ("nothing.at.all", None),
        ("clients_per_round.of", None),
    ],
)
def test_lookup(key, value):
    assert lookup(HICS, key) == value


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("selector", {"class_path": "flsel.selectors.hics.HiCS", "init_args": {}}, "HiCS"),
        ("selector", "flsel.selectors.HiCS", "HiCS"),
        ("selector", "HiCS", "HiCS"),
        ("selector", OWN, OWN),
        ("selector", "no.such.HiCS", "no.such.HiCS"),
        ("local.optimizer", "torch.optim.SGD", "SGD"),
        ("local.lr_schedule", None, None),
        ("data.name", "my_data.blobs", "my_data.blobs"),
        ("clients_per_round", 3, 3),
    ],
)
def test_the_name_of_a_class(key, value, name):
    assert named(key, value) == name


def test_a_class_of_ones_own_is_known_by_its_import_path():
    entries = {
        "selector": {"type": "choice", "values": ["HiCS", OWN]},
        "selector.width": {"type": "int", "low": 1, "high": 99, "when": {"selector": OWN}},
    }
    config = config_of(OWN, width=7)
    assert list(make_space(entries, config).first_points(config)) == [
        ({"selector": OWN, f"selector.width [selector={OWN}]": 7}, []),
        ({"selector": "HiCS"}, []),
    ]
    del entries["selector"]
    assert list(make_space(entries, config).first_points(config)) == [
        ({f"selector.width [selector={OWN}]": 7}, [])
    ]


def test_an_argument_without_a_default_is_drawn_where_its_class_is_first_tried():
    entries = {
        "local.lr_schedule": {"type": "choice", "values": [None, "StepLR"]},
        "local.lr_schedule.step_size": {
            "type": "int", "low": 2, "high": 9, "when": {"local.lr_schedule": "StepLR"},
        },
    }  # fmt: skip
    space = make_space(entries, HICS)
    check_space(space, lambda changes: RunConfig.from_dict(HICS, changes))
    points = list(space.first_points(HICS))
    assert points[1] == ({"local.lr_schedule": "StepLR"}, [])
    assert 2 <= enqueued(space, *points[1])["local.lr_schedule.step_size"] <= 9
