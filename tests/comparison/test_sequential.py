"""Deciding look by look: boundaries and paths are the specified ones, and errors stay below 5 %."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from flsel.comparison.judging.decisions import Withheld, decide, judge_looks
from flsel.comparison.judging.designs import Design, boundaries, extended, schedule, spent
from flsel.comparison.judging.power import corrected_estimate, expected, fixed_seeds, pooled_sd
from flsel.errors import UserError

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/sequential.json").read_text())
RUNS = 4000


def test_schedules_are_the_specified_ones():
    for maximum, looks in GOLDEN["schedules"].items():
        assert list(schedule(int(maximum))) == looks
    assert schedule(6) == (6,)
    assert schedule(7) == (6, 7)
    assert extended(30, 60)[-5:] == (30, 33, 41, 51, 60)


@pytest.mark.parametrize("case", GOLDEN["boundaries"], ids=lambda c: f"{c['level']:.4f}-{c['maximum']}")
def test_boundaries_are_the_specified_ones(case):
    found = boundaries(case["level"], tuple(case["looks"]), case["maximum"], case["reserve"])
    assert found == pytest.approx(case["boundaries"], rel=0.005)


def test_an_extension_spends_the_reserve():
    case = GOLDEN["extended"]
    looks = extended(30, 60)
    found = boundaries(case["level"], looks, 30)
    assert found == pytest.approx([case["boundaries"][str(look)] for look in looks], rel=0.005)
    assert found[:10] == pytest.approx(boundaries(case["level"], schedule(30), 30), rel=1e-9)
    assert spent(60, 30) == pytest.approx(1.0)


@pytest.mark.parametrize("case", GOLDEN["paths"], ids=lambda c: f"{c['verdict']}-{c['n']}-{c['margin']}")
def test_decision_paths_are_the_specified_ones(case):
    design = Design(case["comparisons"], case["maximum"], case["margin"])
    found = decide(np.array(case["differences"]), design, resolution=case["resolution"])
    waiting = case["verdict"] == "open" and case["n"] < 6  # too few pairs for a look
    assert found.claim == ("undecided" if waiting else case["verdict"])
    assert (found.n, found.given_up, found.within_margin) == (
        case["n"], case["given_up"], case["within_margin"],
    )  # fmt: skip
    assert len(found.looks) == len(case["path"])
    for look, golden in zip(found.looks, case["path"], strict=True):
        for name, value in golden.items():
            assert getattr(look, name) == pytest.approx(value, rel=0.006, abs=0.006 * max(golden["sd"], 0.01))


def test_a_family_is_decided_as_specified():
    case = GOLDEN["family"]
    design = Design(case["comparisons"], case["maximum"], case["margin"])
    found = [decide(np.array(x), design) for x in case["differences"]]
    assert [f.claim for f in found] == case["verdicts"]
    assert [f.n for f in found] == case["seeds"]
    assert max(case["seeds"]) + sum(case["seeds"]) == case["runs"]


def draws(kind: str, variants: int, seed: int) -> np.ndarray:
    """Differences of variants that share a baseline, ``[RUNS, variants, 30]``, with mean zero and sd one."""
    rng = np.random.default_rng(seed)
    shape = (RUNS, variants + 1, 30)
    values = {
        "normal": lambda: rng.standard_normal(shape),
        "heavy": lambda: rng.standard_t(3, shape) / np.sqrt(3),
        "discrete": lambda: rng.standard_normal(shape),
    }[kind]()
    found = (values[:, :-1] - values[:, -1:]) / np.sqrt(2)
    return np.round(found * 3) / 3 if kind == "discrete" else found


@pytest.mark.parametrize("kind", ["normal", "heavy", "discrete"])
@pytest.mark.parametrize(("effect", "margin"), [(0.0, None), (0.0, 1.0), (1.0, 1.0)])
def test_any_false_claim_of_a_family_is_rare_at_any_stopping(kind, effect, margin):
    """Nothing differs, or every variant is at the margin: no claim, or only "better", is true."""
    variants = 3
    design, false = Design(variants, 30, margin), np.zeros(RUNS, dtype=bool)
    sample = effect + draws(kind, variants, seed=7)
    for at in range(variants):
        judged = judge_looks(sample[:, at], design, resolution=1 / 3 if kind == "discrete" else 0.0)
        claims = judged.claim[np.arange(RUNS), judged.stops()]
        wrong = (0, 1) if effect == 0 else (1, 2)
        false |= np.isin(claims, wrong)
    # Three standard errors of 5 % in 4,000 comparisons are one point.
    assert false.mean() < 0.05 + 0.01
    assert false.mean() > 0.0005, "a procedure that never errs never decides"


def test_repeated_intervals_cover_at_all_looks_together():
    judged = judge_looks(draws("normal", 1, seed=3)[:, 0], Design(1, 30, 1.0))
    covered = ((judged.numbers["low"] <= 0) & (judged.numbers["high"] >= 0)).all(axis=1)
    assert 0.945 <= covered.mean() <= 0.975


def test_skewed_differences_err_more_which_the_report_says():
    """The procedure cannot know of collapses it has not seen; the bound is what the caveat says."""
    rng = np.random.default_rng(5)
    tail = rng.lognormal(0, 0.8, (RUNS, 30))
    tail = -(tail - np.exp(0.32)) / np.sqrt((np.exp(0.64) - 1) * np.exp(0.64))
    sample = (tail + rng.standard_normal((RUNS, 30))) / np.sqrt(2)
    judged = judge_looks(sample, Design(1, 30, None))
    claims = judged.claim[np.arange(RUNS), judged.stops()]
    assert np.isin(claims, (0, 1)).mean() < 0.08


@pytest.mark.parametrize(("effect", "seeds", "better"), [(0.0, 16.0, 0.01), (1.0, 14.6, 0.99), (3.0, 6.9, 1)])
def test_expected_seeds_are_those_of_the_specification(effect, seeds, better):
    found = expected(effect, 2.0 / 2, Design(1, 30, 1.0, give_up=0.0))
    assert found.seeds == pytest.approx(seeds, abs=0.4)
    assert found.better == pytest.approx(better, abs=0.02)
    assert found.better + found.worse + found.equivalent + found.open == pytest.approx(1)


def test_scale_and_sign_change_nothing():
    x = 0.8 + np.random.default_rng(2).standard_normal(30)
    design = Design(3, 30, 1.0)
    one = decide(x, design)
    scaled = decide(100 * x, replace(design, margin=100.0))
    turned = decide(-x, design)
    assert (scaled.claim, scaled.n) == (one.claim, one.n)
    opposite = {"better": "worse", "worse": "better"}
    assert (turned.claim, turned.n) == (opposite.get(one.claim, one.claim), one.n)


def test_more_pairs_than_a_decision_needs_do_not_change_it():
    x = 2 + np.random.default_rng(4).standard_normal(30)
    design = Design(2, 30)
    whole = decide(x, design)
    assert whole.claim == "better"
    assert decide(x[: whole.n], design) == whole
    assert decide(x[: whole.n - 1], design).claim == "undecided"


def test_withheld_claims_are_not_made():
    better, same = np.full(30, 5.0) + np.arange(30) % 2, np.tile([0.1, -0.1], 15)
    design = Design(1, 30, 1.0)
    assert decide(better, design).claim == "better"
    assert decide(better, design, withheld=Withheld(better=True)).claim in ("open", "undecided")
    assert decide(-better, design, withheld=Withheld(worse=True)).claim in ("open", "undecided")
    assert decide(same, design).claim == "equivalent"
    assert decide(same, design, withheld=Withheld(equivalent=True)).claim == "open"


def test_zero_differences_are_equivalent_with_and_without_a_resolution():
    design = Design(1, 30, 1.0)
    assert decide(np.zeros(30), design).claim == "equivalent"
    assert decide(np.zeros(30), design, resolution=0.1).claim == "equivalent"


def test_the_corrected_estimate_takes_the_bias_of_early_stops_away():
    """Over all stops, with a small effect that stops early only by luck."""
    rng, design = np.random.default_rng(6), Design(1, 30)
    naive, corrected = [], []
    for _ in range(25):
        found = decide(1.0 + rng.standard_normal(30), design)
        naive.append(found.looks[-1].mean)
        corrected.append(corrected_estimate(found, design))
    # The bias by other draws: 25 decisions show the correction, whose spread is small, and not the bias.
    judged = judge_looks(1.0 + rng.standard_normal((4000, 30)), design)
    bias = float(judged.numbers["mean"][np.arange(4000), judged.stops()].mean()) - 1.0
    assert bias > 0.02
    assert np.mean(np.subtract(corrected, naive)) == pytest.approx(-bias, abs=0.02)


def test_fixed_designs_are_those_of_the_t_test():
    """80 % power for one standard deviation takes ten pairs by the t test, and one for longer intervals."""
    assert fixed_seeds(1.0, Design(1, 30), 1.0) == 11
    assert fixed_seeds(2.0, Design(1, 30), 2.0) == 11
    assert (fixed_seeds(1.0, Design(6, 30), 1.0) or 0) > 11
    assert fixed_seeds(0.0, Design(1, 30), 1.0) is None
    assert fixed_seeds(0.0, Design(1, 30, margin=1.0), 1.0) is not None


def test_spreads_of_several_variants_are_pooled():
    samples = [np.array([1.0, 3.0]), np.array([10.0, 10.0, 13.0]), np.array([5.0])]
    assert pooled_sd(samples) == pytest.approx(np.sqrt((2 + 6) / 3))
    assert np.isnan(pooled_sd([np.array([1.0])]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maximum": 5}, "maximum must be a whole number >= 6, got 5"),
        ({"margin": 0.0}, "margin must be .*> 0.*, got 0"),
        ({"give_up": 1.0}, r"give_up must be .*\[0, 1\), got 1"),
        ({"comparisons": 0}, "comparisons must be a whole number >= 1, got 0"),
    ],
)
def test_designs_out_of_range_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Design(**{"comparisons": 1, **changes})


def late_draws(share: float, factor: float, runs: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Bounds of pairs of log costs (sigma 0.3, correlation 0.5); ``share`` of the variant's runs are late."""
    rng = np.random.default_rng(11)
    common = rng.standard_normal((runs, 30))
    theirs, ours = (0.3 * (common + rng.standard_normal((runs, 30))) / np.sqrt(2) for _ in range(2))
    ours = ours + np.log(factor)
    end = np.quantile(ours, 1 - share) if share else np.inf
    found = []
    for a, b in zip(ours, theirs, strict=True):
        counts = (a <= end) | (b <= end)
        lower = np.where(a <= end, np.minimum(b, end) - a, -np.inf)
        upper = np.where(b <= end, b - np.minimum(a, end), np.inf)
        found.append((lower[counts], upper[counts]))
    return found


@pytest.mark.parametrize(
    ("share", "margin"), [(0.0, None), (0.4, float(np.log(1.1))), (0.8, None), (0.8, float(np.log(1.1)))]
)
def test_costs_of_one_law_are_called_different_in_less_than_5_percent_however_many_are_late(share, margin):
    draws = late_draws(share, 1.0, 150)
    claims = [decide(low, Design(1, 30, margin), upper=high).claim for low, high in draws]
    assert sum(claim in ("better", "worse") for claim in claims) / len(claims) < 0.08
    assert share == 0 or "equivalent" not in claims, "a late run forbids equivalence"


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8])
def test_a_slower_variant_is_never_better_however_many_are_late(share):
    found = [decide(low, Design(1, 30), upper=high) for low, high in late_draws(share, 1.5, 100)]
    claims = [decision.claim for decision in found]
    assert "better" not in claims
    assert share or (claims.count("worse") > 0.99 * len(claims))
    assert share or np.mean([decision.n for decision in found]) == pytest.approx(11.4, abs=0.8)


def test_an_infinite_end_forbids_the_claim_that_it_bounds():
    faster = 1 + 0.1 * (np.arange(30) % 3)
    design, late = Design(1, 30, 0.1), faster.copy()
    assert decide(faster, design).n == 6
    late[2] = -np.inf  # of this pair the variant's run is late
    found = decide(late, design, upper=faster)
    assert found.claim != "better"
    assert found.looks[0].mean == pytest.approx(np.delete(faster[:6], 2).mean())
    late = faster.copy()
    late[2] = np.inf  # of this pair the baseline's run is late, so that the variant gains at least so much
    found = decide(faster, design, upper=late)
    assert (found.claim, found.n) == ("better", 6)
    assert decide(-late, design, upper=-faster).claim == "worse"
    assert decide(faster - 1.1, replace(design, margin=1.0), upper=late).claim != "equivalent"


@pytest.mark.parametrize("margin", [None, 0.5])
def test_identical_variants_are_equivalent_or_given_up_at_once(margin):
    found = decide(np.zeros(30), Design(1, 30, margin))
    assert (found.claim, found.n) == (("open", 8) if margin is None else ("equivalent", 6))


def test_a_constant_difference_decides_where_the_sign_test_does():
    found = decide(np.full(30, 2.0), Design(1, 30))
    assert found.claim == "better"
    assert 2.0 ** (1 - found.n) <= 2 * stats.t.sf(Design(1, 30).outer[found.n], found.n - 1)
    assert decide(np.full(30, -2.0), Design(1, 30)).claim == "worse"
