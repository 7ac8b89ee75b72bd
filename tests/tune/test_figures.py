"""Pictures of a sweep: which ones its trials allow, and that they are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.trial import TrialState
from PIL import Image
from spaces import config_of

from flsel.runner.record import MetricsCsv
from flsel_tune.config import SweepConfig
from flsel_tune.figures import draw
from flsel_tune.metric import parse_metrics
from flsel_tune.space_file import make_space
from flsel_tune.study import Study
from flsel_tune.trial import Job

HICS = config_of("HiCS")
SPACE = {
    "selector.lam": {"type": "uniform", "low": 0, "high": 1},
    "selector.temperature": {"type": "loguniform", "low": 1e-4, "high": 1},
}


def swept(folder: Path, metric: str, states: list[TrialState]) -> tuple[Study, Job]:
    """Trials of four rounds under two seeds that ended as told."""
    metrics = parse_metrics(metric, "auto")
    scheduler = "asha" if len(metrics) == 1 else "none"
    study = Study(folder, "s", metrics=metrics, config=SweepConfig(scheduler=scheduler), rounds=4, seed=0)
    job = Job(HICS, (1, 2), metrics, 4, 1, str(folder))
    for state in states:
        number, settings = study.ask(make_space(SPACE, HICS))
        value = settings["selector.lam"]
        for seed in job.seeds:
            runs = job.trial_folder(number) / f"seed{seed}"
            runs.mkdir(parents=True)
            file = MetricsCsv(runs / "metrics.csv")
            for round in range(5):
                row = {"round": round, "validation/accuracy": value * round / 4, "validation/loss": 1 - value}
                file.append(row)
        if len(metrics) == 1:
            study.report(number, 1, value)
        study.tell(number, state, [value, 1 - value][: len(metrics)], {})
    return study, job


@pytest.mark.parametrize("metric", ["validation/accuracy", "validation/accuracy, validation/loss"])
def test_a_finished_sweep_has_all_pictures(tmp_path, metric):
    states = [TrialState.COMPLETE] * 5 + [TrialState.FAIL]
    paths = draw(*swept(tmp_path, metric, states))
    assert [path.stem for path in paths] == ["curves", "history", "slices", "parallel", "importance"]
    for path in paths:
        with Image.open(path) as picture:
            assert min(picture.size) > 400
            assert len(picture.convert("RGB").getcolors(10**6)) > 20


def test_pictures_that_say_nothing_are_left_out(tmp_path):
    assert draw(*swept(tmp_path, "validation/accuracy", [])) == []
    (tmp_path / "stopped").mkdir()
    (only,) = draw(*swept(tmp_path / "stopped", "validation/accuracy", [TrialState.PRUNED]))
    assert only.stem == "curves"


def test_importance_needs_trials_that_differ(tmp_path):
    paths = draw(*swept(tmp_path, "validation/accuracy", [TrialState.COMPLETE] * 2))
    assert [path.stem for path in paths] == ["curves", "history", "slices", "parallel"]
