"""``compare --until-decided``: what is executed, when it stops, what is kept and what is said."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
import yaml
from runs import settings

import flsel
from flsel.commands.cli import main
from flsel.comparison import cells
from flsel.comparison.comparison import Comparison
from flsel.comparison.comparison_file import read_declaration
from flsel.comparison.comparison_plan import plan_comparison
from flsel.comparison.judging.settings import Judging
from flsel.comparison.run_table import Run, read_run
from flsel.errors import UserError

NOISE = np.random.default_rng(1).normal(0, 0.01, (3, 40))
EFFECTS = {"Uniform": 0.0, "PowD": 0.05, "AFL": 0.0}

pytestmark = pytest.mark.usefixtures("here")


def curve(variant: str, seed: int) -> dict[str, Any]:
    """A run that climbs to its variant's effect and the noise of its seed."""
    end = 0.6 + EFFECTS[variant] + NOISE[list(EFFECTS).index(variant), seed - 1]
    return {"curve": made.climb(end, rounds=40)}


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> made.Executed:
    """Made-up runs in the place of real ones."""
    return made.Executed(monkeypatch, curve)


def compare(folder: Path, **wanted: Any) -> Comparison:
    config = settings(folder / "unused", rounds=40)
    given = {"variants": ["Uniform", "PowD", "AFL"], "until_decided": True, "margin": 2.0, **wanted}
    return flsel.compare(config, folder=str(folder), name="c", **given)


def test_variants_stop_when_their_claims_are_decided(tmp_path, runner):
    found = compare(tmp_path)
    claims = {claim.variant: claim.decision for claim in found.analysis.claims}
    assert claims["PowD"].claim == "better"
    assert claims["AFL"].claim == "equivalent"
    seeds = Counter(variant for variant, _ in runner.executed)
    assert seeds["PowD"] == claims["PowD"].n
    assert seeds["AFL"] == claims["AFL"].n
    assert seeds["Uniform"] == max(seeds["PowD"], seeds["AFL"]) < 30
    assert set(runner.executed.values()) == {1}
    said = [verdict.text for verdict in found.verdicts]
    assert said[0].startswith(
        "PowD is better than Uniform in test accuracy (mean of the last 10 evaluations): +"
    )
    assert (
        f"(corrected for 2 comparisons and all looks), decided at {claims['PowD'].n} of at most 30 seeds"
        in said[0]
    )
    assert "Corrected for the looks, the estimate is +" in said[0]
    assert "a fixed design with 80 % power takes" in said[0]
    assert "are equivalent within 2 points in test accuracy" in said[1]
    assert found.headline.startswith("Take PowD: +")
    assert any(
        "The chance that any of the 2 claims is false, at any look, is at most 5 %" in n for n in found.notes
    )
    assert not any("have not run yet" in note for note in found.notes)


def test_looks_are_written_and_a_finished_comparison_is_judged_the_same_again(tmp_path, runner):
    found = compare(tmp_path)
    found.write()
    rows = list(csv.DictReader((tmp_path / "c" / "decisions.csv").read_text().splitlines()))
    assert [row["verdict"] for row in rows if row["variant"] == "PowD"][-1] == "better"
    assert {"low", "high", "inner_low", "inner_high", "hope"} <= rows[0].keys()
    again = flsel.compare(tmp_path / "c")
    assert [v.text for v in again.verdicts] == [v.text for v in found.verdicts]
    assert runner.executed.total() == len(found.analysis.runs)
    main_row = next(line for line in found.to_markdown().splitlines() if line.startswith("| PowD"))
    assert f"better at {len([r for r in rows if r['variant'] == 'PowD']) + 5}" in main_row


def test_rules_in_a_mapping_of_their_own_are_read(tmp_path, runner):
    compare(tmp_path)
    file = tmp_path / "c" / "comparison.yaml"
    plain, judging = yaml.safe_load(file.read_text()), read_declaration(tmp_path / "c")[1]
    apart = ("margin", "max_seeds", "first_max_seeds", "each_scenario", "decides", "level")
    rules = {name: plain["judging"].pop(name) for name in apart}
    plain["judging"] |= {"until_decided": rules, "margin": None, "level": rules["level"]}
    file.write_text(yaml.safe_dump(plain, sort_keys=False))
    assert read_declaration(tmp_path / "c")[1] == judging
    assert (judging.margin, judging.max_seeds) == (2.0, 30)


def test_looks_read_a_finished_run_once(tmp_path, runner, monkeypatch):
    reads = Counter[Path]()

    def counted(folder: Path, **names: Any) -> Run:
        run = read_run(folder, **names)
        reads[folder] += run.result is not None
        return run

    monkeypatch.setattr(cells, "read_run", counted)
    runs = compare(tmp_path).analysis.runs
    # When its job ends, at the look after it, and for the report.
    assert {reads[run.folder] for run in runs} <= {2, 3}


def test_a_run_that_is_repaired_later_is_appended_and_changes_no_look(tmp_path, runner):
    runner.fails = {("AFL", 2)}
    first = compare(tmp_path)
    order = {(v, s): seeds for v, s, seeds in json.loads((tmp_path / "c" / "pairs.json").read_text())}
    assert 2 not in order["AFL", "all"]
    before = next(claim for claim in first.analysis.claims if claim.variant == "AFL")
    runner.fails = set()
    assert main(["compare", "--resume", str(tmp_path / "c")]) == 0
    after = next(c for c in flsel.compare(tmp_path / "c").analysis.claims if c.variant == "AFL")
    assert after.seeds[: len(before.seeds)] == before.seeds
    assert after.decision == before.decision


def test_the_maximum_is_raised_once_and_to_twice_as_much(tmp_path, runner, capsys):
    compare(tmp_path, margin=None, max_seeds=6, variants="Uniform,AFL")
    assert flsel.compare(tmp_path / "c").analysis.claims[0].decision.claim == "open"
    resume = ["compare", "--resume", str(tmp_path / "c")]
    assert main([*resume, "--max-seeds", "13"]) == 2
    assert "max_seeds must be raised once at most, from 6 to at most 12, got 13" in capsys.readouterr().err
    assert main([*resume, "--max-seeds", "12"]) == 0
    found = flsel.compare(tmp_path / "c")
    assert found.analysis.claims[0].design.looks == (6, 7, 8, 10, 12)
    assert any("The maximum was raised once, from 6 to 12 seeds" in note for note in found.notes)
    assert main([*resume, "--max-seeds", "14"]) == 2
    assert main([*resume, "--seeds", "20"]) == 2
    assert "seeds must not be given here" in capsys.readouterr().err


@pytest.mark.parametrize("each", [False, True])
def test_several_scenarios_are_decided_together_or_each_for_itself(tmp_path, runner, each):
    found = compare(tmp_path, grid=("availability=IDL,LN",), each_scenario=each)
    claims = found.analysis.claims
    assert len(claims) == (4 if each else 2)
    assert {claim.design.comparisons for claim in claims} == {4 if each else 2}
    best = [claim for claim in claims if claim.variant == "PowD"]
    assert {claim.decision.claim for claim in best} == {"better"}
    text = found.verdicts[0].text
    assert ("averaged over 2 scenarios" in text) is not each
    for (_, _, name), d in found.analysis.differences.items():
        if name == found.analysis.main:
            assert d.estimate.n in found.analysis.options.claim_design.looks


def test_a_later_variant_raises_the_number_of_comparisons(tmp_path, runner):
    compare(tmp_path, variants="Uniform,PowD")
    assert main(["compare", "--resume", str(tmp_path / "c"), "--selectors", "AFL"]) == 0
    found = flsel.compare(tmp_path / "c")
    assert {claim.design.comparisons for claim in found.analysis.claims} == {2}


def test_seeds_added_to_a_fixed_design_after_looking_are_said(tmp_path, runner):
    compare(tmp_path, until_decided=False, margin=None, seeds="3")
    resume = ["compare", "--resume", str(tmp_path / "c")]
    assert main([*resume, "--seeds", "5"]) == 0
    assert main(resume) == 0
    assert main([*resume, "--seeds", "8"]) == 0
    (note,) = [note for note in flsel.compare(tmp_path / "c").notes if note.startswith("Seeds were added")]
    assert note.startswith(
        "Seeds were added twice after results were seen (at 3, 5 seeds): the error rate is not "
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--each-scenario"], "each_scenario must be given with until_decided: add --until-decided."),
        (["--level", "1"], "level must be a number in [0.5, 1) or null, got 1"),
        (["--max-seeds", "9"], "max_seeds must be given with until_decided: add --until-decided."),
        (
            ["--until-decided", "--max-seeds", "5"],
            "max_seeds must be a whole number in [6, 1,000] or null, got 5.",
        ),
        (
            ["--until-decided", "--max-seeds", "1001"],
            "max_seeds must be a whole number in [6, 1,000] or null",
        ),
        (["--until-decided", "--margin", "0"], "margin must be "),
        (["--plan", "--sd", "1", "--seeds", "5"], "seeds must not be given with plan, which plans up to"),
        (
            ["--pick", "newest", "--seeds", "2"],
            "pick goes with existing runs (flsel compare 'runs/*'), got newest.",
        ),
        (["--until-decided", "--seeds", "5"], "seeds must not be given with until_decided"),
        (["--plan"], "a plan needs the spread of differences: give --sd POINTS, or pilot runs."),
        (["--plan", "--sd", "1", "--rounds", "x"], "rounds must be a whole number"),
        (["--plan", "--sd", "1", "--nonsense", "3"], "there is no setting nonsense"),
        (["--plan", "--sd", "1", "--grid", "availability=XX"], "availability must be one of"),
        (["--plan", "--sd", "x"], "sd must be a number > 0, in points of accuracy, got x."),
        (["--plan", "--sd", "-1"], "sd must be a number > 0, in points of accuracy, got -1."),
    ],
)
def test_what_does_not_fit_is_refused(words, sentence, capsys, tmp_path):
    assert main(["compare", "--selectors", "Uniform,PowD", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "comparisons").exists()


def test_one_variant_has_nothing_to_decide(capsys, tmp_path):
    assert main(["compare", "--selectors", "PowD", "--until-decided"]) == 2
    assert "until_decided needs two variants or more, got PowD alone." in capsys.readouterr().err
    assert not (tmp_path / "comparisons").exists()


def test_costs_are_said_to_be_exploratory_where_accuracy_decides(tmp_path, runner):
    found = compare(tmp_path, target=0.3, cost="bytes")
    assert any(
        "Test accuracy alone decides: costs to the target are exploratory here" in n for n in found.notes
    )
    about = [verdict for verdict in found.verdicts if "reaches 30 %" in verdict.text]
    assert about
    assert {verdict.kind for verdict in about} == {"exploratory"}


def test_a_fixed_comparison_cannot_become_one_that_decides(tmp_path, runner, capsys):
    compare(tmp_path, until_decided=False, margin=None, seeds="2")
    assert main(["compare", "--resume", str(tmp_path / "c"), "--until-decided"]) == 2
    assert "until_decided must be declared before the first run" in capsys.readouterr().err


def test_a_plan_says_power_and_runs_and_executes_nothing(tmp_path, runner, capsys):
    words = ["compare", "--selectors", "Uniform,PowD,AFL", "--plan", "--margin", "1", "--sd", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "At most 90 runs: 3 variants, 1 scenario, 30 seeds, with a margin of 1 point." in said
    assert not runner.executed
    compare(tmp_path, until_decided=False, margin=None, seeds="4")
    capsys.readouterr()
    assert main(["compare", "--resume", str(tmp_path / "c"), "--plan", "--margin", "2"]) == 0
    assert "Differences have a standard deviation of " in capsys.readouterr().out


def test_a_plan_counts_the_baseline_as_long_as_its_slowest_variant():
    plan = plan_comparison(Judging(until_decided=True, margin=1.0), variants=4, sd=1.0)
    for row in plan.rows:
        assert row.seeds <= row.slowest(3) <= 30
        assert plan.runs(row) == pytest.approx(3 * row.seeds + row.slowest(3))
        assert sum(row.stops) == pytest.approx(1)
    with pytest.raises(UserError, match="variants must be at least 2"):
        plan_comparison(Judging(until_decided=True), variants=1, sd=1.0)
