"""Answers in simulated seconds: tables, verdicts, equal budgets, curves, trackers and tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import flsel
from flsel.comparison.judging.verdicts import verdicts
from flsel.errors import UserError
from flsel.runner.result import Result
from flsel.runner.trackers import values
from flsel_tune.metric import check_logged, parse_metrics


def compared(folder: Path, *, seconds: float | None = 20.0, seeds: int = 4) -> Any:
    """PowD gets to 0.4 in about half the rounds of Uniform, and its rounds last twice as long."""
    for seed in range(1, seeds + 1):
        slow = None if seconds is None else seconds * (1 + 0.01 * seed)
        fast = None if seconds is None else 2 * seconds * (1 + 0.02 * seed)
        made.run(folder / f"u{seed}", made.climb(0.5 + 0.01 * seed), seed=seed, round_seconds=slow)
        steep = made.climb(0.9 + 0.01 * seed)
        made.run(folder / f"p{seed}", steep, selector="PowD", seed=seed, round_seconds=fast)
    return flsel.compare([folder / "*"], target=0.4, last=1, baseline="Uniform")


def said(found: Any) -> list[str]:
    return [verdict.text for verdict in verdicts(found.analysis)]


def test_seconds_to_the_target_are_split_into_rounds_and_seconds_a_round(tmp_path: Path) -> None:
    found = compared(tmp_path)
    difference = {
        name: found.analysis.difference("PowD", "all", f"{name}/target").shown.value
        for name in ("simulated_seconds", "rounds")
    }
    share = difference["simulated_seconds"] / difference["rounds"]
    assert share == pytest.approx(2 * np.prod([(1 + 0.02 * s) / (1 + 0.01 * s) for s in range(1, 5)]) ** 0.25)
    (sentence,) = [text for text in said(found) if "the simulated seconds a round" in text]
    split = f"{difference['rounds']:.2f} x the rounds at {share:.2f} x the simulated seconds a round"
    assert split in sentence
    assert "4 seeds" in sentence
    assert "simulated s, ratio" in found.to_markdown()
    assert '<option value="simulated_seconds">' in found.to_html()
    assert "simulated seconds" in json.dumps(dict(found.plot_curves(cost="simulated_seconds").spec))


def test_without_devices_nothing_is_said_of_simulated_time(tmp_path: Path) -> None:
    found = compared(tmp_path, seconds=None)
    assert "simulated" not in found.to_markdown()
    assert not any("simulated" in text for text in said(found))
    assert '<option value="simulated_seconds">' not in found.to_html()
    with pytest.raises(UserError, match="simulated_seconds needs devices"):
        Result.load(tmp_path / "u1").to_target(0.4, cost="simulated_seconds")


def test_accuracies_at_equal_cost_are_those_of_what_the_cheapest_run_spends(tmp_path: Path) -> None:
    found = compared(tmp_path)
    table = found.summary.set_index(["variant", "measure"])["mean"]
    # The cheapest run takes 20 rounds of 20.2 s; PowD has spent as much after 9 of its rounds.
    most, ends = 20 * 20.2, []
    for seed in range(1, 5):
        rounds = int(most / (40 * (1 + 0.02 * seed)) + 1e-9)
        ends.append(made.climb(0.9 + 0.01 * seed)[rounds])
    assert table["PowD", "accuracy/equal_simulated_seconds"] == pytest.approx(np.mean(ends))
    assert table["PowD", "accuracy/equal_bytes"] == pytest.approx(0.925)
    assert table["PowD", "accuracy/equal_simulated_seconds"] < table["PowD", "accuracy/final"]


def test_results_and_trackers_know_simulated_seconds(tmp_path: Path) -> None:
    result = Result.load(made.run(tmp_path / "run", made.climb(0.5), round_seconds=3.0))
    rounds = result.to_target(0.4).value
    assert result.to_target(0.4, cost="simulated_seconds").value == 3 * rounds
    row = {"round": 2.0, "clock/seconds": 6.0, "ledger/bytes_down": 5.0, "ledger/bytes_up": 1.0}
    assert values.CostTotals([]).after(row)["step/simulated_seconds"] == 6.0
    del row["clock/seconds"]
    assert "step/simulated_seconds" not in values.CostTotals([]).after(row)


def rows(accuracies: list[float], seconds: float = 10.0) -> list[dict[str, float]]:
    return [
        {"round": float(r), "validation/accuracy": value, "clock/seconds": seconds * r}
        for r, value in enumerate(accuracies)
    ]


def test_sweeps_minimise_simulated_seconds_to_a_target() -> None:
    (metric,) = parse_metrics("seconds_to(validation/accuracy, 0.7)", "auto")
    assert metric.mode == "min"
    assert metric.label == "simulated seconds to validation accuracy 0.7"
    assert metric.value(rows([0.1, 0.5, 0.72, 0.9]), 10) == 20.0
    # Not reached: all ten rounds would take 100 s, and a half or a quarter of the way is left.
    assert metric.value(rows([0.1, 0.4]), 10) == pytest.approx(100 * 1.5)
    assert metric.value(rows([0.1, 0.4, 0.55]), 10) == pytest.approx(100 * 1.25)
    check_logged([metric], ["validation/accuracy", "clock/seconds"])
    with pytest.raises(UserError, match="needs simulated devices"):
        check_logged([metric], ["validation/accuracy"])
    with pytest.raises(UserError, match=r"takes a target: seconds_to\(NAME, TARGET\)"):
        parse_metrics("seconds_to(validation/accuracy)", "auto")
