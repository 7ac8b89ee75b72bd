"""Space files: what is written is read back, and what is wrong is said in one sentence."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from spaces import ANY_SPACE, config_of

from flsel.config import RunConfig
from flsel.config.schema import plugins
from flsel.errors import UserError
from flsel_tune.space import auto_space, declared
from flsel_tune.space_checks import check_space
from flsel_tune.space_file import make_space, read_space, to_plain

ROOT = Path(__file__).resolve().parents[2]
SEARCH = ROOT / "configs/search"
HICS = config_of("HiCS")
UNIFORM = {"type": "uniform", "low": 0, "high": 1}


@given(entries=ANY_SPACE)
@settings(max_examples=60)
def test_what_is_written_is_read_back(entries):
    space = make_space(entries, HICS)
    again = make_space(yaml.safe_load(yaml.safe_dump(to_plain(space))), HICS)
    assert again == space or repr(again) == repr(space)  # a choice has NaN as its ends
    assert to_plain(again) == to_plain(space)
    assert set(to_plain(space)) == set(entries)


def test_entries_keep_all_their_fields():
    entries = {
        "a": {"type": "choice", "values": ["auto", 1, None, True], "init": "auto"},
        "b": {"type": "quantised", "low": 0.5, "high": 2.0, "step": 0.5, "when": {"a": ["auto", 1]}},
        "c": [
            {"type": "int", "low": 1, "high": 64, "log": True, "when": {"a": [None]}, "init": 8},
            {"type": "int", "low": 2, "high": 8, "step": 2, "when": {"a": [True]}},
        ],
    }
    assert to_plain(make_space(entries, HICS)) == entries


def test_numbers_are_read_as_numbers(tmp_path):
    """YAML 1.1 takes 1e-4 for a text."""
    (tmp_path / "space.yaml").write_text("selector.temperature: {type: loguniform, low: 1e-4, high: 1}\n")
    (dimension,) = make_space(read_space(str(tmp_path / "space.yaml")), HICS).dimensions
    assert (dimension.low, dimension.high) == (1e-4, 1.0)


def test_a_single_condition_needs_no_list():
    entry = {**UNIFORM, "when": {"selector": "HiCS"}}
    assert make_space({"selector.lam": entry}, HICS).dimensions[0].when == (("selector", ("HiCS",)),)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (3, r"space x must be an entry such as \{type: uniform, low: 0, high: 1\}, got 3\."),
        ({"low": 0, "high": 1}, r"space x must be an entry such as"),
        (None, r"space x must be an entry such as .*, got None\."),
        ({"type": "unifrom", "low": 0, "high": 1}, r"type must be one of .*; did you mean uniform\?"),
        ({"type": None}, r"space x: type must be one of .*, got None\."),
        ({**UNIFORM, "hihg": 2}, r"space x: hihg is not part of uniform.*; did you mean high\?"),
        ({**UNIFORM, "step": 0.1}, r"space x: step is not part of uniform, which has type, when, init, low"),
        ({"type": "uniform", "low": 0}, r"space x: uniform needs high\."),
        ({"type": "quantised", "low": 0, "high": 1}, r"space x: quantised needs step\."),
        ({"type": "choice"}, r"space x: choice needs values\."),
        ({**UNIFORM, "low": 1}, r"space x: low must be below high, got 1 and 1\."),
        ({**UNIFORM, "low": 2}, r"space x: low must be below high, got 2 and 1\."),
        ({**UNIFORM, "low": None}, r"space x: low must be (a number|below high)"),
        ({**UNIFORM, "high": "1"}, r"space x: high must be a number, got '1'\."),
        ({**UNIFORM, "high": True}, r"space x: high must be a number, got true\."),
        ({**UNIFORM, "high": float("inf")}, r"space x: high must be a number, got inf\."),
        ({**UNIFORM, "high": 1e308}, r"high must be a number, from 1e-30 to 1e\+30 in size, got 1e\+308\."),
        ({**UNIFORM, "type": "loguniform"}, r"space x: low must be above 0 on a logarithmic scale, got 0\."),
        ({**UNIFORM, "type": "int", "log": True}, r"low must be above 0 on a logarithmic scale, got 0\."),
        ({**UNIFORM, "type": "int", "log": "yes"}, r"space x: log must be true or false, got 'yes'\."),
        ({**UNIFORM, "type": "int", "high": 1.5}, r"low, high and step must be whole numbers for type int\."),
        ({"type": "int", "low": 0, "high": 9, "step": 1.5}, r"must be whole numbers for type int\."),
        ({"type": "int", "low": 1, "high": 9, "step": 2, "log": True}, r"step and log exclude one another\."),
        ({"type": "int", "low": 1, "high": 9, "step": 0}, r"step must be above 0 and at most high - low"),
        ({"type": "quantised", "low": 0, "high": 1, "step": 2}, r"step must be above 0 and at most high"),
        (
            {"type": "quantised", "low": 0, "high": 1, "step": 0.35},
            r"space x: high must be low and a number of steps, got 1; write 0\.7\.",
        ),
        ({"type": "int", "low": 1, "high": 10, "step": 4}, r"a number of steps, got 10; write 9\."),
        ({**UNIFORM, "init": 2}, r"space x: init must be one of the values searched over, got 2\."),
        ({"type": "int", "low": 1, "high": 9, "init": 2.5}, r"init must be one of the values.*, got 2\.5\."),
        ({"type": "choice", "values": []}, r"space x: values must be a list of numbers, texts.*, got \[\]\."),
        ({"type": "choice", "values": [[1, 2]]}, r"space x: values must be a list of numbers, texts"),
        ({"type": "choice", "values": {"a": 1}}, r"space x: values must be a list of numbers, texts"),
        ({"type": "choice", "values": [1, 1]}, r"space x: values must differ from one another, got \[1, 1\]"),
        ({"type": "choice", "values": ["a"], "init": "b"}, r"init must be one of the values.*, got 'b'\."),
        ({**UNIFORM, "when": "HiCS"}, r"space x: when must be a mapping such as \{selector: HiCS\}"),
        ({**UNIFORM, "when": {"selector": []}}, r"space x: when\.selector must be a list of numbers"),
        ({**UNIFORM, "when": {"x": 1}}, r"space x depends on itself through its `when`\."),
        (
            {**UNIFORM, "when": {"selector": ["FedCor", "PowD"]}},
            r"nothing to search: its `when` asks for selector FedCor or PowD, and the config has HiCS\.",
        ),
        ({"type": ["int"], "low": 0, "high": 1}, r"space x: type must be one of .*, got \['int'\]"),
        ([UNIFORM, UNIFORM], r"space x must have entries whose conditions exclude one another\."),
        (
            [{**UNIFORM, "when": {"clients_per_round": 2}}, {**UNIFORM, "when": {"rounds": 5}}],
            r"space x must have entries whose conditions exclude one another\.",
        ),
        ([], r"space must have at least one setting to search over\."),
    ],
)  # fmt: skip
def test_a_malformed_entry_is_one_sentence(entry, said):
    with pytest.raises(UserError, match=said) as caught:
        make_space({"x": entry}, HICS)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count(". ") == 0


def test_a_condition_that_never_holds_is_refused():
    entries = {
        "selector": {"type": "choice", "values": ["HiCS", "FedCor"]},
        "selector.lam": {**UNIFORM, "when": {"selector": ["HiCS", "HiSC"]}},
    }
    with pytest.raises(UserError, match=r"lam: when\.selector must be one of the values.*, got 'HiSC'\."):
        make_space(entries, HICS)


def test_a_setting_that_is_named_in_two_ways_is_one():
    whole = {**UNIFORM, "when": {"selector.init_args.gamma0": 4.0, "selector.class_path": "HiCS"}}
    (one,) = make_space({"selector.init_args.lam": whole}, HICS).dimensions
    assert (one.key, one.when) == ("selector.lam", (("selector.gamma0", (4.0,)), ("selector", ("HiCS",))))
    with pytest.raises(UserError, match=r"space selector\.lam must have entries whose conditions exclude"):
        make_space({"selector.lam": UNIFORM, "selector.init_args.lam": UNIFORM}, HICS)
    names = {"type": "choice", "values": ["HiCS", "flsel.selectors.HiCS"]}
    with pytest.raises(UserError, match=r"space selector: values must differ from one another"):
        make_space({"selector": names}, HICS)


@pytest.mark.parametrize("entries", [{}, {"x": []}])
def test_an_empty_space_is_refused(entries):
    with pytest.raises(UserError, match="space must have at least one setting to search over"):
        make_space(entries, HICS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"space .*space\.yaml: there is no such file\."),
        ("a: [", r"space .*space\.yaml: the file is not valid YAML: line \d"),
        ("- a\n", r"space .*space\.yaml: the file must be a mapping of settings.*, got a list\."),
        ("", r"space .*space\.yaml: the file must be a mapping of settings.*, got nothing\."),
    ],
)
def test_an_unreadable_file_is_one_sentence(tmp_path, text, said):
    if text is not None:
        (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        read_space(str(tmp_path / "space.yaml"))


def parses(selector):
    return lambda changes: RunConfig.from_dict({"selector": {"class_path": selector}}, changes)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"selector.lamb": UNIFORM}, r"selector\.lamb at 0\.0: .*; did you mean lam\?"),
        ({"selectr.lam": UNIFORM}, r"space selectr\.lam at 0\.0: there is no setting selectr\.lam"),
        (
            {"selector.lam": {**UNIFORM, "high": 2}},
            r"space selector\.lam at 2\.0: .*lam must be a number in \[0, 1\]",
        ),
        (
            {"clients_per_round": {"type": "int", "low": 0, "high": 3}},
            r"space clients_per_round at 0: clients_per_round must be a whole number >= 1, got 0",
        ),
        (
            {"clients_per_round": {**UNIFORM, "high": 1.5}},
            r"space clients_per_round at 0\.0: clients_per_round must be a whole number",
        ),
        ({"selector": {"type": "choice", "values": ["HiCS", "FedCorr"]}}, r"FedCorr: .*did you mean FedCor"),
        ({"local.steps": {"type": "choice", "values": [3, None]}, "local.epochs": UNIFORM}, "local.epochs"),
        (
            {
                "clients_per_round": {**UNIFORM, "type": "int"},
                "selector.d": {**UNIFORM, "when": {"selector": "PoWD"}},
            },
            r"space clients_per_round at 0|selector\.d at 0\.0: selector has no class PoWD; did you mean",
        ),
    ],
)
def test_keys_and_values_that_the_settings_refuse(entries, said):
    with pytest.raises(UserError, match=said):
        check_space(make_space(entries, HICS), parses("HiCS"))


def test_a_misspelt_condition_on_the_config_is_refused():
    entries = {
        "selector.lam": UNIFORM,
        "selector.d": {"type": "int", "low": 6, "high": 9, "when": {"selector": "PoWD"}},
    }
    with pytest.raises(UserError, match=r"selector\.d at 6: selector has no class PoWD; did you mean"):
        check_space(make_space(entries, HICS), parses("HiCS"))


def test_dimensions_of_other_classes_are_checked_as_if_these_were_chosen():
    """A file for several selectors serves a config that has one of them."""
    entries = {
        "selector.lam": {**UNIFORM, "when": {"selector": "HiCS"}},
        "selector.d": {"type": "int", "low": 6, "high": 9, "when": {"selector": "PowD"}},
    }
    asked = []
    check_space(make_space(entries, HICS), asked.append)
    assert asked == [
        {"selector.lam": 0.0},
        {"selector.lam": 1.0},
        {"selector": "PowD", "selector.d": 6},
        {"selector": "PowD", "selector.d": 9},
    ]
    check_space(make_space(entries, HICS), parses("HiCS"))


def test_init_and_all_choices_are_checked():
    asked = []
    entries = {
        "a": {"type": "choice", "values": ["x", None, False]},
        "b": {"type": "uniform", "low": 0, "high": 1, "init": 0.25, "when": {"a": ["x", False]}},
    }
    check_space(make_space(entries, HICS), asked.append)
    assert asked == [
        {"a": "x"}, {"a": None}, {"a": False},
        {"a": "x", "b": 0.0}, {"a": "x", "b": 1.0}, {"a": "x", "b": 0.25},
    ]  # fmt: skip


# --- the shipped files ---

OF_SELECTORS = {
    "afl": "AFL",
    "clustered": "ClusteredSampling",
    "divfl": "DivFL",
    "e3cs": "E3CS",
    "f3ast": "F3AST",
    "fedau": "FedAU",
    "fedcat": "FedCat",
    "fedcbs": "FedCBS",
    "fedcor": "FedCor",
    "fedcs": "FedCS",
    "fedgs": "FedGS",
    "fedpns": "FedPNS",
    "gradnorm": "GradientNorm",
    "greedyfed": "GreedyFed",
    "haccs": "HACCS",
    "hics": "HiCS",
    "hics_oracle": "HiCSOracle",
    "kvib": "KVib",
    "oort": "Oort",
    "optimal_sampling": "OptimalSampling",
    "osmd": "OSMD",
    "pisces": "Pisces",
    "powd": "PowD",
    "tifl": "TiFL",
    "ucbcs": "UCBCS",
}
ALL = [*OF_SELECTORS, "selectors", "local", "fedgen"]


@cache
def base(name):
    """A config that a shipped file is for."""
    if name == "local":
        return RunConfig.from_file(ROOT / "configs/runs/quickstart.yaml").to_dict()
    if name == "fedgen":
        return RunConfig.from_dict({}, {"objective": "FedGen"}).to_dict()
    return config_of(OF_SELECTORS.get(name, "Uniform"))


def shipped(name):
    return make_space(read_space(str(SEARCH / f"{name}.yaml")), base(name))


def test_every_shipped_file_is_tested():
    assert {path.stem for path in SEARCH.glob("*.yaml")} == set(ALL)
    assert all(path.read_text().startswith("# ") for path in SEARCH.glob("*.yaml"))


@pytest.mark.parametrize("end", [0, -1])
@pytest.mark.parametrize("name", [*OF_SELECTORS, "local", "fedgen"])
def test_a_shipped_file_fits_its_config(name, end):
    """All smallest values at once, and all largest ones; a choice's first and last."""
    space = shipped(name)
    changes = {d.key: d.ends()[end] for d in space.dimensions}
    for dimension in space.dimensions:
        changes |= space.conditions(dimension)
    described = (
        base(name) if name in ("local", "fedgen") else {"selector": {"class_path": OF_SELECTORS[name]}}
    )
    RunConfig.from_dict(described, changes)


@pytest.mark.parametrize("name", ALL)
def test_a_shipped_files_first_points_are_defaults(name):
    points = list(shipped(name).first_points(base(name)))
    known = [point for point, kept in points if not kept]
    # PowD's own d is null: the paper's 2 K, whatever K is.
    assert len(known) == {"selectors": 7, "local": 2, "powd": 0}.get(name, 1)
    assert points[0][1] == (["selector.d"] if name == "powd" else [])
    # The class's own value, a null or auto, comes after the paper's.
    own = [kept for _, kept in points if kept]
    expected = {
        "fedgs": [["selector.epsilon", "selector.sigma2"]],
        "gradnorm": [["selector.keep"]],
        "kvib": [["selector.theta"]],
        "hics": [["selector.temperature"]],
        "optimal_sampling": [["selector.mean"]],
        "powd": [["selector.d"]],
        "selectors": [["selector.d [selector=PowD]"]],
        "ucbcs": [["selector.sigma"]],
    }
    assert own == expected.get(name, [])


def test_the_first_points_of_all_selectors_fit():
    for point, _ in shipped("selectors").first_points(base("selectors")):
        made = RunConfig.from_dict({}, {name.partition(" [")[0]: value for name, value in point.items()})
        assert type(made.selector).__name__ == point["selector"]


@pytest.mark.parametrize("name", [*OF_SELECTORS, "fedgen"])
def test_a_shipped_file_has_the_ranges_that_its_class_declares(name):
    group = "objective" if name == "fedgen" else "selector"
    made = plugins()[group].find(group, OF_SELECTORS.get(name, "FedGen"))
    space = {d.key.removeprefix(f"{group}."): d for d in shipped(name).dimensions}
    assert set(space) <= set(inspect.signature(made).parameters)
    for argument, (range_, whole) in declared(made).items():
        dimension = space[argument]
        assert (dimension.low, dimension.high) == (range_.low, range_.high)
        assert dimension.kind == ("int" if whole else "loguniform" if range_.log else "uniform")


def test_a_range_ends_where_the_run_does():
    described = {**config_of("PowD"), "clients": 20, "clients_per_round": 4}
    (candidates,) = make_space(auto_space(described), described).dimensions
    assert (candidates.low, candidates.high, candidates.log) == (4, 20, True)
    assert to_plain(make_space(auto_space(described), described))["selector.d"]["low"] == 4
    ends = {"selector.d": {"type": "int", "low": "clients_per_round", "high": "clients"}}
    with pytest.raises(UserError, match=r"high is the run's clients, which must be a number, got null\."):
        make_space(ends, described | {"clients": None})
    with pytest.raises(UserError, match=r"low must be below high, got 20 and 20\."):
        make_space(ends, described | {"clients_per_round": 20})
    odd = {"selector.d": {"type": "int", "low": "selector", "high": "klients"}}
    with pytest.raises(UserError, match=r"low is the run's selector, which must be a number"):
        make_space(odd, described)
    odd["selector.d"]["low"] = 1
    with pytest.raises(UserError, match=r"high must be a number, got 'klients'\."):
        make_space(odd, described)


def test_the_papers_temperature_is_tried_first():
    points = [next(shipped("hics").first_points(HICS))[0]["selector.temperature"]]
    points += [next(shipped("selectors").first_points(HICS))[0]["selector.temperature [selector=HiCS]"]]
    assert points == [0.0025, 0.0025]


def test_searching_over_selectors_repeats_the_selectors_own_ranges():
    own = {name: {d.key: d for d in shipped(name).dimensions} for name in OF_SELECTORS}
    by_class = {made: own[name] for name, made in OF_SELECTORS.items()}
    conditional = [d for d in shipped("selectors").dimensions if d.when]
    assert {made for d in conditional for made in dict(d.when)["selector"]} < set(by_class)
    for dimension in conditional:
        ((_, (made,)),) = dimension.when
        same = by_class[made][dimension.key]
        assert (same.kind, same.ends(), same.init) == (dimension.kind, dimension.ends(), dimension.init)


@pytest.mark.parametrize(
    "key", ["seed", "rounds", "evaluation.every", "data.validation", "output.dir", "threads"]
)
def test_what_a_sweep_sets_itself_is_not_searched(key):
    with pytest.raises(UserError, match=f"space {key} cannot be searched over: "):
        make_space({key: {"type": "int", "low": 1, "high": 9}}, HICS)


def test_the_ends_of_a_condition_of_a_condition_are_checked_where_it_holds():
    entries = {
        "selector": {"type": "choice", "values": ["HiCS", "DivFL"]},
        "selector.optimizer": {
            "type": "choice", "values": ["lazy", "stochastic"], "when": {"selector": "DivFL"},
        },
        "selector.rho": {
            "type": "uniform", "low": 0.1, "high": 1, "when": {"selector.optimizer": "stochastic"},
        },
    }  # fmt: skip
    space = make_space(entries, HICS)
    check_space(space, lambda changes: RunConfig.from_dict(HICS, changes))
    (rho,) = (d for d in space.dimensions if d.key == "selector.rho")
    assert space.conditions(rho) == {"selector": "DivFL", "selector.optimizer": "stochastic"}
