"""Metrics of torchmetrics in evaluations, results, tuning and verdicts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import climb
from made import run as made_run
from runs import built, settings
from torch import nn
from torchmetrics.classification import MulticlassAUROC, MulticlassCalibrationError, MulticlassF1Score

import flsel
from flsel.errors import UserError
from flsel.metrics import METRICS
from flsel_tune.metric import parse_metrics

pytestmark = pytest.mark.filterwarnings("ignore:No (positive|negative) samples:UserWarning")


def measured(folder: Path, *metrics: Any, **changes: Any) -> flsel.RunConfig:
    return settings(folder, rounds=2, evaluation=flsel.EvaluationConfig(metrics=metrics), **changes)


def test_they_are_measured_on_logits_of_the_whole_set(tmp_path: Path) -> None:
    config = measured(tmp_path, MulticlassF1Score, partial(MulticlassAUROC, average="weighted"))
    made = built(config)
    server = made.server
    found = server.evaluate(torch.empty(0, dtype=torch.int64))
    data, program = server.federation.data, server.federation.program
    program.load(server.params)
    with torch.no_grad():
        logits = program.task(program.population.normalize(data.test.x))
    expected = MulticlassF1Score(num_classes=4)(logits, data.test.y)
    assert found["test/MulticlassF1Score"] == pytest.approx(float(expected))
    area = MulticlassAUROC(num_classes=4, average="weighted")(logits, data.test.y)
    assert found["test/MulticlassAUROC"] == pytest.approx(float(area))
    assert "validation/MulticlassF1Score" in found
    assert server.evaluate(torch.empty(0, dtype=torch.int64))["test/MulticlassAUROC"] == pytest.approx(
        float(area)
    )


def test_a_run_keeps_them_and_an_object_is_its_class_and_arguments(tmp_path: Path) -> None:
    config = measured(tmp_path, MulticlassF1Score(num_classes=4, average="micro"), MulticlassCalibrationError)
    assert flsel.RunConfig.from_dict(config.to_dict()) == config
    result = flsel.run(config)
    # A micro average over classes is the accuracy.
    assert np.allclose(result.history["test/MulticlassF1Score"], result.history["test/accuracy"])
    assert result.summary["directions"] == {"MulticlassF1Score": "max", "MulticlassCalibrationError": "min"}
    worst = float(result.history["test/MulticlassCalibrationError"].max())
    assert result.to_target(worst, metric="test/MulticlassCalibrationError").reached
    assert not result.to_target(-1.0, metric="test/MulticlassCalibrationError").reached


def test_two_of_a_class_are_numbered(tmp_path: Path) -> None:
    config = measured(tmp_path, MulticlassF1Score, partial(MulticlassF1Score, average="weighted"))
    found = built(config).server.evaluate(torch.empty(0, dtype=torch.int64))
    assert {"test/MulticlassF1Score", "test/MulticlassF1Score_2"} <= found.keys()


class Keeps(MulticlassF1Score):
    def __init__(self, other: int = 3, num_classes: int = 4) -> None:
        super().__init__(num_classes)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ((print,), r"evaluation\.metrics\[0\] cannot be builtins.print: settings call nothing of"),
        ((partial(MulticlassF1Score, average=None),), "evaluation.metrics MulticlassF1Score must give one"),
        ((partial(MulticlassF1Score, averge="macro"),), "Unexpected keyword arguments: `averge`"),
        ((partial(MulticlassF1Score, average="mean"),), r"evaluation\.metrics\[0\]\.average must be one of"),
        ((MulticlassF1Score(num_classes=3),), "evaluation.metrics MulticlassF1Score failed"),
    ],
)
def test_what_does_not_work_is_refused_before_the_first_round(
    tmp_path: Path, metrics: Any, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        flsel.run(measured(tmp_path, *metrics))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("metrics", [5, ("x",), (nn.Linear(2, 2),), {"a": MulticlassF1Score}])
def test_what_is_no_metric_is_refused_where_it_is_given(metrics: Any) -> None:
    with pytest.raises(UserError, match=r"^evaluation\.metrics"):
        flsel.EvaluationConfig(metrics=metrics)


def test_an_object_that_forgets_its_arguments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluation\.metrics\[0\] is an object that does not keep .* other"):
        measured(tmp_path, Keeps())


def test_a_sweep_optimises_them() -> None:
    own = {"MulticlassF1Score": "max", "MulticlassCalibrationError": "min"}
    text = "validation/MulticlassF1Score, best(validation/MulticlassCalibrationError)"
    score, error = parse_metrics(text, "auto", own)  # type: ignore[arg-type]
    assert (score.mode, error.mode) == ("max", "min")
    assert (score.label, error.label) == (
        "validation/MulticlassF1Score", "best validation/MulticlassCalibrationError",
    )  # fmt: skip
    assert score.source not in METRICS
    (rounds,) = parse_metrics("rounds_to(validation/MulticlassCalibrationError, 0.1)", "auto", own)  # type: ignore[arg-type]
    rows = [{"round": n, rounds.source: value} for n, value in enumerate((0.5, 0.2, 0.05))]
    assert rounds.value(rows, 10) == 2
    with pytest.raises(UserError, match="set mode to max or min"):
        parse_metrics("validation/Unknown", "auto", own)  # type: ignore[arg-type]


def test_a_comparison_judges_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, effect in (("Uniform", 0.0), ("PowD", 0.2)):
        for seed in range(1, 7):
            own = {"MulticlassSpecificity": 0.5 + effect + rng.normal(0, 0.01)}
            curve = climb(0.6 + rng.normal(0, 0.05))
            made_run(tmp_path / f"{name}{seed}", curve, selector=name, seed=seed, own=own)
    found = flsel.compare([tmp_path / "*"])
    (text,) = [v.text for v in found.verdicts if "MulticlassSpecificity" in v.text]
    assert text.startswith(
        "PowD differs from Uniform in test MulticlassSpecificity (mean of the last 10 evaluations) by +0.192"
    )
    assert text.endswith("The claims are about test accuracy.")
    assert "test MulticlassSpecificity (last 10)" in found.to_markdown()
    row = next(d for k, d in found.analysis.differences.items() if k[2] == "MulticlassSpecificity/last10")
    assert row.shown.value == pytest.approx(0.2, abs=0.03)
