"""Arguments are declared once; the check, its sentence and the words for a range follow from that."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from flsel.arguments import Argument, Checked, Range, alternatives, arguments, check_arguments, rule, shown
from flsel.availability import Availability, Intervals
from flsel.config.plugin import Plugin
from flsel.devices import Devices, Recorded
from flsel.errors import UserError
from flsel.local.completeness import Completeness
from flsel.objectives import Objective
from flsel.partition import BySize, Dirichlet, FedPNSMix, FromFile, HicsDirichlet, Partition
from flsel.selector import Selector, Tunable
from flsel.selectors.clustered import ClusteredSampling
from flsel.selectors.fedgs import FedGS
from flsel.selectors.hics import HiCS
from flsel.selectors.uniform import Uniform
from flsel.updates import Aggregate, UpdateStep

CLASSES = {
    name: made
    for base in (Selector, Objective, Partition, Availability, Completeness, Devices, UpdateStep, Aggregate)
    for name, made in Plugin(base).classes().items()
}
DECLARED = [(made, argument) for made in CLASSES.values() for argument in arguments(made).values()]
NUMBERS = [(made, argument) for made, argument in DECLARED if argument.range is not None]
NAMES = [f"{made.__name__}.{argument.name}" for made, argument in NUMBERS]

REQUIRED = {Intervals: {"path": "record.csv"}}

ANY = "a finite number >= 0"
POSITIVE = "a finite number > 0"
SHARE = "a number in [0, 1]"
PART = "a number in (0, 1]"
BELOW_ONE = "a number in [0, 1)"
COUNT = "a whole number >= 1"
FROM_ZERO = "a whole number >= 0"

RULES = {
    "Clip": {"norm": POSITIVE},
    "GaussianNoise": {"multiplier": POSITIVE, "delta": "a number in (0, 1) or null"},
    "TopK": {"share": PART},
    "Quantise": {"bits": "a whole number in [2, 16]"},
    "Corrupt": {"share": SHARE, "noise": SHARE, "scale": POSITIVE},
    "PDU": {"p": SHARE},
    "ADU": {"least": COUNT},
    "ASU": {"least": COUNT},
    "TrimmedMean": {"share": "a number in [0, 0.5)"},
    "Krum": {"corrupt": FROM_ZERO},
    "MultiKrum": {"corrupt": FROM_ZERO, "keep": f"{COUNT} or null"},
    "PowD": {"d": f"{COUNT} or null"},
    "AFL": {"alpha1": BELOW_ONE, "alpha2": ANY, "alpha3": SHARE},
    "ClusteredSampling": {"warm_up": FROM_ZERO, "sketch": f"{COUNT} or null"},
    "DivFL": {"rho": PART, "sketch": f"{COUNT} or null"},
    "GradientNorm": {"keep": f"{COUNT} or null"},
    "HiCS": {
        "temperature": f"{POSITIVE} or auto",
        "lam": SHARE,
        "gamma0": ANY,
        "num_clusters": f"{COUNT} or null",
        "tau": POSITIVE,
        "clustered_from_variance": "a finite number >= 0 or null",
        "fade": PART,
    },
    "HiCSOracle": {"lam": SHARE, "gamma0": ANY, "num_clusters": f"{COUNT} or null"},
    "FedCor": {
        "beta": PART,
        "delta_t": COUNT,
        "warmup": FROM_ZERO,
        "d": COUNT,
        "theta": PART,
        "noise": POSITIVE,
        "samples": COUNT,
        "history": f"{FROM_ZERO} or null",
        "lr": POSITIVE,
        "steps": COUNT,
    },
    "FedGS": {
        "alpha": ANY,
        "epsilon": f"{BELOW_ONE} or auto",
        "sigma2": f"{POSITIVE} or auto",
        "gap": "a finite number >= 1",
        "restarts": FROM_ZERO,
        "moves": f"{FROM_ZERO} or null",
    },
    "FedPNS": {"alpha": POSITIVE, "beta": SHARE, "v": PART, "p_min": SHARE},
    "FedCat": {"lam": COUNT, "epsilon": SHARE},
    "OptimalSampling": {"mean": f"{POSITIVE} or null", "iterations": COUNT},
    "Pisces": {
        "discount": ANY,
        "exploration": SHARE,
        "exploration_decay": PART,
        "exploration_floor": SHARE,
        "window": COUNT,
    },
    "UCBCS": {"gamma": SHARE, "sigma": f"{ANY} or auto"},
    "FedCBS": {"lam": ANY, "beta": ANY},
    "GreedyFed": {
        "memory": f"{BELOW_ONE} or null",
        "explore": ANY,
        "scale": ANY,
        "exact": "a whole number in [0, 12]",
        "sweeps": COUNT,
        "truncation": ANY,
    },
    "F3AST": {"beta": "a number in (0, 1)"},
    "E3CS": {"quota": SHARE, "start": SHARE, "eta": ANY},
    "KVib": {"gamma": f"{POSITIVE} or auto", "theta": f"{PART} or auto"},
    "OSMD": {"alpha": "a number in (0, 1)", "eta": f"{POSITIVE} or null"},
    "FedAU": {"cutoff": COUNT},
    "HACCS": {"eps": POSITIVE, "rho": SHARE, "privacy": f"{POSITIVE} or null"},
    "FedProx": {"mu": ANY},
    "FedDyn": {"alpha": POSITIVE},
    "FedGen": {
        "noise": COUNT,
        "hidden": COUNT,
        "weight": ANY,
        "latent": ANY,
        "decay": SHARE,
        "batch": "a whole number >= 2",
        "start": FROM_ZERO,
        "steps": FROM_ZERO,
        "lr": POSITIVE,
        "lr_decay": SHARE,
        "weight_decay": ANY,
        "diversity": ANY,
    },
    "MOON": {"mu": ANY, "temperature": POSITIVE},
    "BySize": {"sigma": ANY, "sizes": "a list of one or more numbers > 0 or null"},
    "Shards": {"per_client": COUNT},
    "Dirichlet": {"alpha": POSITIVE, "sizes": "a list of one or more numbers > 0"},
    "DirichletPerClass": {"alpha": POSITIVE, "min_size": FROM_ZERO},
    "HicsDirichlet": {"alphas": "a list of one or more numbers > 0"},
    "FedCorDirichlet": {"alpha": POSITIVE},
    "FedGSLogNormal": {"alpha": POSITIVE},
    "LabelLimited": {"labels_per_client": COUNT},
    "FedGenDirichlet": {"alpha": POSITIVE, "share": PART, "min_size": FROM_ZERO},
    "FedPNSMix": {"iid_share": SHARE, "labels_per_client": COUNT, "samples": COUNT},
    "MDF": {"beta": BELOW_ONE},
    "LDF": {"beta": BELOW_ONE},
    "YMF": {"beta": BELOW_ONE},
    "YFF": {"beta": BELOW_ONE},
    "HOMO": {"beta": BELOW_ONE},
    "YC": {"beta": BELOW_ONE, "period": f"{COUNT} or null"},
    "LN": {"beta": BELOW_ONE},
    "SLN": {"beta": BELOW_ONE, "period": COUNT},
    "Oort": {
        "exploration": PART,
        "exploration_decay": PART,
        "exploration_floor": SHARE,
        "penalty": ANY,
        "window": COUNT,
        "percentile": "a number in (0, 100]",
        "percentile_step": "a number in [0, 100]",
        "cutoff": PART,
        "clip": PART,
        "most_turns": f"{COUNT} or null",
    },
    "TiFL": {
        "tiers": COUNT,
        "interval": COUNT,
        "credits": "a list of one or more whole numbers >= 0 or null",
    },
    "FedCS": {"deadline": POSITIVE, "candidates": f"{COUNT} or null", "overhead": ANY},
    "Equal": {"seconds": POSITIVE, "down": POSITIVE, "up": POSITIVE, "delay": ANY, "jitter": ANY},
    "LogNormal": {
        "median": POSITIVE,
        "sigma": "a number in [0, 10]",
        "down": POSITIVE,
        "up": POSITIVE,
        "sigma_link": "a number in [0, 10]",
        "delay": ANY,
        "jitter": ANY,
        "correlation": "a number in [-1, 1]",
    },
    "Tiers": {
        "shares": "a list of one or more numbers in (0, 1]",
        "factors": "a list of one or more numbers > 0",
        "seconds": POSITIVE,
        "down": POSITIVE,
        "up": POSITIVE,
        "delay": ANY,
        "jitter": ANY,
        "correlation": "a number in [-1, 1]",
    },
    "Phones": {"correlation": "a number in [-1, 1]"},
    "Zipf": {
        "s": "a finite number > 1",
        "unit": POSITIVE,
        "most": "a finite number >= 1",
        "down": POSITIVE,
        "up": POSITIVE,
        "correlation": "a number in [-1, 1]",
    },
    "HalfNormal": {
        "scale": ANY,
        "least": POSITIVE,
        "down": POSITIVE,
        "up": POSITIVE,
        "correlation": "a number in [-1, 1]",
    },
}


def test_the_ranges_are_these():
    found: dict[str, dict[str, str]] = {}
    for made, argument in NUMBERS:
        found.setdefault(made.__name__, {})[argument.name] = argument.rule()
    assert found == RULES


def test_every_number_has_a_range():
    free = [
        f"{made.__name__}.{argument.name}"
        for made, argument in DECLARED
        if argument.range is None and {int, float} & set(alternatives(argument.hint))
    ]
    assert not free


def test_defaults_and_search_ranges_lie_in_the_ranges():
    for made, argument in DECLARED:
        if made in (Recorded, FromFile, Intervals):  # A file has no default.
            continue
        assert argument.default is not MISSING, made
        assert argument.holds(argument.default), (made, argument)
        if argument.tunable is not None:
            tunable = argument.tunable
            assert argument.holds(tunable.low), (made, argument)
            assert argument.holds(tunable.high), (made, argument)
            assert tunable.low < tunable.high
            assert tunable.low > 0 or not tunable.log


@pytest.mark.parametrize(("made", "argument"), NUMBERS, ids=NAMES)
def test_what_is_out_of_range_is_refused(made: Any, argument: Argument):
    listed = get_origin(alternatives(argument.hint)[0]) is tuple
    for value in (*outside(argument.range), math.nan, math.inf, -math.inf, "x", True):
        given = (value,) if listed else value
        with pytest.raises(UserError) as error:
            made(**{argument.name: given})
        assert str(error.value) == f"{argument.name} must be {argument.rule()}, got {shown(given)}."
    if listed:
        with pytest.raises(UserError, match=r"must be a list of one or more (whole )?numbers .* got \[\]"):
            made(**{argument.name: ()})


def outside(within: Range | None) -> list[float]:
    """Numbers on the far side of every bound, and open bounds themselves."""
    assert within is not None
    found = [within.low - 1 if within.low is not None else None, within.above]
    found += [within.high + 1 if within.high is not None else None, within.below]
    return [value for value in found if value is not None]


@pytest.mark.parametrize(
    ("made", "argument"),
    [(m, a) for m, a in DECLARED if any(get_origin(part) is Literal for part in alternatives(a.hint))],
)
def test_a_name_that_is_not_listed_is_refused(made: Any, argument: Argument):
    listed = [name for part in alternatives(argument.hint) for name in get_args(part)]
    with pytest.raises(UserError) as error:
        made(**{**REQUIRED.get(made, {}), argument.name: "xyzzy"})
    assert str(error.value).startswith(f"{argument.name} must be ")
    assert str(error.value).endswith(", got 'xyzzy'.")
    assert all(str(name) in str(error.value) for name in listed)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Uniform("data"),
            "weights must be one of size, equal, partial, scaled, got 'data'.",
        ),
        (lambda: HiCS(temperature=0.0), "temperature must be a finite number > 0 or auto, got 0.0."),
        (lambda: HiCS(num_clusters=2.5), "num_clusters must be a whole number >= 1 or null, got 2.5."),
        (lambda: Dirichlet(float("nan")), "alpha must be a finite number > 0, got nan."),
        # What single precision or a square would lose.
        (
            lambda: Dirichlet(1e-300),
            "alpha must be a finite number > 0, from 1e-30 to 1e+30 in size, got 1e-300.",
        ),
        (
            lambda: HicsDirichlet((1.0, 0.0)),
            "alphas must be a list of one or more numbers > 0, got [1.0, 0.0].",
        ),
        (lambda: BySize(sizes=3), "sizes must be a list of one or more numbers > 0 or null, got 3."),
        # Rules between arguments stay with their classes.
        (
            lambda: FedPNSMix(labels_per_client=3),
            "samples must be a multiple of labels_per_client (3), got 200.",
        ),
        (
            lambda: ClusteredSampling(sketch=8, similarity="L1"),
            "similarity must be cosine or L2 where updates are sketched, got L1.",
        ),
        (
            lambda: FedGS(graph="label"),
            "graph must be labels, secure, cosine, functional, optimal, true_models or the path of a .npy "
            "file with features [N, d], got 'label'.",
        ),
    ],
)
def test_the_sentence(make: Any, sentence: str):
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == sentence


# --- a class of one's own -----------------------------------------------------------------------------------


@dataclass
class Declared(Checked):
    count: Annotated[int, Range(1, 9)]
    share: Annotated[float | None, Range(above=0, below=1), Tunable(0.1, 0.9)] = None
    names: tuple[str, ...] = ()
    other: Any = None


class Plain:
    def __init__(self, share: Annotated[float, Range(0, 1)] = 0.5, *rest: int, **more: int) -> None:
        self.share = share


def test_arguments_of_a_dataclass_and_of_a_constructor():
    count, share, names, other = arguments(Declared).values()
    assert (count.name, count.hint, count.default, count.range) == ("count", int, MISSING, Range(1, 9))
    assert (share.default, share.tunable) == (None, Tunable(0.1, 0.9))
    assert (names.rule(), other.hint) == ("a list of texts", Any)
    assert arguments(Plain) == {"share": Argument("share", float, 0.5, Range(0, 1))}
    assert arguments(print).keys() <= {"sep", "end", "file", "flush"}


def test_a_dataclass_is_checked_when_it_is_made_and_a_plain_class_when_it_is_asked():
    with pytest.raises(UserError, match=r"^count must be a whole number in \[1, 9\], got 10\.$"):
        Declared(10)
    plain = Plain(2.0)
    with pytest.raises(UserError, match=r"^here\.share must be a number in \[0, 1\], got 2\.0\.$"):
        check_arguments(Plain, vars(plain), "here.")


@pytest.mark.parametrize(
    ("within", "words"),
    [
        (Range(0, 1), "in [0, 1]"),
        (Range(0, below=1), "in [0, 1)"),
        (Range(above=0, high=0.5), "in (0, 0.5]"),
        (Range(above=0), "> 0"),
        (Range(1), ">= 1"),
        (Range(high=10**6), "<= 1,000,000"),
        (Range(below=-2.5), "< -2.5"),
        (Range(), ""),
    ],
)
def test_a_range_in_words(within: Range, words: str):
    assert str(within) == words
    assert rule(int, within) == f"a whole number {words}".strip()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "null"),
        ("null", "null"),
        ("a b", "'a b'"),
        ((1, 2), "[1, 2]"),
        (10**5000, "a number of about 5,001 digits"),
        ("x" * 5000, f"'{'x' * 99}... (5,002 characters)"),
    ],
    ids=range(7),
)
def test_a_value_as_it_is_shown(value: Any, text: str):
    assert shown(value) == text


@dataclass
class HalfKnown(Checked):
    size: Annotated[int, Range(1)] = 1
    frame: OnlyForTypeCheckers = None  # type: ignore[name-defined]  # noqa: F821


class Half:
    def __init__(
        self,
        frame: OnlyForTypeCheckers = None,  # type: ignore[name-defined]  # noqa: F821
        size: Annotated[int, Range(1)] = 1,
    ) -> None:
        """Take what cannot be told, and what can."""


@pytest.mark.parametrize("made", [HalfKnown, Half])
def test_a_type_that_cannot_be_told_leaves_the_others_checked(made: type) -> None:
    """Python 3.10 cannot tell that of ``_: KW_ONLY`` either."""
    assert arguments(made)["frame"].hint is Any
    with pytest.raises(UserError, match="size must be a whole number >= 1, got 0"):
        check_arguments(made, {"frame": 3, "size": 0})
