"""Which figures of a sweep its trials allow, and that drawing them leaves nothing behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt
from optuna.trial import TrialState
from PIL import Image
from spaces import config_of

from flsel_tune.metric import parse_metrics
from flsel_tune.space_file import make_space
from flsel_tune.study import Study
from flsel_tune.sweep_config import SweepConfig
from flsel_tune.sweep_figures import LEAST_FOR_IMPORTANCE, _badness, write_figures
from flsel_tune.trial import SweepJob

HICS = config_of("HiCS")
SPACE: dict[str, Any] = {
    "selector.lam": {"type": "uniform", "low": 0, "high": 1},
    "selector.temperature": {"type": "loguniform", "low": 1e-4, "high": 1},
}
ONE = "validation/accuracy"
TWO = "best(validation/accuracy), validation/loss"
KINDS = ["history", "slices", "parallel", "importance"]
COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL


def swept(folder: Any, metric: str, states: Sequence[TrialState]) -> tuple[Study, SweepJob]:
    """Trials of four rounds that ended as told; those not complete stopped at round 1."""
    metrics = parse_metrics(metric, "auto")
    config = SweepConfig(scheduler="asha" if len(metrics) == 1 else "none", sampler="random")
    study = Study(folder, "s", metrics=metrics, config=config, rounds=4, seed=0)
    job = SweepJob(HICS, (1, 2), metrics, 4, 1, str(folder))
    for state in states:
        number, _ = study.ask(make_space(SPACE, HICS))
        value = math.sin(3.0 * number + 1.0) ** 2
        if len(metrics) == 1:
            study.report(number, 1, value / 4)
        study.tell(number, state, [value, value**2][: len(metrics)], {"round": 4 if state is COMPLETE else 1})
    return study, job


@pytest.mark.parametrize(
    ("metric", "names"),
    [
        (ONE, ["curves", *KINDS]),
        (TWO, ["pareto", *(f"{kind}-{n}" for n in (1, 2) for kind in KINDS)]),
    ],
)  # fmt: skip
def test_a_finished_sweep_has_all_figures(tmp_path, metric, names):
    style = dict(mpl.rcParams)
    paths = write_figures(*swept(tmp_path, metric, [COMPLETE] * LEAST_FOR_IMPORTANCE + [PRUNED, FAIL]))
    assert [path.stem for path in paths] == names
    for path in paths:
        with Image.open(path) as picture:
            assert min(picture.size) > 200
            assert len(picture.convert("RGB").getcolors(10**6)) > 20
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == style


def test_figures_that_show_nothing_are_left_out_and_old_ones_removed(tmp_path):
    empty = swept(tmp_path, ONE, [])
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/importance.png").touch()
    assert write_figures(*empty) == []
    assert not list((tmp_path / "figures").iterdir())


def test_importance_needs_complete_trials(tmp_path):
    few = [COMPLETE] * (LEAST_FOR_IMPORTANCE - 1) + [PRUNED] * 5
    assert "importance" not in [path.stem for path in write_figures(*swept(tmp_path, ONE, few))]


def test_importance_takes_less_for_better_whatever_the_direction(tmp_path):
    study, job = swept(tmp_path, ONE, [COMPLETE])
    (trial,) = study.trials()
    (loss,) = parse_metrics("validation/loss", "auto")
    assert [_badness(0, metric)(trial) for metric in (job.metrics[0], loss)] == [
        -trial.values[0],
        trial.values[0],
    ]
