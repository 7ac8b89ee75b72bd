"""From made-up runs to numbers and sentences."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
import yaml
from scipy import stats

import flsel
from flsel.comparison.compare import compare_runs
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.comparison import Comparison
from flsel.comparison.comparison_display import say
from flsel.comparison.judging.designs import LEVEL
from flsel.comparison.judging.power import seeds_needed
from flsel.comparison.reporting.tables import ratio_cell
from flsel.comparison.reporting.webpage import page, report
from flsel.comparison.run_table import read_run
from flsel.errors import UserError
from flsel.execution.job import Outcome, write_failure

PRINTS = {"partition": "a", "holdouts": "b", "availability": "c", "model": "d"}


def compare(folder: Path, **wanted: Any) -> Comparison:
    return compare_runs([str(folder / "*")], CompareConfig(**wanted))


def two(folder: Path, ours: list[float], theirs: list[float], **changes: Any) -> None:
    """Runs of PowD and Uniform that end at given accuracies, seeds from 1."""
    for seed, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        made.run(folder / f"p{seed}", made.climb(one), selector="PowD", seed=seed, models=6, **changes)
        made.run(folder / f"u{seed}", made.climb(other), seed=seed, **changes)


def test_a_clear_lead_is_a_verdict_and_its_numbers_are_students(tmp_path):
    ours, theirs = [0.80, 0.81, 0.79, 0.80, 0.82], [0.70, 0.72, 0.69, 0.71, 0.70]
    two(tmp_path, ours, theirs, fingerprints=PRINTS, evaluation__target=0.6)
    found = compare(tmp_path, last=5)
    difference = found.analysis.difference("PowD", "all", "accuracy/last5")
    assert difference is not None
    low, high = stats.ttest_1samp(np.subtract(ours, theirs), 0.0).confidence_interval(LEVEL)
    shown = difference.shown
    assert shown.value == pytest.approx(np.mean(np.subtract(ours, theirs)))
    assert shown.low <= low + 1e-9
    assert shown.high >= high - 1e-9
    texts = [verdict.text for verdict in found.verdicts]
    assert texts[0].startswith(
        "PowD is significantly better than Uniform in test accuracy (mean of the last 5 evaluations): "
        "+10.0 points, 95 % interval +8.1 to +13.3 (corrected for 2 comparisons), p < 0.001 (Holm), "
        "sign-flip p "
    )
    assert texts[0].endswith(", 5 seeds. The exact sign-flip test cannot reject with 5 seeds.")
    assert texts[1].startswith(
        "PowD is significantly better than Uniform in rounds to 60 % (mean of 5 evaluations): 0."
    )
    assert "Every run arrives." in texts[1]
    assert found.headline.startswith("Take PowD: +10.0 points of test accuracy over Uniform; it takes 0.")
    assert any("Pairs are verified" in note for note in found.notes)
    assert any("cannot reject at 5 % with 5 seeds" in note for note in found.notes)


def test_what_is_not_significant_says_how_many_seeds_would_be_needed_and_how_uncertain_that_is(tmp_path):
    two(tmp_path, [0.72, 0.68, 0.75, 0.73, 0.72], [0.70, 0.71, 0.70, 0.72, 0.71])
    found = compare(tmp_path)
    assert found.verdicts[0].kind == "open"
    assert found.verdicts[0].text.startswith("No significant difference in test accuracy")
    claim = found.analysis.claim("PowD", "all", found.analysis.main)
    needed = seeds_needed(claim.lower)
    assert needed.low < needed.value
    assert needed.high is None
    assert (
        f"about {needed.value} seeds for 80 % power (95 % interval {needed.low} to more than 1,000)."
        in found.verdicts[0].text
    )
    assert found.headline == (
        "No significant difference in test accuracy was found. PowD is ahead of Uniform in 4 of 5 seeds, "
        "+1.2 [-2.9, +4.8] points: more seeds would tell."
    )


@pytest.mark.parametrize("seeds", [2, 4])
def test_fewer_seeds_than_can_carry_a_claim_are_exploratory_whatever_they_show(tmp_path, seeds):
    two(tmp_path, [0.80, 0.81, 0.79, 0.80][:seeds], [0.70, 0.72, 0.69, 0.71][:seeds], fingerprints=PRINTS)
    found = compare(tmp_path, target=0.6)
    assert {verdict.kind for verdict in found.verdicts} == {"exploratory"}
    assert not any(claim.made for claim in found.analysis.claims)
    assert "A claim needs at least 5 seeds." in found.verdicts[0].text
    assert any(note.startswith("No claim is made from fewer than 5 seeds") for note in found.notes)
    assert found.headline.startswith("Exploratory")


def test_an_interval_that_says_nothing_is_said_to(tmp_path):
    two(tmp_path, [0.20, 0.95], [0.75, 0.30])
    found = compare(tmp_path)
    shown = found.analysis.difference("PowD", "all", found.analysis.main).shown
    assert (shown.low, shown.high) == (-1.0, 1.0)
    assert found.verdicts[0].text.endswith("2 seeds say nothing about the size of this difference.")


def test_a_target_chosen_after_the_runs_is_never_a_claim(tmp_path):
    two(tmp_path, [0.80, 0.81, 0.79, 0.80, 0.82], [0.70, 0.72, 0.69, 0.71, 0.70], fingerprints=PRINTS)
    chosen, declared = compare(tmp_path), compare(tmp_path, target=0.6)
    for found, size in ((chosen, 1), (declared, 1)):
        assert found.analysis.target.chosen_after
        assert any("was chosen after the runs" in note for note in found.notes)
        kinds = [verdict.kind for verdict in found.verdicts]
        assert kinds == ["resolved", "exploratory"]
        assert found.analysis.claim("PowD", "all", found.analysis.main).design.comparisons == size


def test_a_variant_that_never_arrives_has_a_bound_in_the_right_direction(tmp_path):
    two(tmp_path, [0.50, 0.51, 0.52, 0.50, 0.51], [0.80, 0.82, 0.79, 0.81, 0.60], evaluation__target=0.7)
    found = compare(tmp_path, last=1)
    text = found.verdicts[1].text
    assert "over the 4 pairs that count, the ratio is at least 2.22 x, 95 % interval from " in text
    assert "PowD arrives in 0 of 4 runs, Uniform in 4." in text
    assert "Left out: 1 pair in which neither arrives." in text
    assert "only Uniform in 4 (exact McNemar test, single p = 0.12)." in text


def test_a_ratio_to_runs_that_never_arrive_is_a_bound_without_an_end(tmp_path):
    two(tmp_path, [0.50, 0.51, 0.52, 0.80, 0.81], [0.80, 0.82, 0.79, 0.81, 0.80], evaluation__target=0.7)
    text = compare(tmp_path, last=1).verdicts[1].text
    assert "Over the 2 pairs in which both arrive, PowD takes " in text
    assert "over the 5 pairs that count, the ratio is at least 1." in text
    assert "only Uniform in 3 (exact McNemar test, single p = 0.25)." in text


def test_a_bound_on_the_wrong_side_of_one_supports_no_claim(tmp_path):
    """A variant that is fast where it arrives, and arrives less often, is not called faster."""
    ours, theirs = [0.98, 0.97, 0.96, 0.98, 0.97, 0.60], [0.71, 0.72, 0.715, 0.71, 0.72, 0.71]
    two(tmp_path, ours, theirs, evaluation__target=0.7)
    found = compare(tmp_path, last=1)
    assert "at least 0." in found.verdicts[1].text
    assert found.verdicts[1].kind == "open"


def test_costs_are_judged_in_the_unit_that_is_asked_for(tmp_path):
    two(tmp_path, [0.80, 0.81, 0.79, 0.80, 0.82], [0.70, 0.72, 0.69, 0.71, 0.70], evaluation__target=0.6)
    found = compare(tmp_path, cost="bytes_down", last=1)
    assert [claim.measure for claim in found.analysis.claims] == ["accuracy/last1", "bytes_down/target"]
    assert "significantly worse than Uniform in bytes sent down to 60 %: 2." in found.verdicts[1].text
    assert found.headline.startswith("Take PowD: +10.0 points of test accuracy over Uniform; it takes 2.")
    with pytest.raises(UserError, match=r"cost must be one of rounds, models, .*, got 'time'"):
        compare(tmp_path, cost="time")


def test_accuracy_and_a_declared_target_are_one_family(tmp_path):
    two(tmp_path, [0.80, 0.81, 0.79, 0.80, 0.82], [0.70, 0.72, 0.69, 0.71, 0.70], evaluation__target=0.6)
    found = compare(tmp_path).analysis
    accuracy, rounds = (found.claim("PowD", "all", name) for name in (found.main, found.to_target))
    assert accuracy.design.comparisons == rounds.design.comparisons == 2
    smaller, larger = sorted((accuracy, rounds), key=lambda claim: claim.p()[0])
    assert smaller.p_holm == pytest.approx(2 * smaller.p()[0])
    assert larger.p_holm == pytest.approx(max(larger.p()[0], smaller.p_holm))
    assert accuracy.shown.low < found.difference("PowD", "all", found.main).shown.low


def test_skewed_differences_are_said_to_be(tmp_path):
    two(tmp_path, [0.80, 0.81, 0.79, 0.80, 0.82, 0.30], [0.70, 0.72, 0.69, 0.71, 0.70, 0.70])
    (note,) = [note for note in compare(tmp_path).notes if "skewed" in note]
    assert "It is better in 5 of 6 pairs" in note


def test_one_seed_has_numbers_and_no_intervals(tmp_path):
    two(tmp_path, [0.8], [0.7])
    found = compare(tmp_path)
    assert "with one seed. One seed shows no spread" in found.verdicts[0].text
    assert any("One seed shows no spread" in note for note in found.notes)
    assert "[" not in found.to_markdown().split("## Results")[1].split("Intervals are")[0]


def test_one_variant_with_one_seed_leaves_the_others_their_claims(tmp_path):
    two(tmp_path, [0.80, 0.82, 0.79, 0.81, 0.80], [0.70, 0.69, 0.71, 0.70, 0.71])
    made.run(tmp_path / "a1", made.climb(0.8), selector="AFL")
    found = compare(tmp_path)
    assert any(verdict.kind == "resolved" for verdict in found.verdicts)
    said = " ".join(found.notes)
    assert "One seed shows no spread" not in said
    assert "No claim is made from fewer than 5 seeds" in said


def test_a_run_without_a_partner_is_no_part_of_a_ratio(tmp_path):
    two(tmp_path, [0.95, 0.96, 0.99], [0.71, 0.72, 0.71])
    made.run(tmp_path / "u4", made.climb(0.60), seed=4)  # never arrives
    (ratio,) = [v.text for v in compare(tmp_path, target=0.7, last=1).verdicts if "rounds of" in v.text]
    assert not any(said in ratio for said in ("at most", "enter as")), ratio


def test_runs_that_ended_before_their_last_round_are_said(tmp_path):
    two(tmp_path, [0.80, 0.82], [0.70, 0.69], rounds=40)
    assert not any("before their last round" in note for note in compare(tmp_path).notes)
    summary = tmp_path / "p2" / "summary.json"
    summary.write_text(summary.read_text().replace('"planned_rounds": 20', '"planned_rounds": 40'))
    assert any(note.startswith("1 of 4 runs ended before") for note in compare(tmp_path).notes)


@pytest.mark.parametrize(("seeds", "label"), [(3, "Exploratory"), (5, "Not significant"), (8, "Better")])
def test_a_constant_difference_is_decided_where_the_sign_test_is(tmp_path, seeds, label):
    two(tmp_path, [0.8] * seeds, [0.7] * seeds)
    found = compare(tmp_path)
    assert found.verdicts[0].label == label
    assert found.analysis.difference("PowD", "all", found.analysis.main).p == 2.0 ** (1 - seeds)
    assert not any("80 % power" in note for note in found.notes)


def test_identical_variants_are_called_equal(tmp_path):
    two(tmp_path, [0.8, 0.7, 0.6, 0.7, 0.8], [0.8, 0.7, 0.6, 0.7, 0.8])
    verdict = compare(tmp_path).verdicts[0]
    assert (verdict.kind, verdict.label) == ("open", "Equal")
    assert "PowD equals Uniform in test accuracy" in verdict.text


@pytest.mark.parametrize(("baseline", "side"), [("Uniform", "more"), ("PowD", "fewer")])
def test_a_constant_ratio_of_costs_is_a_claim_whichever_is_the_baseline(tmp_path, baseline, side):
    for seed in range(1, 9):
        made.run(tmp_path / f"p{seed}", made.climb(0.8), selector="PowD", seed=seed, models=13)
        made.run(tmp_path / f"u{seed}", made.climb(0.8), seed=seed, models=3)
    found = compare(tmp_path, cost="models", last=1, baseline=baseline, target=0.7)
    ratio = found.analysis.difference("PowD" if baseline == "Uniform" else "Uniform", "all", "models/target")
    assert ratio.p == 2.0**-7
    assert ratio.shown.value == pytest.approx(13 / 3 if side == "more" else 3 / 13)


def test_a_target_that_is_given_after_looking_makes_no_claim_easier(tmp_path):
    ours, theirs = [0.712, 0.725, 0.698, 0.731, 0.716, 0.709], [0.701, 0.702, 0.699, 0.713, 0.690, 0.708]
    two(tmp_path, ours, theirs, evaluation__target=0.65)
    declared, after = compare(tmp_path), compare(tmp_path, target=0.64)
    p = [found.analysis.claim("PowD", "all", found.analysis.main).p_holm for found in (declared, after)]
    assert p[1] >= p[0] - 1e-12
    assert after.headline.startswith("Take") == declared.headline.startswith("Take")


def test_a_late_run_cuts_no_arrival(tmp_path):
    """Both-arriving pairs say 3.8 x; one late run of the baseline, which ended early, must not hide it."""
    slow, fast = [0.1 + 0.035 * r for r in range(21)], [0.1, *(0.3 + 0.1 * min(r, 5) for r in range(20))]
    for seed in range(1, 8):
        late = seed == 7
        made.run(tmp_path / f"p{seed}", slow, selector="PowD", seed=seed, evaluation__target=0.7)
        made.run(tmp_path / f"u{seed}", [0.3] * 21 if late else fast, seed=seed, evaluation__target=0.7)
    found = compare(tmp_path, last=1)
    verdict = found.verdicts[1]
    assert verdict.label == "Not significant"
    assert re.search(
        r"Over the 6 pairs in which both arrive, PowD takes [34]\.\d+ x the rounds", verdict.text
    )
    assert "at most" in verdict.text
    assert "Only PowD arrives in 1 pair," in verdict.text


def test_better_is_withheld_where_only_the_variant_diverges(tmp_path):
    two(tmp_path, [0.80, 0.81, 0.79, 0.80, 0.82], [0.70, 0.72, 0.69, 0.71, 0.70])
    for seed in (6, 7, 8):
        made.run(tmp_path / f"u{seed}", made.climb(0.7), seed=seed)
        lost = made.run(tmp_path / f"p{seed}", made.climb(0.8), selector="PowD", seed=seed)
        (lost / "summary.json").unlink()
        write_failure(lost, Outcome("diverged", "every client of round 3 returned a non-finite model"))
    found = compare(tmp_path)
    assert found.verdicts[0].label == "Withheld"
    assert "PowD is not called better: PowD diverged under 3 seeds under which Uniform did not." in (
        found.verdicts[0].text
    )
    assert found.headline == (
        "No variant is significantly better than Uniform in test accuracy. PowD is not called better: runs "
        "of PowD diverged."
    )


def test_pairs_in_which_neither_arrives_leave_the_ratio_exact_everywhere(tmp_path):
    for seed in range(1, 9):
        for name, end in (("Uniform", 15), ("PowD", 8 + seed % 2)):
            curve = [0.3] * 21 if seed < 3 else [min(0.8, 0.1 + 0.6 * r / end) for r in range(21)]
            folder = tmp_path / f"{name}{seed}"
            made.run(folder, curve, selector=name, seed=seed, evaluation__target=0.7)
    found = compare(tmp_path, last=1)
    cell = ratio_cell("rounds/target", found.analysis, "PowD", "all")
    (text,) = [v.text for v in found.verdicts if "rounds to 70 %" in v.text]
    assert cell.startswith("0.57 x [")
    assert "0.57 x, 95 % interval" in text
    assert "Every run of these pairs arrives. Left out: 2 pairs in which neither arrives." in text


def test_a_headline_does_not_deny_what_is_worse(tmp_path):
    two(tmp_path, [0.60, 0.61, 0.59, 0.60, 0.62, 0.6], [0.70, 0.72, 0.69, 0.71, 0.70, 0.7])
    assert compare(tmp_path).headline == (
        "No variant is significantly better than Uniform in test accuracy. Significantly worse: PowD."
    )


def test_one_variant_is_compared_with_nothing(tmp_path):
    made.run(tmp_path / "u", made.climb(0.7))
    assert "No scores are compared: there is one variant, Uniform." in compare(tmp_path).notes


def test_a_target_nobody_reaches_is_said(tmp_path):
    two(tmp_path, [0.8, 0.81], [0.7, 0.72])
    found = compare(tmp_path, target=0.95)
    assert "Neither PowD nor Uniform reaches 95 % (mean of 10 evaluations)." in [
        verdict.text for verdict in found.verdicts
    ]
    row = next(line for line in found.to_markdown().splitlines() if line.startswith("| Uniform"))
    assert "> 20" in row
    assert "0/2" in row


def test_runs_that_never_arrive_are_bounds_and_named(tmp_path):
    two(tmp_path, [0.80, 0.82, 0.85, 0.81], [0.70, 0.82, 0.68, 0.80])
    found = compare(tmp_path, target=0.75, last=1)
    difference = found.analysis.difference("PowD", "all", "rounds/target")
    assert difference.censored == 2
    reached = found.analysis.arrival("Uniform", "all", "rounds/target")
    assert (reached.reached, reached.n) == (2, 4)
    assert any(
        "Uniform in 2 of 4. PowD takes " in v.text and "2 pairs in which both" in v.text
        for v in found.verdicts
    )


def test_pairs_whose_fingerprints_differ_are_left_out_or_compared_unpaired(tmp_path):
    two(tmp_path, [0.80, 0.82, 0.79], [0.70, 0.69, 0.71], fingerprints=PRINTS)
    summary = tmp_path / "p2" / "summary.json"
    stored = json.loads(summary.read_text())
    stored["fingerprints"]["partition"] = "other"
    summary.write_text(json.dumps(stored))
    found = compare(tmp_path)
    difference = found.analysis.difference("PowD", "all", found.analysis.main)
    assert difference.seeds == (1, 3)
    assert any("under seed 2 are no pair: partition differ" in note for note in found.notes)
    assert any("whose fingerprint of partition cannot tell other values" in note for note in found.notes)
    other = compare(tmp_path, mismatch="unpaired").analysis
    unpaired = other.difference("PowD", "all", other.main)
    assert not unpaired.paired
    assert unpaired.p == pytest.approx(
        stats.ttest_ind([0.80, 0.82, 0.79], [0.70, 0.69, 0.71], equal_var=False).pvalue
    )


def test_runs_with_other_settings_are_refused_or_left_out_with_the_difference(tmp_path):
    two(tmp_path, [0.80, 0.82], [0.70, 0.69])
    odd = made.run(tmp_path / "z", made.climb(0.9), selector="HiCS", clients_per_round=3)
    with pytest.raises(UserError, match=r"z is not comparable with .*: clients_per_round 3 instead of 2"):
        compare(tmp_path)
    found = compare(tmp_path, mismatch="drop")
    assert {run.status for run in found.analysis.runs if run.folder == odd} == {"excluded"}
    assert found.analysis.summary("HiCS", "all", found.analysis.main) is None
    assert any("1 of 5 runs were left out" in note for note in found.notes)
    assert "other settings: clients_per_round 3 instead of 2" in found.to_markdown()


def test_diverged_runs_are_listed_and_never_averaged(tmp_path):
    two(tmp_path, [0.80, 0.82, 0.81], [0.70, 0.69, 0.71])
    metrics = tmp_path / "p3" / "metrics.csv"
    *lines, last = metrics.read_text().splitlines()
    cells = last.split(",")
    cells[1] = "nan"
    metrics.write_text("\n".join([*lines, ",".join(cells)]) + "\n")
    found = compare(tmp_path)
    assert found.analysis.summary("PowD", "all", "accuracy/final").mean.n == 2
    assert any("1 of 6 runs diverged" in note for note in found.notes)
    assert "1 of 3 runs of PowD diverged. The others bias its results upward." in found.notes


def test_scenarios_that_differ_are_ranked(tmp_path):
    for number, alpha in enumerate((0.1, 0.5, 1.0)):
        spec = {"class_path": "flsel.partition.dirichlet.Dirichlet", "init_args": {"alpha": alpha}}
        for name, end in (("Uniform", 0.5), ("PowD", 0.6), ("HiCS", 0.7)):
            for seed in (1, 2):
                made.run(
                    tmp_path / f"{name}{number}{seed}", made.climb(end + seed / 100),
                    selector=name, seed=seed, partition=spec,
                )  # fmt: skip
    found = compare(tmp_path)
    assert found.analysis.scenarios == tuple(f"partition.alpha={alpha}" for alpha in (0.1, 0.5, 1.0))
    ranking = found.analysis.ranking
    assert dict(zip(found.analysis.variants, ranking.mean_ranks, strict=True)) == {
        "HiCS": 1.0, "PowD": 2.0, "Uniform": 3.0,
    }  # fmt: skip
    assert "HiCS has the best mean rank over 3 scenarios" in found.verdicts[0].text
    assert found.verdicts[0].kind == "exploratory"


def test_many_scenarios_show_their_ranking_and_what_is_resolved_and_fold_the_rest_away(tmp_path):
    noise = np.random.default_rng(0).normal(0, 0.02, (9, 3, 5))
    for number, (alpha, draws) in enumerate(zip(np.linspace(0.1, 0.9, 9), noise, strict=True)):
        spec = {"class_path": "flsel.partition.dirichlet.Dirichlet", "init_args": {"alpha": float(alpha)}}
        ends = {"Uniform": 0.5 + draws[0], "PowD": 0.5 + draws[1], "HiCS": 0.7 + draws[0] + draws[2] / 50}
        for name, values in ends.items():
            for seed, end in enumerate(values, 1):
                made.run(
                    tmp_path / f"{name}{number}{seed}", made.climb(end), selector=name, seed=seed,
                    partition=spec, fingerprints=PRINTS,
                )  # fmt: skip
    found = compare(tmp_path, target=0.99)
    kinds = [verdict.kind for verdict in found.verdicts]
    assert "mean rank over 9 scenarios" in found.verdicts[0].text
    assert "p = 0.011, blocks are the 5 seeds)" in found.verdicts[0].text
    assert kinds[1:] == sorted(kinds[1:], key=lambda kind: kind != "resolved")
    resolved, hidden = kinds[1:].count("resolved"), kinds[1:].count("open")
    assert resolved >= 9
    assert hidden > 12
    said = io.StringIO()
    say(found.analysis, [], said)
    words = " ".join(said.getvalue().split())
    assert sum(line.startswith("* ") for line in said.getvalue().splitlines()) == kinds.count("resolved")
    assert "tables of the 9 scenarios" in words
    assert f"- {hidden} more comparisons are not significant" in words
    for text in (report(found.analysis, "t", []), page(found.analysis, "t", None, [])):
        shown, _, rest = text.partition(
            f"<details><summary>{hidden} more comparisons, none significant</summary>"
        )
        assert "over 9 scenarios" in shown
        assert "No significant difference in test" in rest
        assert "No significant difference in test" not in shown


def sweep(folder: Path, selector: str, trials: int) -> Path:
    """A sweep's folder with one trial of two seeds; returns the trial's."""
    trial = folder / "trials" / "0003"
    for seed in (1, 2):
        made.run(trial / f"seed{seed}", made.climb(0.8), selector=selector, seed=seed)
    (folder / "sweep.yaml").write_text(f"trials: {trials}\nseeds: [1, 2]\n")
    (folder / "config.yaml").write_text("rounds: 20\nseed: 1\n")
    return trial


def test_tuned_on_the_seeds_that_judge_and_unequal_budgets_are_said(tmp_path):
    two(tmp_path / "plain", [0.80, 0.82], [0.70, 0.69])
    hics, fedcor = sweep(tmp_path / "one", "HiCS", 24), sweep(tmp_path / "two", "FedCor", 8)
    plain = str(tmp_path / "plain" / "*")
    found = compare_runs([plain, str(hics / "seed*")], CompareConfig())
    assert any("HiCS was tuned on seeds 1, 2" in note for note in found.notes)
    assert any("Tuned: HiCS. Not tuned: PowD, Uniform." in note for note in found.notes)
    assert not any("budgets differ" in note for note in found.notes)
    found = compare_runs([plain, str(hics / "seed*"), str(fedcor / "seed*")], CompareConfig())
    assert any(
        "Tuning budgets differ: " in note and "HiCS 480 rounds" in note and "FedCor 160 rounds" in note
        for note in found.notes
    )


def test_files_hold_every_number(tmp_path):
    two(tmp_path / "runs", [0.80, 0.82, 0.81], [0.70, 0.69, 0.71])
    found = compare(tmp_path / "runs", target=0.6)
    frame = found.results
    assert len(frame) == 6
    assert frame["accuracy/final"].max() == pytest.approx(0.82)
    assert {"mean", "low", "high", "iqm", "median", "restricted_mean"} <= set(found.summary.columns)
    assert {"p", "p_holm", "p_exact", "seeds_needed", "resolvable"} <= set(found.differences.columns)
    from flsel.comparison.reporting.tables import difference_rows, to_csv

    read = list(csv.DictReader(io.StringIO(to_csv(difference_rows(found.analysis)))))
    assert float(read[0]["estimate"]) == found.differences["estimate"][0]


def test_the_table_of_a_paper_fits_a_column(tmp_path):
    two(tmp_path, [0.80, 0.82, 0.81], [0.70, 0.69, 0.71], evaluation__target=0.6)
    found = compare(tmp_path, last=1)
    lines = found.to_latex().splitlines()
    assert lines[0] == "% needs \\usepackage{booktabs,graphicx,siunitx}"
    assert "variant & $n$ & acc.\\ (\\%) & vs. Uniform & $p$ & rounds, ratio \\\\" in lines
    (at,) = [number for number, line in enumerate(lines) if line.startswith("PowD")]
    assert lines[at].startswith("PowD & 3 & \\num{81.0} & \\num[retain-explicit-plus]{+11.0} & ")
    assert lines[at + 1].startswith(" &  & {\\scriptsize [\\num{78.5}, \\num{83.5}]} & {\\scriptsize [")
    assert lines[-2].startswith("\\multicolumn{6}{@{}p{\\linewidth}@{}}{Intervals: 95\\,\\%. Those of")
    assert "Target: 60\\,\\%; ratios of rounds to Uniform." in lines[-2]
    assert all(line.count("&") == 5 for line in lines if "\\\\" in line and "multi" not in line)
    wide = found.to_latex(["seeds", "reached", "cost", "loss"], transposed=True).splitlines()
    assert " & PowD & Uniform \\\\" in wide
    assert "$n$ & 3 & 3 \\\\" in wide
    with pytest.raises(UserError, match=r"columns must be some of accuracy, difference, p, .*, got 'gini'"):
        found.to_latex(["gini"])


def test_a_run_that_could_not_be_built_says_why(tmp_path):
    write_failure(tmp_path, Outcome("failed", "mnist not found"))
    run = read_run(tmp_path)
    assert (run.status, run.reason) == ("failed", "mnist not found")


def unfinished(failure: str) -> Callable[[Path], object]:
    """Leave a run without numbers, and with a note of why."""

    def spoil(folder: Path) -> None:
        (folder / "summary.json").unlink()
        (folder / "failure.json").write_text(failure)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: (f / "summary.json").unlink(), r"is not finished \(stopped at round 20 of 20\)"),
        (lambda f: (f / "summary.json").write_text("{"), "summary.json is damaged"),
        (lambda f: (f / "summary.json").write_text('{"format": 0}'), "has format 0, this flsel reads format"),
        (lambda f: (f / "config.yaml").unlink(), "it holds no config.yaml"),
        (lambda f: (f / "config.yaml").write_text("seed: x\n"), "damaged: seed must be an integer"),
        (lambda f: (f / "labels.csv").write_text("1,2\n3\n"), "labels.csv is damaged"),
        (lambda f: (f / "labels.csv").write_text("1,2\n"), "labels.csv is damaged"),
        (unfinished("["), "failure.json is damaged"),
        (unfinished('["odd", "reason"]'), "failure.json is damaged"),
        (lambda f: (f / "metrics.csv").write_text("round,other\n20,2\n"), "has no test accuracy"),
    ],
    ids=[
        "half-written",
        "torn",
        "foreign",
        "none",
        "seed",
        "ragged",
        "few",
        "torn failure",
        "odd failure",
        "version",
    ],
)
def test_bad_folders_are_named(tmp_path, spoil, sentence):
    two(tmp_path, [0.8], [0.7])
    spoil(tmp_path / "p1")
    with pytest.raises(UserError, match=sentence):
        compare(tmp_path)


def test_the_same_run_twice_is_refused(tmp_path):
    two(tmp_path, [0.8], [0.7])
    made.run(tmp_path / "again", made.climb(0.8), selector="PowD")
    with pytest.raises(
        UserError, match=r"again and .*p1 are PowD under seed 1, with the same settings: leave all"
    ):
        compare(tmp_path)


def test_of_runs_that_are_there_twice_one_is_picked(tmp_path):
    two(tmp_path, [0.8], [0.7])
    again = made.run(tmp_path / "again", made.climb(0.9), selector="PowD")
    os.utime(tmp_path / "p1" / "summary.json", (1, 1))
    newest, oldest = (compare(tmp_path, pick=pick).analysis for pick in ("newest", "oldest"))
    assert newest.summary("PowD", "all", "accuracy/final").mean.value == pytest.approx(0.9)
    assert oldest.summary("PowD", "all", "accuracy/final").mean.value == pytest.approx(0.8)
    same = flsel.compare([tmp_path / "*"], pick="newest").analysis.runs
    assert [(run.folder, run.status) for run in same] == [(run.folder, run.status) for run in newest.runs]
    (lost,) = [run for run in oldest.runs if run.status == "excluded"]
    assert lost.folder == again
    assert lost.reason == f"{tmp_path / 'p1'} has the same settings and seed"


def test_a_pattern_takes_the_runs_among_what_else_is_there(tmp_path):
    two(tmp_path, [0.8], [0.7])
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "figures").mkdir()
    assert len(compare(tmp_path).analysis.runs) == 2


def test_another_dataset_is_refused(tmp_path):
    two(tmp_path, [0.8], [0.7])
    made.run(tmp_path / "other", made.climb(0.8), selector="HiCS", data__name="fashion_mnist")
    with pytest.raises(UserError, match=r"data\.name fashion_mnist instead of synthetic"):
        compare(tmp_path)


def test_no_such_runs(tmp_path):
    with pytest.raises(UserError, match=r"there is no folder "):
        compare(tmp_path / "nothing")
    two(tmp_path, [0.8], [0.7])
    with pytest.raises(UserError, match="baseline HiCS has no finished run; there are runs of PowD, Uniform"):
        compare(tmp_path, baseline="HiCS")


def test_short_runs_are_judged_by_half_of_what_they_have(tmp_path):
    """A mean of ten evaluations never reaches a target in a run of seven."""
    for name, end in (("Uniform", 0.6), ("PowD", 0.7)):
        for seed in (1, 2):
            made.run(tmp_path / f"{name}{seed}", made.climb(end, rounds=6), selector=name, seed=seed)
    found = compare_runs([str(tmp_path / "*")], CompareConfig(target=0.55))
    assert found.analysis.options.last == 3
    assert found.analysis.main == "accuracy/last3"
    assert found.analysis.arrival("PowD", "all", "rounds/target3").reached == 2
    assert "means are of 3 evaluations and not of 10: half of what the shortest run has" in " ".join(
        found.notes
    )


def test_a_run_that_is_older_than_a_setting_has_its_default(tmp_path):
    for name, lacks in (("Uniform", True), ("PowD", False)):
        folder = made.run(tmp_path / name, made.climb(0.6), selector=name)
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        if lacks:
            del settings["data"]["server"]
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    assert len(compare(tmp_path).analysis.values) == 2
    settings["data"]["server"] = 0.1
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(UserError, match=r"data.server .* instead of"):
        compare(tmp_path)


def test_a_run_that_diverged_never_arrives(tmp_path):
    for seed in range(1, 13):
        made.run(tmp_path / f"u{seed}", made.climb(0.7), seed=seed, evaluation__target=0.6)
        lost = made.run(
            tmp_path / f"p{seed}", made.climb(0.7), selector="PowD", seed=seed, evaluation__target=0.6
        )
        if seed > 4:
            (lost / "summary.json").unlink()
            write_failure(lost, Outcome("diverged", "every client of round 3 returned a non-finite model"))
    found = compare(tmp_path, last=1)
    arrived = found.analysis.arrival("PowD", "all", "rounds/target")
    assert (arrived.reached, arrived.n) == (4, 12)
    (claim,) = [claim for claim in found.analysis.claims if claim.kind == "arrival"]
    assert claim.p()[0] == pytest.approx(2.0**-7)
    assert claim.decision.claim == "worse"
    assert "only PowD arrives in 0 pairs, only Uniform in 8" in " ".join(v.text for v in found.verdicts)
