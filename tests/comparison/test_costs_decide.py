"""``compare --until-decided --decides rounds``: claims about costs to a target, on made-up runs."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
from runs import settings
from scipy import stats

import flsel
from flsel.commands.cli import main
from flsel.comparison.comparison import Comparison
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.designs import DECIDING
from flsel.comparison.judging.settings import JudgingSettings
from flsel.comparison.reporting.chart_data import chart_data
from flsel.comparison.run_table import read_run

NOISE = np.random.default_rng(2).normal(0, 0.04, (3, 40))
SPEED = {"Uniform": 1.0, "PowD": 0.6, "AFL": 1.0}
MODELS = {"Uniform": 2, "PowD": 5, "AFL": 2}

pytestmark = pytest.mark.usefixtures("here")


def curve(variant: str, seed: int) -> dict[str, Any]:
    """A run that climbs in a straight line to about 80 %, in about 20 rounds times its variant's speed."""
    noise = NOISE[list(SPEED).index(variant), seed - 1]
    rounds = 20 * SPEED[variant] * math.exp(noise)
    climbed = [0.1 + (0.7 + noise / 10) * min(1.0, r / rounds) for r in range(41)]
    return {"curve": climbed, "models": MODELS[variant]}


def seldom(variant: str, seed: int) -> dict[str, Any]:
    """The same, where every third run of Uniform stays at 40 %."""
    found = curve(variant, seed)
    if variant == "Uniform" and seed % 3 == 0:
        found["curve"] = [min(0.4, value) for value in found["curve"]]
    return found


def nothing(variant: str, seed: int) -> dict[str, Any]:
    """Runs that all stay at 40 %."""
    return {"curve": [min(0.4, value) for value in curve(variant, seed)["curve"]]}


def compare(folder: Path, **wanted: Any) -> Comparison:
    config = settings(folder / "unused", rounds=40)
    given = {
        "variants": ["Uniform", "PowD", "AFL"], "until_decided": True, "decides": "rounds", "target": 0.6,
        "margin_ratio": 1.1, **wanted,
    }  # fmt: skip
    return flsel.compare(config, folder=str(folder), name="c", **given)


def test_rounds_to_the_target_decide(tmp_path, monkeypatch):
    executed = made.Executed(monkeypatch, curve).executed
    found = compare(tmp_path)
    claims = {claim.variant: claim for claim in found.analysis.claims}
    assert claims["PowD"].decision.claim == "better"
    assert claims["AFL"].decision.claim == "equivalent"
    assert max(seed for _, seed in executed) == max(c.decision.n for c in claims.values()) < 30
    assert 0.25 < claims["PowD"].lower.mean() < -math.log(0.6), "the mean of 10 evaluations lags"
    said = found.verdicts[0].text
    assert said.startswith("PowD is better than Uniform in rounds to 60 % (mean of 10 evaluations): 0.7")
    assert " x, 95 % interval 0." in said
    assert "Every run arrives." in said
    assert "Corrected for the looks, the estimate is 0.7" in said
    assert "equivalent within 1.1 x in rounds to 60 %" in found.verdicts[1].text
    assert found.headline.startswith("Take PowD: 0.7")
    assert " x the rounds of Uniform to 60 %, at " in found.headline
    accuracy = [v for v in found.verdicts if "in test accuracy" in v.text]
    assert {v.kind for v in accuracy} == {"exploratory"}
    assert "The claims are about rounds to 60 %." in accuracy[0].text
    assert any("Claims are about rounds to 60 % alone" in note for note in found.notes)
    assert not any("Test accuracy alone decides" in note for note in found.notes)


def test_every_form_of_the_report_leads_with_the_cost_that_decides(tmp_path, monkeypatch):
    made.Executed(monkeypatch, curve)
    found = compare(tmp_path)
    found.write()
    rows = list(csv.DictReader((tmp_path / "c/decisions.csv").read_text().splitlines()))
    last = [row for row in rows if row["variant"] == "PowD"][-1]
    assert (last["measure"], last["unit"]) == ("rounds/target10", "ln(baseline / variant)")
    assert float(last["ratio"]) == pytest.approx(math.exp(-float(last["mean"])))
    assert float(last["ratio_low"]) < float(last["ratio"]) < float(last["ratio_high"]) < 1
    assert float(last["margin"]) == pytest.approx(math.log(1.1))
    assert last["reached"] == last["reached_baseline"] == last["runs"] == last["n"]
    d = found.analysis.difference("PowD", "all", "rounds/target10")
    assert d is not None
    assert d.shown.value == pytest.approx(float(last["ratio"]))
    assert (d.shown.low, d.shown.high) == pytest.approx((float(last["ratio_low"]), float(last["ratio_high"])))
    head = next(line for line in found.to_markdown().splitlines() if line.startswith("| variant"))
    assert head.split(" | ")[2:6] == ["rounds to 60 %", "reached", "rounds, ratio", "decided"]
    assert r"rounds to 60\,\%, ratio" in found.to_latex()
    assert "decided" in found.to_latex()
    (pairs,) = [chart for chart in chart_data(found.analysis)["pairs"] if chart["variant"] == "PowD"][:1]
    assert 0.6 < pairs["difference"] < 0.95
    assert "Rounds to 60 % (mean of 10 evaluations): ratio to Uniform, seed by seed" in found.to_html()
    assert [v.text for v in flsel.compare(tmp_path / "c").verdicts] == [v.text for v in found.verdicts]


def test_bytes_count_the_larger_total_of_a_pair(tmp_path, monkeypatch):
    """PowD sends more in each round than it saves in rounds."""
    made.Executed(monkeypatch, seldom)
    found = compare(tmp_path, decides="bytes", margin_ratio=None)
    text = found.verdicts[0].text
    assert "in bytes sent to 60 % (mean of 10 evaluations)" in text
    assert found.analysis.options.cost == "bytes"
    assert "bytes sent, ratio" in found.to_markdown()
    late = next(claim for claim in found.analysis.claims if claim.variant == "AFL")
    ours, theirs = late.arrived(6)
    assert (ours, theirs) == (6, 4)


def test_a_baseline_that_seldom_arrives_leaves_an_upper_bound(tmp_path, monkeypatch):
    made.Executed(monkeypatch, seldom)
    found = compare(tmp_path, variants=["Uniform", "AFL"])
    (claim,) = found.analysis.claims
    text = found.verdicts[0].text
    runs = claim.decision.looks[-1].n
    assert claim.decision.claim != "equivalent"
    assert f"AFL arrives in {runs} of {runs} runs, Uniform in {runs - runs // 3}." in text
    assert "So the ratio has no lower bound." in text


def test_seconds_that_decide_are_said_to_be_wall_time(tmp_path, monkeypatch):
    made.Executed(monkeypatch, curve)
    found = compare(tmp_path, variants=["Uniform", "PowD"], decides="seconds")
    assert found.analysis.claims[0].decision.claim == "better"
    assert any(note.startswith("Seconds are wall time") for note in found.notes)


def test_where_no_run_arrives_nothing_is_claimed_and_little_is_run(tmp_path, monkeypatch):
    made.Executed(monkeypatch, nothing)
    found = compare(tmp_path, variants=["Uniform", "AFL"])
    (claim,) = found.analysis.claims
    assert (claim.decision.claim, claim.decision.n, claim.decision.given_up) == ("open", 8, True)
    assert "of 8 seeds, neither run arrives in 8." in found.verdicts[0].text
    assert found.headline == "No variant is decided to be better than Uniform in rounds to 60 %."


def test_several_scenarios_are_decided_by_their_mean(tmp_path, monkeypatch):
    made.Executed(monkeypatch, seldom)
    found = compare(tmp_path, variants=["Uniform", "PowD"], grid=("availability=IDL,LN",))
    (claim,) = found.analysis.claims
    assert claim.runs == 2
    assert claim.arrived(6) == (12, 8)
    assert "averaged over 2 scenarios" in found.verdicts[0].text


def test_what_was_declared_stays_on_a_resume(tmp_path, monkeypatch, capsys):
    made.Executed(monkeypatch, curve)
    compare(tmp_path, variants=["Uniform", "PowD"])
    resume = ["compare", "--resume", str(tmp_path / "c")]
    for words, sentence in (
        (
            ["--target", "0.7"],
            "target must stay as declared, 0.6, where seeds are run until decided; got 0.7.",
        ),
        (["--decides", "bytes"], "decides must stay as declared, rounds, where seeds are run until decided"),
        (["--cost", "bytes"], "cost must stay as declared, rounds, where seeds are run until decided"),
        (["--last", "5"], "last must stay as declared, 10, where seeds are run until decided; got 5."),
        (["--margin", "1"], "margin is of the runs' score, and rounds decides here: give margin_ratio"),
    ):
        assert main([*resume, *words]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert len(error.splitlines()) == 1
    assert main([*resume, "--margin-ratio", "1.2", "--target", "0.6", "--decides", "rounds"]) == 0
    assert flsel.compare(tmp_path / "c").analysis.claims[0].design.margin == pytest.approx(math.log(1.2))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--decides", "rounds"], "decides rounds needs a target that is declared before the first run"),
        (["--margin", "1", "--margin-ratio", "1.1"], "margin_ratio is of costs, and the score decides here"),
        (
            ["--decides", "hops"],
            "decides must be one of accuracy, rounds, models, bytes, bytes_down, bytes_up",
        ),
        (["--decides", "passes", "--target", "0.6"], "simulated_seconds, got 'passes'."),
        (["--margin-ratio", "1.1"], "margin_ratio is of costs, and the score decides here: give margin"),
        (["--decides", "rounds", "--target", "0.6", "--margin", "1"], "give margin_ratio instead"),
        (["--decides", "rounds", "--target", "0.6", "--margin-ratio", "1"], "margin_ratio must be "),
        (
            ["--decides", "rounds", "--target", "0.6", "--cost", "bytes"],
            "cost must be rounds, which decides, or be left out; got bytes.",
        ),
        (["--decides", "simulated_seconds", "--target", "0.6"], "simulated_seconds needs simulated devices"),
        (["--plan", "--sd", "0.2", "--decides", "rounds"], "a plan that decides rounds needs a target"),
        (
            ["--plan", "--sd", "x", "--decides", "rounds"],
            "sd must be a number > 0, of the logarithms of the ratios, got x.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(words, sentence, capsys, tmp_path):
    assert main(["compare", "--selectors", "Uniform,PowD", "--until-decided", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "comparisons").exists()


def test_what_decides_goes_with_until_decided(capsys):
    assert main(["compare", "--selectors", "Uniform,PowD", "--decides", "rounds", "--target", "0.6"]) == 2
    assert "decides must be given with until_decided: add --until-decided." in capsys.readouterr().err


def test_a_plan_is_in_ratios(tmp_path, monkeypatch, capsys):
    words = ["compare", "--selectors", "Uniform,PowD,AFL", "--plan", "--decides", "rounds", "--target", "0.6"]
    assert main([*words, "--margin-ratio", "1.1", "--sd", "0.1"]) == 0
    said = capsys.readouterr().out
    assert "with a margin of 1.1 x." in said
    assert "Logarithms of the ratios of rounds to 60 % have a standard deviation of 0.1." in said
    assert "0.91 x" in said
    assert "points" not in said
    made.Executed(monkeypatch, curve)
    compare(tmp_path, until_decided=False, decides=None, margin_ratio=None, seeds="4")
    capsys.readouterr()
    assert main(["compare", "--resume", str(tmp_path / "c"), "--plan", "--decides", "rounds"]) == 0
    assert "have a standard deviation of 0.0" in capsys.readouterr().out


def test_costs_of_a_pair_depend_on_the_pair_alone(tmp_path):
    late = [0.4] * 41
    soon = [0.1, *[0.8] * 40]
    cheap = read_run(made.run(tmp_path / "a", late, models=1))
    dear = read_run(made.run(tmp_path / "b", soon, models=4))
    never = read_run(made.run(tmp_path / "c", late, models=4))
    at_start = read_run(made.run(tmp_path / "d", [0.9] * 41, models=4))
    deciding = Deciding("models", 1, 0.6)
    assert deciding.difference(dear, dear) == (0.0, 0.0)
    spent = cheap.columns["models"][-1]
    assert deciding.difference(cheap, dear) == (-math.inf, pytest.approx(math.log(4 / spent)))
    assert deciding.difference(dear, cheap) == (pytest.approx(math.log(spent / 4)), math.inf)
    assert deciding.difference(cheap, never) == (-math.inf, math.inf), "less in a round saves nothing"
    assert deciding.difference(at_start, dear) == (0.0, 0.0), "the next evaluation, which has a cost"


def test_the_headline_of_a_fixed_comparison_names_the_cost_that_alone_differs(tmp_path, monkeypatch):
    made.Executed(monkeypatch, curve)
    fixed = {"until_decided": False, "decides": None, "margin_ratio": None, "seeds": "6"}
    found = compare(tmp_path, variants=["Uniform", "PowD"], cost="rounds", **fixed)
    assert found.headline.startswith("Take PowD: 0.7")
    assert found.headline.endswith(
        " x the rounds of Uniform to 60 %, with no significant difference in test accuracy."
    )


def test_the_help_names_all_that_can_decide():
    said = (JudgingSettings.__doc__ or "").partition("decides: ")[2].partition("margin: ")[0]
    assert all(f"``{name}``" in said for name in DECIDING)
    assert "passes" not in DECIDING, "a run may take none"


def test_arrival_is_claimed_once_the_cost_is_decided(tmp_path, monkeypatch):
    """The variant is a little faster in every pair, and the baseline mostly late: both are decided late."""

    def made_up(variant: str, seed: int) -> dict[str, Any]:
        rounds = 39.0 if variant == "PowD" else 41.0 if seed % 12 else 38.0
        return {"curve": [0.1 + 0.5 * min(1.0, r / (rounds - NOISE[0, seed - 1])) for r in range(41)]}

    made.Executed(monkeypatch, made_up)
    found = compare(tmp_path, variants=["Uniform", "PowD"], last=1, margin_ratio=None)
    cost, *arrivals = found.analysis.claims
    assert (cost.kind, cost.decision.claim) == ("mean", "better")
    ours, theirs = cost.alone(cost.decision.n)
    before = max(look for look in cost.design.looks if look < cost.decision.n)
    share = 0.9 * (cost.decision.n**2 - before**2) / 30**2
    p = stats.binomtest(ours, ours + theirs).pvalue
    assert len(arrivals) == (p <= 0.05 * share)
    assert len(arrivals) == 1
    assert arrivals[0].p()[0] == pytest.approx(p)
    assert any(v.text.startswith("PowD reaches 60 % more often than Uniform: only") for v in found.verdicts)
    assert {row["measure"] for row in found.decisions.to_dict("records")} == {"rounds/target", "arrival"}
    assert any(note.startswith("Seeds were run until every claim was decided") for note in found.notes)


def test_pairs_in_which_neither_arrives_keep_their_place_when_a_comparison_is_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Early arrivals alone are no fair sample, at whatever look, and however often it is judged."""

    def early(variant: str, seed: int) -> dict[str, Any]:
        return nothing(variant, seed) if seed % 2 else curve(variant, seed)

    made.Executed(monkeypatch, early)
    found = compare(tmp_path, variants=["Uniform", "PowD"], decides="models", max_seeds=20)
    (claim,) = [c for c in found.analysis.claims if c.kind == "mean"]
    assert claim.decision.claim == "open"
    assert claim.left_out == 10
    assert "These are more than a third of all pairs, so no direction is claimed." in found.verdicts[0].text
