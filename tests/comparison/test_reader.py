"""What a reader of a report meets: bounds in tables, few claims at once, charts that show something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import flsel
from flsel.comparison.comparison import Comparison
from flsel.comparison.reporting.chart_data import REACH, chart_data
from flsel.comparison.reporting.client_data import CLEARLY, PERIODS
from flsel.execution.job import write_labels


def compare(folder: Path, **wanted: Any) -> Comparison:
    return flsel.compare([folder / "*"], **wanted)


def pairs(folder: Path, ends: dict[str, list[float]], **changes: Any) -> None:
    for name, values in ends.items():
        for seed, end in enumerate(values, 1):
            made.run(folder / f"{name}{seed}", made.climb(end), selector=name, seed=seed, **changes)


@pytest.mark.parametrize(
    ("ours", "theirs", "sign", "ends"),
    [
        ([0.8, 0.4, 0.8], [0.8, 0.9, 0.7], ">= ", ", inf]"),
        ([0.8, 0.9, 0.7], [0.8, 0.4, 0.8], "<= ", "[0, "),
        ([0.8, 0.4, 0.7], [0.4, 0.8, 0.8], "about ", " x in 1 of 3 pairs"),
        ([0.8, 0.9, 0.8], [0.8, 0.9, 0.7], "", "["),
    ],
)
def test_a_ratio_with_runs_that_never_arrive_is_a_bound_in_the_table_too(tmp_path, ours, theirs, sign, ends):
    pairs(tmp_path, {"PowD": ours, "Uniform": theirs}, evaluation__target=0.6)
    found = compare(tmp_path, last=1)
    row = next(line for line in found.to_markdown().splitlines() if line.startswith("| PowD"))
    cell = row.split(" | ")[7]
    assert cell.startswith(sign)
    assert cell.removeprefix(sign)[0].isdigit()
    assert ends in cell
    latex = {">= ": r"$\ge$", "<= ": r"$\le$", "about ": r"$\approx$", "": ""}[sign]
    (line,) = [x for x in found.to_latex(["cost"]).splitlines() if x.startswith("PowD")]
    assert line.startswith(f"PowD & {latex}")


def test_many_claims_without_a_result_are_folded_behind_the_headline(tmp_path):
    names = ["Uniform", "PowD", "AFL", "HiCS", "FedGS", "MD"]
    pairs(tmp_path, {name: [0.5, 0.52] for name in names}, evaluation__target=0.3)
    page = compare(tmp_path, last=1).to_html()
    assert page.index('class="headline"') < page.index("10 comparisons, none significant")
    assert page.index("10 comparisons, none significant") < page.index("<table>")


def test_units_stay_in_the_line_of_their_numbers(tmp_path):
    pairs(tmp_path, {"PowD": [0.5, 0.6], "Uniform": [0.4, 0.6]}, evaluation__target=0.3)
    page = compare(tmp_path, last=1).to_html()
    head = page[: page.index('<script type="application/json"')]
    assert "95\u00a0%" in head
    assert "2\u00a0seeds" in head
    assert "95 %" not in head


def test_charts_of_arrivals_speak_of_the_cost_that_was_asked_for(tmp_path):
    pairs(tmp_path, {"PowD": [0.8, 0.8], "Uniform": [0.8, 0.8]}, evaluation__target=0.6, round_seconds=7.0)
    found = compare(tmp_path, last=1, cost="simulated_seconds")
    rows = chart_data(found.analysis)["arrivals"]
    at = found.analysis.arrival("PowD", "all", "simulated_seconds/target")
    assert at is not None
    assert rows[0]["median"] == at.median.value == 7.0 * 8
    row = next(line for line in found.to_markdown().splitlines() if line.startswith("| PowD"))
    assert "simulated seconds to 60 %" in found.to_markdown()
    assert row.split(" | ")[5] == "56"
    page = found.to_html()
    assert "Simulated seconds to 60" in page
    assert '<option value="simulated_seconds" selected>' in page
    assert "simulated seconds on the clients' devices" in json.dumps(found.plot_curves().spec)


def test_variants_of_equal_cost_are_drawn_side_by_side(tmp_path):
    names = ["Uniform", "AFL", "HiCS", "FedGS", "MD", "FedCor", "DivFL", "FedPNS"]
    pairs(tmp_path, {name: [0.5, 0.6] for name in names})
    made.run(tmp_path / "p", made.climb(0.5), selector="PowD", models=6)
    rows = {row["variant"]: row for row in chart_data(compare(tmp_path, last=1).analysis)["cost"]}
    moved = sorted(rows[name]["beside_bytes"] for name in names)
    assert len(set(moved)) == len(names)
    assert moved[-1] - moved[0] <= REACH
    assert sum(moved) == pytest.approx(0)
    assert rows["PowD"]["beside_bytes"] == 0


def selected(folder: Path, weights: list[int], rounds: int) -> None:
    """Let clients take part as often as their weights say, in a run whose client k has 10 k examples more."""
    clients = np.repeat(np.arange(len(weights)), weights)
    plans = [
        {"round": r, "plan": [[int(clients[r % len(clients)])]], "weights": [1.0], "available": 6,
         "dropped": [], "ledger": {}}
        for r in range(rounds)
    ]  # fmt: skip
    (folder / "rounds.jsonl").write_text("".join(json.dumps(plan) + "\n" for plan in plans))
    write_labels(folder, [[10 * (k + 1), k] for k in range(made.CLIENTS)])


@pytest.mark.parametrize(("weights", "told"), [([1, 1, 1, 1, 1, 1], False), ([1, 1, 1, 2, 3, 5], True)])
def test_participation_is_drawn_by_group_where_it_differs_from_the_mean(tmp_path, weights, told):
    for seed in (1, 2):
        for name in ("Uniform", "PowD"):
            place = made.run(tmp_path / f"{name}{seed}", made.climb(0.5, 26), selector=name, seed=seed)
            selected(place, weights, 26)
    data = chart_data(compare(tmp_path, last=1).analysis)
    assert ("sizes" in data) == told
    assert "available" not in data, "everybody can be reached in each round"
    if told:
        rows = [row for row in data["sizes"] if row["variant"] == "PowD"]
        assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
        assert rows[-1]["share"] > 1 + CLEARLY > rows[0]["share"]
    shares = [row["share"] for row in data["participation"]]
    assert len({row["round"] for row in data["participation"]}) == PERIODS
    assert 0 < max(shares) <= 1


def test_a_difference_that_no_number_of_points_describes_is_not_given_in_points(tmp_path):
    pairs(tmp_path, {"PowD": [0.95, 0.3, 0.6, 0.9, 0.2], "Uniform": [0.3, 0.9, 0.5, 0.2, 0.95]})
    notes = compare(tmp_path, last=1).notes
    assert any("Differences of PowD vary so much that 5 seeds give 80 % power only for" in n for n in notes)
