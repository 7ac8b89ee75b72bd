"""What a person sees of a sweep, on a terminal and elsewhere."""

from __future__ import annotations

import io
import math
import re

import pytest
import rich.console

from flsel_tune import sweep_display as module
from flsel_tune.metric import parse_metrics
from flsel_tune.sweep_display import Console

ACCURACY, LOSS = parse_metrics("validation/accuracy, validation/loss", "auto")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def terminal(monkeypatch, **changes):
    """Have consoles write to a terminal of 120 columns."""
    real = rich.console.Console
    changes = {"force_terminal": True, "width": 120, **changes}
    monkeypatch.setattr(rich.console, "Console", lambda file, **kept: real(file=file, **{**kept, **changes}))


def report(value, at=6):
    return {"round": at, "objective": value}


def ended(status, at=6, error=""):
    return {"status": status, "round": at, "error": error}


def shown(console, clock):
    """Five trials: two complete, one each that was stopped, diverged and died without a report."""
    with console:
        console.reported(0, {"selector": "PowD", "selector.d": 5}, report(0.25))
        clock[0] += 10
        console.ended(0, ended("complete"))
        console.reported(1, {"selector.lam": 0.123456}, report(0.5, 2))
        console.reported(1, {"selector.lam": 0.123456}, report(0.75))
        console.ended(1, ended("complete"))
        console.reported(2, {}, report(0.125, 2))
        console.ended(2, ended("pruned", 2))
        console.reported(3, {"x": 1}, report(math.nan, 4))
        console.ended(3, ended("diverged", 4, "the metric is not finite"))
        clock[0] += 20
        console.ended(4, ended("failed", 0, "its [process] died"))


def test_a_line_for_each_trial(clock):
    stream = io.StringIO()
    shown(Console(6, ACCURACY, "objective", quiet=False, stream=stream), clock)
    assert stream.getvalue().splitlines() == [
        "trial 0 complete at round 6: validation/accuracy 0.2500  selector=PowD selector.d=5  |  "
        "best validation/accuracy 0.2500, trial 0, 1/6 done, 1 complete, 0:00:50 left",
        "trial 1 complete at round 6: validation/accuracy 0.7500  selector.lam=0.1235  |  "
        "best validation/accuracy 0.7500, trial 1, 2/6 done, 2 complete, 0:00:20 left",
        "trial 2 pruned at round 2: validation/accuracy 0.1250  the config's own settings  |  "
        "best validation/accuracy 0.7500, trial 1, 3/6 done, 2 complete, 1 pruned, 0:00:10 left",
        "trial 3 diverged at round 4: validation/accuracy nan (the metric is not finite)  x=1  |  "
        "best validation/accuracy 0.7500, trial 1, 4/6 done, 2 complete, 1 pruned, 1 diverged, 0:00:05 left",
        "trial 4 failed at round 0 (its [process] died)  |  "
        "best validation/accuracy 0.7500, trial 1, 5/6 done, 2 complete, 1 pruned, 1 diverged, 1 failed, "
        "0:00:06 left",
    ]


def test_the_best_loss_is_the_smallest(clock):
    stream = io.StringIO()
    console = Console(3, LOSS, "objective_1", quiet=False, stream=stream)
    with console:
        for number, value in enumerate((0.5, 0.25, 0.75)):
            console.reported(number, {}, {"round": 6, "objective_0": 1 - value, "objective_1": value})
            console.ended(number, ended("complete"))
    said = re.findall(r"best \S+ (\S+), trial (\d)", stream.getvalue())
    assert said == [("0.5000", "0"), ("0.2500", "1"), ("0.2500", "1")]
    assert "left" not in stream.getvalue().splitlines()[-1]


def test_of_equal_trials_the_first_is_the_best_whichever_ends_first(clock):
    stream = io.StringIO()
    with (console := Console(3, ACCURACY, "objective", quiet=False, stream=stream)):
        for number in (1, 0, 2):
            console.reported(number, {}, report(0.5))
            console.ended(number, ended("complete"))
    assert re.findall(r"best .*, trial (\d)", stream.getvalue()) == ["1", "0", "0"]


def test_a_better_trial_that_was_stopped_is_not_the_best(clock):
    stream = io.StringIO()
    console = Console(3, ACCURACY, "objective", quiet=False, stream=stream)
    with console:
        console.reported(0, {}, report(0.9))
        console.ended(0, ended("pruned"))
    assert "best" not in stream.getvalue()


def test_a_resumed_sweep_goes_on_counting(clock):
    stream = io.StringIO()
    console = Console(8, ACCURACY, "objective", quiet=False, stream=stream)
    console.resumed({"complete": 3, "failed": 1}, (0.5, 2))
    with console:
        clock[0] += 10
        console.reported(4, {}, report(0.25))
        console.ended(4, ended("complete"))
    assert stream.getvalue().endswith(
        "best validation/accuracy 0.5000, trial 2, 5/8 done, 4 complete, 1 failed, 0:00:30 left\n"
    )


def test_a_table_on_a_terminal(clock, monkeypatch):
    terminal(monkeypatch, color_system=None)
    stream = io.StringIO()
    console = Console(6, ACCURACY, "objective", quiet=False, stream=stream)
    with console:
        console.reported(0, {"selector.d": 5}, report(0.25))
        console.ended(0, ended("complete"))
        console.reported(2, {"selector.d": 7}, report(0.375, 4))
        console.reported(1, {"selector.d": 6}, report(0.125, 2))
    shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", stream.getvalue()).splitlines()
    rows = [line for line in shown if "selector.d=" in line][-2:]
    assert [re.findall(r"[\w.=]+", row) for row in rows] == [
        ["1", "2", "0.1250", "selector.d=6"],
        ["2", "4", "0.3750", "selector.d=7"],
    ]
    title = "best validation/accuracy 0.2500, trial 0, 1/6 done, 1 complete, 0:00:00 left, 2 running"
    assert [line.strip() for line in shown if "running" in line][-1] == title
