"""One judge of fixed and sequential designs: families, levels, what was changed after a look, and words."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
import yaml
from runs import settings

import flsel
from flsel.commands.cli import main
from flsel.comparison.comparison import Comparison
from flsel.comparison.judging import formatting
from flsel.comparison.judging.claim_words import interval_ends, label
from flsel.comparison.judging.claims import Evidence
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.decisions import decide
from flsel.comparison.judging.designs import ACCURACY, Design
from flsel.comparison.judging.estimates import Estimate, holm, mean_p_value
from flsel.comparison.judging.families import step_down
from flsel.comparison.judging.formatting import number
from flsel.comparison.judging.notes import chance_above, chances_to_be_best
from flsel.comparison.judging.settings import Judging, JudgingSettings
from flsel.metrics import SCORE, Score

pytestmark = pytest.mark.usefixtures("here")
NOISE = np.random.default_rng(3).normal(0, 0.01, (3, 40))
EFFECTS = {"Uniform": 0.0, "PowD": 0.05, "AFL": 0.0}


def curve(variant: str, seed: int) -> dict[str, Any]:
    """A run that climbs to its variant's effect and the noise of its seed."""
    return {
        "curve": made.climb(0.6 + EFFECTS[variant] + NOISE[list(EFFECTS).index(variant), seed - 1], rounds=40)
    }


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> made.Executed:
    """Made-up runs in the place of real ones."""
    return made.Executed(monkeypatch, curve)


def compare(folder: Path, **wanted: Any) -> Comparison:
    given = {"variants": ["Uniform", "PowD", "AFL"], "seeds": 6, **wanted}
    return flsel.compare(settings(folder / "unused", rounds=40), folder=str(folder), name="c", **given)


def member(values: np.ndarray, margin: float | None = None) -> Evidence:
    seeds = tuple(range(len(values)))
    return Evidence(
        variant="v", scenario="all", deciding=Deciding(ACCURACY, 1), seeds=seeds, lower=values, upper=values,
        margin=margin,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_steps_over_one_look_are_holms_and_no_interval_contradicts_its_decision(seed):
    rng = np.random.default_rng(seed)
    family = [rng.standard_normal(6) + effect for effect in (0.0, 0.7, 1.5, 3.0)]
    decided = step_down([member(values) for values in family], 5)
    expected = [p <= 0.05 for p in holm([mean_p_value(values) for values in family], 5)]
    assert [decision.decided for decision in decided] == expected
    for decision in decided:
        end = decision.looks[-1]
        assert (end.low >= 0 or end.high <= 0) == decision.decided


def test_equivalence_is_claimed_by_one_look_and_its_interval_lies_within_the_margin():
    values = np.tile([0.1, -0.1, 0.05], 3)
    (decision,) = step_down([member(values, 1.0)], 3)
    assert decision.claim == "equivalent"
    assert -1 <= decision.looks[-1].inner_low < decision.looks[-1].inner_high <= 1
    assert step_down([member(values[:4], 1.0)], 1)[0].claim == "open", "four seeds carry no claim"


def test_one_look_is_the_t_test_at_its_level():
    values = np.random.default_rng(1).standard_normal(8) + 1
    p = mean_p_value(values)
    for alpha in (0.9 * p, 1.1 * p):
        assert decide(values, Design.fixed(8, 1, alpha=alpha)).decided == (alpha > p)


@pytest.mark.parametrize("words", [{"seeds": 6}, {"seeds": None, "until_decided": True}])
def test_equivalent_variants_are_so_in_both_designs(tmp_path, runner, words):
    found = compare(tmp_path, margin=3.0, **words)
    claims = {claim.variant: claim.decision.claim for claim in found.analysis.claims if claim.kind == "mean"}
    assert claims == {"PowD": "better", "AFL": "equivalent"}
    (text,) = [v.text for v in found.verdicts if v.label == "Equivalent"]
    assert text.startswith("AFL and Uniform are equivalent within 3 points in test accuracy")
    assert "90 % interval" in text
    assert any(n.startswith("Chance to be better than Uniform by more than 3 points") for n in found.notes)
    assert any("PowD has the best test accuracy" in n and "pairs of variants" in n for n in found.notes)


@pytest.mark.parametrize("words", [{"seeds": 6}, {"seeds": None, "until_decided": True}])
def test_every_share_of_false_claims_has_its_condition(tmp_path, runner, words):
    found = compare(tmp_path, **words)
    (note,) = [n for n in found.notes if "is at most 5 %" in n]
    assert "if differences are about normally distributed, or symmetric" in note
    collapse = [n for n in found.notes if "without a collapse" in n]
    assert collapse
    n = min(len(claim.used) for claim in found.analysis.claims if claim.decision.decided)
    assert f"up to {100 * (1 - 0.05 ** (1 / n)):.0f} % of seeds" in collapse[0]


@pytest.mark.parametrize("words", [{"seeds": 8}, {"seeds": None, "until_decided": True}])
def test_the_level_is_that_of_every_number(tmp_path, runner, words, capsys):
    found = compare(tmp_path, level=0.99, **words)
    assert {claim.design.alpha for claim in found.analysis.claims} == {0.01}
    text = found.verdicts[0].text
    assert "99 % interval" in text
    report = found.to_markdown()
    assert "95 %" not in report.replace("seeds for 80 % power (95 % interval", "")
    assert r"Intervals: 99\,\%" in found.to_latex()
    if words["seeds"]:
        single = compare(tmp_path / "b", **words).analysis.summary("PowD", "all", found.analysis.main)
        wide = found.analysis.summary("PowD", "all", found.analysis.main)
        assert wide.mean.low < single.mean.low < single.mean.high < wide.mean.high
        found.write()
        assert main(["compare", "--resume", str(tmp_path / "c"), "--level", "0.9"]) == 0
        again = flsel.compare(tmp_path / "c").analysis
        assert all(claim.exploratory for claim in again.claims)
        assert (
            "the confidence level changed from 99 % to 90 % after 8 seeds" in again.claims[0].exploratory[0]
        )


def test_what_is_changed_after_a_look_is_kept_and_what_it_touches_is_exploratory(tmp_path, runner, capsys):
    compare(tmp_path, target=0.5).write()
    resume = ["compare", "--resume", str(tmp_path / "c")]
    assert main([*resume, "--target", "0.55"]) == 0
    found = flsel.compare(tmp_path / "c")
    of_cost = {claim.measure: bool(claim.exploratory) for claim in found.analysis.claims}
    assert of_cost == {found.analysis.main: False, found.analysis.to_target: True}
    assert {claim.design.comparisons for claim in found.analysis.claims} == {4}, "the family is as large"
    assert any("the target changed from 50 % to 55 % after 6 seeds" in n for n in found.notes)
    assert "Exploratory" not in found.to_latex(), "its numbers depend on no target"
    assert "Exploratory: changed when results could be seen." in found.to_latex(["cost"])
    rows = list(csv.DictReader((tmp_path / "c" / "differences.csv").read_text().splitlines()))
    (row,) = [r for r in rows if r["measure"] == found.analysis.to_target and r["variant"] == "PowD"]
    assert row["claim"] == "exploratory"
    assert "the target changed" in row["exploratory"]
    assert main([*resume, "--last", "5"]) == 0
    kept = yaml.safe_load((tmp_path / "c" / "comparison.yaml").read_text())["judging"]["changes"]
    assert [(change["what"], change["seen"]) for change in kept] == [("target", 6), ("last", 6)]
    again = flsel.compare(tmp_path / "c")
    assert not any(claim.made for claim in again.analysis.claims)
    assert again.headline.startswith("Exploratory")


def test_another_baseline_or_target_in_python_is_exploratory_and_leaves_the_file_alone(tmp_path, runner):
    compare(tmp_path).write()
    file = tmp_path / "c" / "comparison.yaml"
    before = file.read_text()
    other = flsel.compare(tmp_path / "c", baseline="PowD")
    assert not any(claim.made for claim in other.analysis.claims)
    assert "the baseline changed from Uniform to PowD" in other.verdicts[0].text
    assert file.read_text() == before
    same = flsel.compare(tmp_path / "c", baseline="Uniform", last=10)
    assert any(claim.made for claim in same.analysis.claims), "nothing was changed"


def test_seeds_and_variants_that_are_added_after_looking_make_no_claims(tmp_path, runner, capsys):
    compare(tmp_path, variants=["Uniform", "PowD"]).write()
    resume = ["compare", "--resume", str(tmp_path / "c")]
    assert main([*resume, "--selectors", "AFL"]) == 0
    claims = {claim.variant: claim for claim in flsel.compare(tmp_path / "c").analysis.claims}
    assert claims["PowD"].made
    assert claims["AFL"].exploratory == ("AFL added after 6 seeds",)
    assert main([*resume, "--seeds", "8"]) == 0
    found = flsel.compare(tmp_path / "c")
    assert all(claim.exploratory for claim in found.analysis.claims)
    assert any("the number of seeds changed from 6 to 8 after 6 seeds" in note for note in found.notes)


def test_a_new_margin_judges_later_looks_only():
    values = np.tile([1.5, 1.2, 1.4, 1.6, 1.1, 1.3], 2) * np.tile([1, -1], 6)
    whole = decide(values, Design(1, 12, 20.0))
    assert (whole.claim, whole.n) == ("equivalent", 6)
    narrow = Design(1, 12, 0.01, earlier_margins=((6, 20.0),))
    assert (decide(values, narrow).claim, decide(values, narrow).n) == ("equivalent", 6), "it stays decided"
    wide = Design(1, 12, 20.0, earlier_margins=((6, 0.01),))
    assert (decide(values, wide).claim, decide(values, wide).n) == ("equivalent", 7)
    declared = Judging(until_decided=True, margin=1.0)
    rules = declared.asked_again(JudgingSettings(margin=2.0), 6)
    assert rules.design(2, 1).earlier_margins == ((6, 1.0),)
    assert rules.design(2, 1).margin_at(6) == 1.0
    assert rules.design(2, 1).margin_at(7) == 2.0
    assert declared.asked_again(JudgingSettings(margin=2.0), 0).design(2, 1).earlier_margins == ()


def test_the_margin_of_a_resumed_comparison_is_kept_with_the_look(tmp_path, runner):
    compare(tmp_path, variants=["Uniform", "AFL"], seeds=None, until_decided=True, margin=0.001, max_seeds=8)
    assert main(["compare", "--resume", str(tmp_path / "c"), "--margin", "5", "--max-seeds", "16"]) == 0
    found = flsel.compare(tmp_path / "c")
    (claim,) = found.analysis.claims
    assert claim.design.earlier_margins == ((8, 0.001),)
    assert claim.decision.claim == "equivalent"
    assert claim.decision.n > 8
    assert not claim.made
    assert "the margin changed from 0.001 to 5 after 8 seeds" in found.verdicts[0].text


def test_runs_of_a_comparison_that_are_judged_by_path_know_what_they_belong_to(tmp_path, runner):
    whole = compare(tmp_path, target=0.5)
    whole.write()
    cells = tmp_path / "c" / "runs" / "all"
    again = flsel.compare([cells / "*" / "s*"])
    assert {v.text for v in again.verdicts} == {v.text for v in whole.verdicts}
    part = flsel.compare([cells / "Uniform" / "s*", cells / "PowD" / "s*"])
    assert {claim.design.comparisons for claim in part.analysis.claims} == {4}, "AFL was declared"
    assert not any(claim.made for claim in part.analysis.claims)
    assert "12 of 18 declared runs judged again after 6 seeds" in part.verdicts[0].text
    assert main(["compare", str(cells / "*" / "s*"), "--target", "0.45"]) == 0
    kept = flsel.compare(tmp_path / "c")
    assert {v.text for v in kept.verdicts} == {v.text for v in whole.verdicts}
    assert any("judged again by their folders" in n and "0.45 (after 6 seeds)" in n for n in kept.notes)
    moved = flsel.compare([cells / "*" / "s*"], target=0.45)
    assert {claim.measure for claim in moved.analysis.claims if claim.made} == {moved.analysis.main}


def test_arrival_is_a_claim_where_enough_pairs_differ_in_it(tmp_path):
    for seed in range(1, 11):
        late = [0.3] * 21 if seed <= 9 else made.climb(0.8)
        made.run(tmp_path / f"u{seed}", late, seed=seed, evaluation__target=0.7)
        made.run(tmp_path / f"p{seed}", made.climb(0.8), selector="PowD", seed=seed, evaluation__target=0.7)
    found = flsel.compare([tmp_path / "*"], last=1)
    (claim,) = [claim for claim in found.analysis.claims if claim.kind == "arrival"]
    assert claim.design.comparisons == 3
    assert claim.p()[0] == pytest.approx(2.0**-8)
    assert claim.decision.claim == "better"
    (text,) = [v.text for v in found.verdicts if "significantly more often" in v.text]
    assert "only PowD arrives in 9 pairs, only Uniform in 0 (exact McNemar test, p = 0.00" in text


def test_a_variant_that_wins_and_loses_is_taken_with_its_losses(tmp_path):
    for number_of, (alpha, gain) in enumerate(((0.1, 0.1), (0.5, 0.12), (1.0, -0.1))):
        spec = {"class_path": "flsel.partition.dirichlet.Dirichlet", "init_args": {"alpha": alpha}}
        for seed in range(1, 8):
            noise = NOISE[:2, seed - 1]
            for name, end in (("Uniform", 0.6 + noise[0] / 5), ("PowD", 0.6 + gain + noise[1] / 5)):
                folder = tmp_path / f"{name}{number_of}{seed}"
                made.run(folder, made.climb(end), selector=name, seed=seed, partition=spec)
    found = flsel.compare([tmp_path / "*"])
    assert found.headline.startswith("Take PowD: +11.")
    assert "over Uniform in 2 of 3 scenarios, worse in 1" in found.headline


def test_metrics_that_are_not_declared_are_exploratory(tmp_path):
    for seed in range(1, 7):
        for name, value in (("Uniform", 0.5), ("PowD", 0.7)):
            own = {"F1": value + NOISE[0, seed - 1]}
            made.run(tmp_path / f"{name}{seed}", made.climb(0.6), selector=name, seed=seed, own=own)
    (verdict,) = [v for v in flsel.compare([tmp_path / "*"]).verdicts if "F1" in v.text]
    assert verdict.kind == "exploratory"
    assert "The claims are about test accuracy." in verdict.text


def test_chances_are_those_of_students_posterior():
    rng = np.random.default_rng(0)
    differences = rng.standard_normal(6) + 1
    table = np.stack([differences, np.zeros(6)], axis=1)
    best = chances_to_be_best(table)
    assert best.sum() == pytest.approx(1)
    assert best[0] == pytest.approx(chance_above(differences, 0.0), abs=0.01)
    assert chance_above(differences, 100.0) < 0.01


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(56.0, "56"), (600.0, "10 min"), (12_240.0, "3.4 h"), (200_000.0, "2.31 days"), (math.inf, "never")],
)
def test_long_times_are_in_minutes_hours_and_days(seconds, shown):
    assert number(seconds, "simulated seconds") == shown
    assert number(12_240.0) == "12,240"


@pytest.mark.parametrize(("decides", "budget", "column", "most"), [
    ("models", "24", "ledger/models_down", 24), ("bytes", "10kB", None, 10_000), ("rounds", "7", "round", 7),
    ("bytes_up", "5kB", "ledger/bytes_up", 5_000),
])  # fmt: skip
def test_runs_end_at_an_equal_budget_of_what_decides(tmp_path, decides, budget, column, most):
    found = flsel.compare(
        settings(tmp_path / "unused", rounds=60, clients_per_round=3), ["Uniform", "PowD:d=4"], seeds=1,
        cost=decides, budget=budget, target=0.5, folder=str(tmp_path), name="c",
    )  # fmt: skip
    for run in found.analysis.runs:
        columns = run.columns
        spent = columns[column] if column else columns["ledger/bytes_down"] + columns["ledger/bytes_up"]
        assert spent[-2] < most <= spent[-1], "the round that spends the rest is the last"
    assert any("Every run ends when it has spent" in note for note in found.notes) == (decides != "rounds")
    assert main(["compare", "--resume", str(tmp_path / "c"), "--budget", "9"]) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--budget", "2 GX", "--cost", "bytes"],
            "budget must be a number >= 1 with a unit of B, kB, MB, GB, TB",
        ),
        (["--budget", "-3"], "budget must be a number >= 1, of rounds, got '-3'."),
        (
            ["--budget", "5", "--cost", "seconds"],
            "budget goes with a cost of rounds, models, bytes, bytes_down, bytes_up, trainings",
        ),
        (["--budget", "5", "--until-decided"], "budget goes with a cost of rounds"),
    ],
)
def test_a_budget_that_does_not_fit_is_refused(tmp_path, words, sentence, capsys):
    assert main(["compare", "--selectors", "Uniform,PowD", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("more", ["Uniform", "PowD"])
def test_numbers_of_runs_that_differ_are_said_to_be_seeds_in_common(tmp_path, more):
    for seed in range(1, 9):
        for name, end in (("Uniform", 0.6), ("PowD", 0.7)):
            if seed <= 6 or name == more:
                curve = made.climb(end + NOISE[int(name == "PowD"), seed - 1])
                made.run(tmp_path / f"{name}{seed}", curve, selector=name, seed=seed)
    found = flsel.compare([tmp_path / "*"])
    assert ", over the 6 common seeds." in found.verdicts[0].text
    assert any("6 common seeds" in note for note in found.notes)


@pytest.mark.parametrize(("late", "label"), [(3, "Better"), (5, "Not significant")])
def test_no_direction_is_claimed_where_more_than_a_third_of_the_pairs_say_nothing(tmp_path, late, label):
    slow = [0.1 + 0.035 * r for r in range(21)]
    for seed in range(1, 8 + late):
        lost = seed > 7
        curve = [0.3] * 21
        made.run(tmp_path / f"u{seed}", curve if lost else slow, seed=seed, evaluation__target=0.7)
        fast = made.climb(0.9 + NOISE[0, seed - 1])
        made.run(
            tmp_path / f"p{seed}", curve if lost else fast, selector="PowD", seed=seed, evaluation__target=0.7
        )
    found = flsel.compare([tmp_path / "*"], last=1)
    claim = found.analysis.claim("PowD", "all", "rounds/target")
    (verdict,) = [v for v in found.verdicts if "in rounds to 70 %" in v.text]
    assert verdict.label == label
    assert ("more than a third of all pairs" in verdict.text) == (label != "Better")
    assert claim.left_out == late


@pytest.mark.parametrize("words", [{"seeds": 14}, {"seeds": None, "until_decided": True, "max_seeds": 20}])
def test_which_side_diverges_more_often_is_a_claim(tmp_path, monkeypatch, words):
    def diverging(variant: str, seed: int) -> dict[str, Any]:
        found = curve(variant, seed)
        if variant == "PowD" and seed % 2:
            found["curve"][-1] = math.nan
        return found

    made.Executed(monkeypatch, diverging)
    found = compare(tmp_path, variants=["Uniform", "PowD"], **words)
    mean, diverged = found.analysis.claims
    assert (mean.kind, mean.decision.claim, mean.diverged.better) == (
        "mean",
        "open",
        (words["seeds"] or 20) // 2,
    )
    assert (diverged.kind, diverged.decision.claim) == ("divergence", "worse")
    assert diverged.p()[0] == pytest.approx(2.0 ** (1 - mean.diverged.better))
    if words["seeds"]:
        assert {claim.design.comparisons for claim in (mean, diverged)} == {2}, "it is one of the family"
    text = next(v.text for v in found.verdicts if v.label == "Worse")
    often = "significantly more often" if words["seeds"] else "more often"
    assert text.startswith(
        f"PowD diverges {often} than Uniform: only PowD diverges in {mean.diverged.better} pairs"
    )
    assert "Take PowD" not in found.headline
    assert "Diverges more often than Uniform: PowD." in found.headline
    assert not any("Chance to have the best" in note for note in found.notes)
    assert "divergence" in {row["measure"] for row in found.decisions.to_dict("records")}


def variants(folder: Path, more: dict[str, Any] | None = None, **ends: Any) -> Comparison:
    """Compare made-up runs by their end accuracies; NaN diverges, and 0.3 never arrives at 70 %."""
    for name, values in ends.items():
        for seed, end in enumerate(values, 1):
            curve = [*made.climb(0.8)[:-1], math.nan] if math.isnan(end) else made.climb(end)
            made.run(folder / f"{name}{seed}", curve, selector=name, seed=seed, evaluation__target=0.7)
    return flsel.compare([folder / "*"], **more or {})


def said(found: Comparison) -> str:
    return "\n".join([found.headline, *(v.text for v in found.verdicts), *found.notes, found.to_latex()])


def test_differences_that_are_one_number_have_no_interval_and_no_posterior(tmp_path):
    ends = 0.8 + NOISE[0, :6]
    equal = variants(tmp_path / "a", Uniform=ends, PowD=ends, AFL=ends)
    constant = variants(tmp_path / "b", Uniform=ends, PowD=ends + 0.02, AFL=ends - NOISE[1, :6])
    for found in (equal, constant):
        cells = found.to_markdown()
        assert "[0.0, 0.0]" not in cells
        assert "[2.0, 2.0]" not in cells
        assert "Chance to have the best" not in said(found)
    assert "Claims rest on t intervals" not in said(equal)
    assert "Claims rest on t intervals" in said(constant), "those of AFL do"
    assert (
        "AFL, PowD and Uniform have the best test accuracy, the same under each of the 6 common seeds"
        in said(equal)
    )
    assert "+2.0 points, the same in each pair, p = 0.12 (Holm)" in said(constant)
    assert "If it stays the same in each pair, 8 seeds decide." in said(constant)
    two = variants(tmp_path / "c", Uniform=ends, PowD=ends + 0.02, AFL=ends - 0.3)
    assert "PowD has the best test accuracy, and is not significantly better than the next, Uniform" in said(
        two
    )


@pytest.mark.parametrize("better", ["max", "min"])
def test_no_interval_of_a_decided_direction_touches_no_difference(better):
    score = Score("test/RMSE", better) if better == "min" else SCORE
    deciding = Deciding(ACCURACY, 1, score=score)
    above, below = interval_ends(deciding, 0.0, 5.3), interval_ends(deciding, -40.4, 0.0)
    if better == "max":
        assert (above, below) == (["above 0", "+5.3"], ["-40.4", "below 0"])
        assert interval_ends(deciding, 0.04, 5.3)[0] == "above 0"
        assert interval_ends(deciding, -0.04, 5.3)[0] == "+0.0"
    else:
        assert (above, below) == (["-5.3", "below 0"], ["above 0", "+40.4"])
    ratio = Deciding("rounds", 1, 0.7)
    assert interval_ends(ratio, 0.001, 0.2) == ["0.82", "below 1"]
    assert formatting.ratio(Estimate(0.9, 0.85, 0.999, 5)) == "0.90 x [0.85, < 1]"
    assert formatting.bound(Estimate(0.9, 0.0, 0.97, 5), "high") == "<= 0.90 [0, 0.97]"
    assert formatting.bound(Estimate(0.7, math.nan, math.nan, 1), "high") == "<= 0.70"


def test_what_diverged_runs_forbid_has_no_p_and_leaves_no_level_to_others(tmp_path):
    rng = np.random.default_rng(0)
    found = variants(
        tmp_path, Uniform=0.8 + NOISE[0, :7], PowD=[*(0.9 + NOISE[1, :6]), math.nan],
        AFL=0.8 + NOISE[0, :7] + 0.007 + rng.normal(0, 0.006, 7),
    )  # fmt: skip
    (claim,) = [c for c in found.analysis.claims if c.withheld and c.measure == found.analysis.main]
    assert math.isnan(claim.p_holm)
    (text,) = [v.text for v in found.verdicts if v.label == "Withheld" and "test accuracy" in v.text]
    assert ", p " not in text.partition("PowD is not called better")[0]
    others = [c for c in found.analysis.claims if c.variant == "AFL" and c.kind == "mean"]
    assert min(c.p_holm for c in others) == pytest.approx(4 * min(c.p()[0] for c in others))
    for c in others:
        assert c.decision.decided == (c.p_holm <= 0.05)


def test_one_late_seed_is_a_bound_and_skewness_is_of_pairs_in_which_both_arrive(tmp_path):
    one = variants(tmp_path / "a", Uniform=[0.3], PowD=[0.85])
    assert "nan" not in one.to_markdown() + one.to_latex()
    assert "(mean of 10 evaluations) by at most 0.70 x with one seed" in said(one)
    late = variants(
        tmp_path / "b", Uniform=[*(0.8 + NOISE[0, :6]), 0.3], PowD=[*(0.8 + NOISE[0, :5]), 0.95, 0.8]
    )
    claim = late.analysis.claim("PowD", "all", late.analysis.to_target)
    assert claim.late
    assert f"of {len(claim.seeds) - 1} pairs in which both arrive" in said(late)


def test_unpaired_runs_that_differ_have_notes(tmp_path):
    for seed in range(1, 7):
        made.run(tmp_path / f"u{seed}", made.climb(0.75 + NOISE[0, seed - 1]), seed=seed)
        made.run(tmp_path / f"p{seed}", made.climb(0.8 + NOISE[1, seed - 1]), selector="PowD", seed=seed + 20)
    found = flsel.compare([tmp_path / "*"], mismatch="unpaired")
    assert found.headline.startswith("Take PowD")
    assert any("6 seeds without a collapse" in note for note in found.notes)


def test_ranks_count_diverged_runs_last_and_only_describe_what_was_added_later(tmp_path, runner, capsys):
    for at, alpha in enumerate((0.1, 1.0, 10.0)):
        spec = {"class_path": "flsel.partition.dirichlet.Dirichlet", "init_args": {"alpha": alpha}}
        for seed in range(1, 9):
            for name, end in (("Uniform", 0.6), ("PowD", 0.7)):
                curve = made.climb(end + NOISE[at, seed - 1])
                if name == "PowD" and seed > 2:
                    curve[-1] = math.nan
                made.run(tmp_path / f"{name}{at}{seed}", curve, selector=name, seed=seed, partition=spec)
    ranking = flsel.compare([tmp_path / "*"]).analysis.ranking
    assert (ranking.seeds, ranking.mean_ranks.tolist()) == (8, [1.75, 1.25])
    words = {"variants": ["Uniform", "PowD"], "grid": {"clients_per_round": [2, 3]}}
    compare(tmp_path / "d", **words).write()
    assert main(["compare", "--resume", str(tmp_path / "d" / "c"), "--grid", "clients_per_round=4"]) == 0
    found = flsel.compare(tmp_path / "d" / "c")
    assert "Ranks are described here, and not tested." in found.verdicts[0].text
    assert found.analysis.ranking.described


def test_no_rate_of_errors_is_promised_of_what_is_exploratory(tmp_path, runner, capsys):
    compare(tmp_path, variants=["Uniform", "PowD"], target=0.5).write()
    assert main(["compare", "--resume", str(tmp_path / "c"), "--seeds", "9"]) == 0
    found = flsel.compare(tmp_path / "c")
    assert any("the error rate is not controlled" in note for note in found.notes)
    assert not any("claims is false" in note for note in found.notes)
    assert not any("Estimates of significant" in note for note in found.notes)


def test_a_mean_over_scenarios_says_so_and_counts_seeds_whose_runs_diverge(tmp_path, monkeypatch):
    def diverging(variant: str, seed: int) -> dict[str, Any]:
        found = curve(variant, seed)
        if (variant, seed) == ("PowD", 2):
            found["curve"][-1] = math.nan
        return found

    words = {"variants": ["Uniform", "PowD"], "seeds": None, "until_decided": True, "max_seeds": 8}
    grid = {"clients_per_round": [2, 3]}
    made.Executed(monkeypatch, curve)
    found = compare(tmp_path / "a", grid=grid, **words)
    assert ", averaged over 2 scenarios" in found.headline
    assert "decided (mean)" in found.to_markdown()
    made.Executed(monkeypatch, diverging)
    found = compare(tmp_path / "b", grid=grid, **words)
    assert "PowD diverged under 1 seed under which Uniform did not" in said(found)
    assert "withheld at" in found.to_markdown()


def test_no_interval_of_a_negative_loss_is_cut_at_zero(tmp_path):
    loss = Score("test/loss", "min")
    for seed in range(1, 7):
        for name, effect in (("Uniform", 0.0), ("PowD", 0.3)):
            curve = made.climb(1.6 + effect + NOISE[0, seed])
            made.run(tmp_path / f"{name}{seed}", curve, selector=name, seed=seed, score=loss, labels=False)
    summary = flsel.compare([tmp_path / "*"]).analysis.summary("Uniform", "all", "loss/last10")
    assert summary.mean.low < summary.mean.value < summary.mean.high < 0


def test_a_run_whose_score_is_not_finite_among_its_last_evaluations_has_diverged(tmp_path):
    for seed in range(1, 9):
        for name, end in (("Uniform", 0.8), ("PowD", 0.9)):
            curve = made.climb(end + NOISE[0, seed] / 10)
            curve[-5] = math.nan if (name, seed) == ("PowD", 2) else curve[-5]
            made.run(tmp_path / f"{name}{seed}", curve, selector=name, seed=seed)
    found = flsel.compare([tmp_path / "*"])
    assert "PowD is not called better: PowD diverged under 1 seed" in said(found)
    assert "diverged: the test accuracy is not finite in the last 10 evaluations" in found.to_markdown()


def test_runs_that_are_no_pairs_are_not_said_to_share_no_seed_and_describe_no_seeds(tmp_path):
    for seed in range(1, 7):
        for name, rounds in (("Uniform", 20), ("PowD", 30)):
            curve = made.climb(0.8 + NOISE[0, seed], rounds=rounds)
            made.run(tmp_path / f"{name}{seed}", curve, selector=name, seed=seed, rounds=20)
            if name == "PowD":
                config = tmp_path / f"{name}{seed}" / "config.yaml"
                config.write_text(config.read_text().replace("rounds: 20", "rounds: 30"))
    found = flsel.compare([tmp_path / "*"], mismatch="unpaired", target=0.9)
    assert "Chance to have the best" not in said(found)
    (first, *_), analysis = found.analysis.variants, found.analysis
    none = replace(analysis, options=replace(analysis.options, unpaired=False))
    assert (
        Comparison(none).headline
        == "No scores are compared: no run of a variant forms a pair with one of Uniform."
    )
    assert first == "PowD"


def test_the_ratio_of_unpaired_runs_is_said_to_be_of_those_that_arrive(tmp_path):
    for seed in range(1, 7):
        made.run(tmp_path / f"u{seed}", made.climb(0.8 if seed > 2 else 0.3), seed=seed)
        made.run(tmp_path / f"p{seed}", made.climb(0.9), selector="PowD", seed=seed + 10)
    found = flsel.compare([tmp_path / "*"], mismatch="unpaired", target=0.7, last=1)
    assert "x the rounds of Uniform over the runs that arrive, " in said(found)
    assert "x over runs that arrive |" in found.to_markdown()


def test_tables_and_verdicts_call_a_claim_the_same(tmp_path, runner):
    found = compare(tmp_path, seeds=None, until_decided=True, max_seeds=12)
    labels = {c.variant: label(c) for c in found.analysis.claims if c.kind == "mean"}
    assert labels == {"PowD": "Better", "AFL": "Given up"}
    for text in (found.to_markdown(), found.to_latex()):
        assert "given up at" in text
    two = compare(tmp_path / "few", seeds=2).to_latex()
    assert "& exploratory" in two, "two seeds carry no claim, and no p-value"
