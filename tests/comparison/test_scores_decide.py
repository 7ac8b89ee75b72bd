"""Comparisons of runs that are judged by another score than test accuracy."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import climb
from made import run as made_run
from runs import settings
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassF1Score

import flsel
from flsel.choosing.choice_page import choice_page
from flsel.commands.cli import main
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.judging.settings import Change
from flsel.errors import UserError
from flsel.metrics import SCORE, Score
from flsel.partition import IID
from flsel.selectors import Uniform

LOSS, ERROR = Score("test/loss", "min"), Score("test/error", "min")

pytestmark = pytest.mark.usefixtures("here")


def runs(folder: Path, score: Score, labels: bool = False, **effects: float) -> Path:
    """Runs under eight seeds whose accuracies, and so their losses, end better by an effect."""
    rng = np.random.default_rng(0)
    for name, effect in effects.items():
        for seed in range(1, 9):
            curve = climb(0.6 + effect + rng.normal(0, 0.01))
            # The error is worse where the accuracy is better.
            own = {"error": 2 + effect + rng.normal(0, 0.01)} if score == ERROR else {}
            made_run(
                folder / f"{name}{seed}", curve, selector=name, seed=seed, own=own, score=score, labels=labels
            )
    return folder / "*"


def texts(found: Any, variant: str) -> list[str]:
    return [verdict.text for verdict in found.verdicts if verdict.text.startswith(variant)]


def test_a_smaller_loss_is_better(tmp_path: Path) -> None:
    found = flsel.compare([runs(tmp_path, LOSS, Uniform=0.0, PowD=0.2, AFL=-0.2)])
    assert texts(found, "PowD")[0].startswith(
        "PowD is significantly better than Uniform in test loss (mean of the last 10 evaluations): -0.1"
    )
    assert texts(found, "AFL")[0].startswith(
        "AFL is significantly worse than Uniform in test loss (mean of the last 10 evaluations): +0."
    )
    assert found.headline.startswith("Take PowD: -0.1")
    assert "in test loss against Uniform" in found.headline
    (better,) = [c for c in found.analysis.claims if (c.variant, c.measure) == ("PowD", "loss/last10")]
    low, high = better.shown.low, better.shown.high
    assert low < better.shown.value < high < 0
    assert better.shown.value == pytest.approx(-float(better.lower.mean()))
    for written in (found.to_markdown(), found.to_latex()):
        assert "accurac" not in written.lower()
        assert "acc." not in written
    assert "test loss (last 10)" in found.to_markdown()
    # A lower loss was reached from above, which the baseline's worst run just does.
    target = found.analysis.target
    assert target is not None
    ends = [run.columns["test/loss"][-10:].mean() for run in found.analysis.of("Uniform", "all")]
    assert max(ends) <= target.value < max(ends) + 0.01
    arrivals = {v: found.analysis.arrival(v, "all", found.analysis.to_target) for v in ("PowD", "AFL")}
    assert (arrivals["PowD"].reached, arrivals["AFL"].reached) == (8, 0)


def test_another_score_decides_against_the_accuracy(tmp_path: Path) -> None:
    found = flsel.compare([runs(tmp_path, ERROR, labels=True, Uniform=0.0, PowD=0.2)], target=2.1)
    assert texts(found, "PowD")[0].startswith("PowD is significantly worse than Uniform in test error")
    assert texts(found, "Uniform") == []
    described = [t for t in texts(found, "PowD") if "in test accuracy" in t]
    assert described[0].startswith("PowD differs from Uniform in test accuracy")
    assert " points" in described[0]
    assert found.analysis.target.shown == "2.1"
    assert found.analysis.arrival("Uniform", "all", found.analysis.to_target).reached == 8
    assert found.analysis.arrival("PowD", "all", found.analysis.to_target).reached == 0


def test_a_target_of_an_accuracy_is_a_share(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"target must be in \(0, 1\] for an accuracy, got 2\.1"):
        flsel.compare([runs(tmp_path, Score(), labels=True, Uniform=0.0, PowD=0.2)], target=2.1)


def test_runs_of_several_scores_are_refused(tmp_path: Path) -> None:
    made_run(tmp_path / "a", climb(0.6), score=LOSS)
    made_run(tmp_path / "b", climb(0.6), selector="PowD")
    said = r"runs must be judged by one score to be compared, got .*a by test loss \(lower is better\) and "
    with pytest.raises(UserError, match=said):
        flsel.compare([tmp_path / "a", tmp_path / "b"])


def test_the_page_and_the_charts_show_the_score(tmp_path: Path) -> None:
    found = flsel.compare([runs(tmp_path, LOSS, Uniform=0.0, PowD=0.2)])
    page = found.to_html()
    assert "Loss against cost" in page
    assert "Left of zero is better." in page
    assert '<option value="accuracy"' not in page
    rows = found.plot_cost().spec["data"]["values"]
    best = min(rows, key=lambda row: row["score"])
    assert (best["variant"], best["front"]) == ("PowD", True)
    assert "loss" in found.plot_curves().spec["data"]["values"][0]
    with pytest.raises(UserError, match="measure must be one of loss, got 'accuracy'"):
        found.plot_curves(measure="accuracy")


def regression(folder: Path, **changes: Any) -> flsel.RunConfig:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(120, 6, generator=draws)
    data = TensorDataset(x, x @ torch.arange(6.0))
    given: dict[str, Any] = {
        "data": flsel.DataConfig(name=data, validation=0.0, server=0.0, test=0.2), "partition": IID(),
        "clients": 4, "clients_per_round": 2, "model": partial(nn.Linear, 6, 1), "loss": nn.MSELoss,
        "rounds": 3,
    }  # fmt: skip
    return settings(folder, **{**given, **changes})


@pytest.mark.parametrize("until_decided", [False, True])
def test_a_regression_is_compared_by_its_loss(until_decided: bool, tmp_path: Path) -> None:
    config = regression(tmp_path / "run")
    variants = {"quick": Uniform(), "slow": {"local.optimizer.init_args.lr": 1e-5}}
    how: dict[str, Any] = {"until_decided": True, "max_seeds": 6} if until_decided else {"seeds": "6"}
    found = flsel.compare(config, variants, baseline="slow", name="c", **how)
    claim = next(c for c in found.analysis.claims if c.variant == "quick" and c.measure.startswith("loss/"))
    assert claim.decision.claim == "better"
    assert claim.shown.value < 0
    assert "better than slow in test loss" in texts(found, "quick")[0]


def test_a_race_is_decided_by_a_loss(tmp_path: Path) -> None:
    config = regression(tmp_path / "run")
    variants = {"quick": Uniform(), "slow": {"local.optimizer.init_args.lr": 1e-5}}
    with pytest.raises(UserError, match="margin must be given where test loss decides"):
        flsel.choose(config, variants, name="c", max_seeds=4)
    assert not Path("choices").exists()
    found = flsel.choose(config, variants, name="c", max_seeds=4, margin=0.5)
    assert (found.winner, found.decided) == ("quick", True)
    assert "more than 0.5 better in test loss" in found.headline
    quick, slow = found.racers
    assert (quick.place, slow.place) == ("chosen", "out")
    assert slow.difference < -0.5
    page = choice_page(found)
    assert "gains in test loss" in page
    assert re.search(r"%\">\+0.5</span>", page)
    row = next(line for line in page.split("<tr") if ">slow<" in line)
    assert re.search(r"\+[0-9.]+.*\[\+[0-9.]+, \+[0-9.]+\]", row, re.S)


def test_cells_of_several_scores_are_refused_before_a_run(tmp_path: Path) -> None:
    config = settings(tmp_path / "run", evaluation=flsel.EvaluationConfig(metrics=(MulticlassF1Score,)))
    variants = {"a": Uniform(), "b": {"evaluation.score": "test/MulticlassF1Score"}}
    with pytest.raises(
        UserError, match=r"one score to be compared, got .*test accuracy .* MulticlassF1Score"
    ):
        flsel.compare(config, variants, seeds="2", name="c")
    assert not Path("comparisons").exists()


def test_a_score_that_is_not_measured_is_refused_before_a_run(tmp_path: Path) -> None:
    config = regression(tmp_path / "run", evaluation=flsel.EvaluationConfig(score="test/f1"))
    with pytest.raises(UserError, match=r"evaluation\.score must be a column measured on the test set"):
        flsel.compare(config, ["Uniform", "AFL"], seeds="2", name="c")
    assert not Path("comparisons").exists()


def test_a_target_of_a_loss_may_be_any_number() -> None:
    assert CompareConfig(target=2.5).target == 2.5
    change = Change("target", 2.5, 3.0, 6)
    assert change.words(LOSS) == "the target changed from 2.5 to 3 after 6 seeds"
    assert Change("target", 0.5, 0.6, 6).words(SCORE) == "the target changed from 50 % to 60 % after 6 seeds"


def test_a_plan_is_in_the_unit_of_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--selectors", "Uniform,AFL", "--evaluation.score", "test/loss", "--clients", "6"]
    assert main([*words, "--plan", "--sd", "0.02", "--max-seeds", "8", "--clients_per_round", "2"]) == 0
    said = capsys.readouterr().out
    assert "Differences have a standard deviation of 0.02 in test loss." in said
    assert "points" not in said
    assert "-0.06" in said
    assert main([*words, "--plan", "--sd", "x", "--clients_per_round", "2"]) == 2
    assert "sd must be a number > 0, in test loss, got x." in capsys.readouterr().err


def test_small_differences_have_digits_that_count(tmp_path: Path) -> None:
    for name, end in (("Uniform", 2e-4), ("PowD", 1e-4)):
        for seed in range(1, 9):
            own = {"error": end + 1e-6 * seed * (1 + (name == "PowD"))}
            folder = tmp_path / f"{name}{seed}"
            made_run(folder, climb(0.6), selector=name, seed=seed, own=own, score=ERROR, labels=False)
    found = flsel.compare([tmp_path / "*"])
    assert "| -9.55e-05 [" in found.to_markdown()
    assert r"\num{-9.55e-05}" in found.to_latex()
    assert "-9.55e-05" in texts(found, "PowD")[0]
