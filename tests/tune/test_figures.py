"""Pictures of a sweep: which ones its trials allow, what they show, and that nothing in them overlaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from matplotlib.text import Text
from optuna.trial import TrialState
from PIL import Image
from spaces import config_of

from flsel.runner.record import MetricsCsv
from flsel_tune.config import SweepConfig
from flsel_tune.figures import LEAST_FOR_IMPORTANCE, draw
from flsel_tune.figures.curves import curves_figure
from flsel_tune.figures.points import Point, points
from flsel_tune.figures.scores import history_figure, importance_figure, pareto_figure
from flsel_tune.figures.settings import parallel_figure, slices_figure
from flsel_tune.metric import parse_metrics
from flsel_tune.space_file import make_space
from flsel_tune.study import Study
from flsel_tune.trial import SweepJob

HICS = config_of("HiCS")
SPACE = {
    "selector.lam": {"type": "uniform", "low": 0, "high": 1},
    "selector.temperature": {"type": "loguniform", "low": 1e-4, "high": 1},
}
SELECTORS = yaml.safe_load((Path(__file__).parents[2] / "configs/search/selectors.yaml").read_text())
ONE = "validation/accuracy"
TWO = "best(validation/accuracy), validation/loss"
COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL


def swept(
    folder: Path, metric: str, states: Sequence[TrialState], space: dict[str, Any] = SPACE
) -> tuple[Study, SweepJob]:
    """Trials of four rounds under two seeds that ended as told; those not complete stopped at round 1."""
    metrics = parse_metrics(metric, "auto")
    scheduler = "asha" if len(metrics) == 1 else "none"
    config = SweepConfig(scheduler=scheduler, sampler="random")
    study = Study(folder, "s", metrics=metrics, config=config, rounds=4, seed=0)
    job = SweepJob(HICS, (1, 2), metrics, 4, 1, str(folder))
    for state in states:
        number, _ = study.ask(make_space(space, HICS))
        reached = 4 if state is COMPLETE else 1
        value = math.sin(3.0 * number + 1.0) ** 2
        for seed in job.seeds:
            runs = job.trial_folder(number) / f"seed{seed}"
            runs.mkdir(parents=True)
            file = MetricsCsv(runs / "metrics.csv")
            for round in range(reached + 1):
                row = {"round": round, "validation/accuracy": value * round / 4, "validation/loss": value**2}
                file.append(row)
        if len(metrics) == 1:
            study.report(number, 1, value / 4)
        study.tell(number, state, [value, value**2][: len(metrics)], {"round": reached})
    return study, job


def shown(study: Study, job: SweepJob) -> list[Point]:
    return [point for point in points(study, len(job.metrics)) if point.values]


def texts(figure: Figure) -> list[tuple[str, Any]]:
    """Every text that can be seen, with the box that it takes in pixels."""
    figure.draw_without_rendering()
    hidden = {id(text) for axes in figure.axes if not axes.get_visible() for text in axes.findobj(Text)}
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in axis.get_major_ticks():  # Matplotlib keeps those beyond the limits, undrawn
                if not min(low, high) <= tick.get_loc() <= max(low, high):
                    hidden |= {id(tick.label1), id(tick.label2)}
    seen = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent()) for text in seen if id(text) not in hidden]


@pytest.mark.parametrize("metric", [ONE, TWO])
def test_a_finished_sweep_has_all_pictures(tmp_path, metric):
    paths = draw(*swept(tmp_path, metric, [COMPLETE] * LEAST_FOR_IMPORTANCE + [PRUNED, FAIL]))
    front = ["pareto"] if metric == TWO else []
    assert [path.stem for path in paths] == ["curves", *front, "history", "slices", "parallel", "importance"]
    for path in paths:
        with Image.open(path) as picture:
            assert min(picture.size) > 200
            assert len(picture.convert("RGB").getcolors(10**6)) > 20


def test_pictures_that_say_nothing_are_left_out_and_old_ones_removed(tmp_path):
    empty = swept(tmp_path, ONE, [])
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/importance.png").touch()
    assert draw(*empty) == []
    assert not list((tmp_path / "figures").iterdir())
    (tmp_path / "failed").mkdir()
    (only,) = draw(*swept(tmp_path / "failed", TWO, [FAIL]))
    assert only.stem == "curves"


def test_importance_needs_trials_that_differ_and_says_how_many(tmp_path):
    few = [COMPLETE] * (LEAST_FOR_IMPORTANCE - 1) + [PRUNED] * 5
    assert "importance" not in [path.stem for path in draw(*swept(tmp_path, ONE, few))]
    (tmp_path / "more").mkdir()
    figure = importance_figure(*swept(tmp_path / "more", ONE, [COMPLETE] * 12 + [PRUNED] * 3))
    assert figure.get_suptitle() == "importance, from 12 complete trials"


def test_importance_does_not_depend_on_the_direction(tmp_path):
    """The evaluator takes less for better, whatever the study's direction."""
    found = []
    for metric, sign in (("validation/accuracy", -1.0), ("validation/loss", 1.0)):
        folder = tmp_path / metric.replace("/", "-")
        folder.mkdir()
        metrics = parse_metrics(metric, "auto")
        study = Study(folder, "s", metrics=metrics, config=SweepConfig(sampler="random"), rounds=4, seed=0)
        for _ in range(30):
            number, settings = study.ask(make_space(SPACE, HICS))
            study.tell(number, COMPLETE, [sign * (settings["selector.lam"] - 0.3) ** 2], {})
        (axes,) = importance_figure(study, SweepJob(HICS, (1,), metrics, 4, 1, str(folder))).axes
        found.append([bar.get_width() for bar in axes.patches])
    assert found[0] == pytest.approx(found[1])
    assert found[0][1] > 0.7


def test_stopped_trials_are_in_the_pictures_with_their_round(tmp_path):
    study, job = swept(tmp_path, ONE, [COMPLETE] * 3 + [PRUNED] * 4)
    figure = slices_figure(shown(study, job), job)
    (dots, *_) = figure.axes[0].collections
    assert len(dots.get_offsets()) == 7
    colours = np.unique(dots.get_facecolors(), axis=0)
    assert len(colours) == 2  # rounds 4 and 1
    lines = parallel_figure(shown(study, job), job).axes[0].lines
    assert len([line for line in lines if len(line.get_xdata()) == 3]) == 7
    assert [len(group.get_offsets()) for group in history_figure(shown(study, job), job).axes[0].collections]\
        == [4, 3]  # fmt: skip


def test_curves_show_every_metric(tmp_path):
    study, job = swept(tmp_path, TWO, [COMPLETE] * 3)
    figure = curves_figure(points(study, 2), job)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["validation accuracy", "best validation accuracy so far", "validation loss (nats)"]
    assert all(len(axes.lines) == 3 for axes in figure.axes)
    first = figure.axes[1].lines[0]
    value = study.trials()[0].values[0]
    assert list(first.get_xdata()) == [1, 2, 3, 4]
    assert list(first.get_ydata()) == pytest.approx([value * part / 4 for part in (1, 2, 3, 4)])


def test_the_front_is_marked_with_its_trials(tmp_path):
    study, job = swept(tmp_path, TWO, [COMPLETE] * 6)
    (axes,) = pareto_figure(shown(study, job), job).axes
    front = {trial.number for trial in study.study.best_trials}
    rest, best = axes.collections
    assert len(best.get_offsets()) == len(front)
    assert len(rest.get_offsets()) == 6 - len(front)
    assert {int(word) for text in axes.texts for word in text.get_text().split(", ")} == front
    assert axes.get_ylabel() == "validation loss (nats), less is better"


@pytest.mark.parametrize("space", [SPACE, SELECTORS], ids=["two settings", "selectors"])
@pytest.mark.parametrize("metric", [ONE, TWO])
def test_no_labels_overlap_and_trials_are_whole_numbers(tmp_path, space, metric):
    study, job = swept(tmp_path, metric, [COMPLETE] * 12 + [PRUNED] * 12, space)
    found = shown(study, job)
    figures = [slices_figure(found, job), parallel_figure(found, job), history_figure(found, job)]
    figures += [curves_figure(found, job), importance_figure(study, job)]
    figures += [pareto_figure([point for point in found if point.complete], job)] if metric == TWO else []
    for figure in figures:
        for (one, box), (other, beside) in combinations(texts(figure), 2):
            inner = box.padded(-1)
            assert not inner.overlaps(beside.padded(-1)), (one, other)
    for axes in figures[2].axes:
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
