"""What a sweep optimises, computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flsel.errors import UserError
from flsel_tune.metric import SweepObjective, check_logged, parse_metrics

ROUNDS = 20
LOGGED = {
    "round": 0.0, "test/accuracy": 0.1, "test/loss": 2.3, "validation/accuracy": 0.1, "validation/loss": 2.3,
    "ledger/bytes_up": 0.0,
}  # fmt: skip


def one(text, mode="auto"):
    (metric,) = parse_metrics(text, mode)
    return metric


def run(values, name="validation/accuracy", every=5):
    return [{"round": every * n, name: value} for n, value in enumerate(values)]


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("validation/accuracy", [0.1, 0.5, 0.3], 0.3),
        ("last(validation/accuracy)", [0.1, 0.5, 0.3], 0.3),
        ("best(validation/accuracy)", [0.1, 0.5, 0.3], 0.5),
        ("auc(validation/accuracy)", [0.1, 0.5, 0.3], (0.3 * 5 + 0.4 * 5) / 10),
        ("auc(validation/accuracy)", [0.25], 0.25),
        ("rounds_to(validation/accuracy, 0.4)", [0.1, 0.5, 0.6], 5),
        ("rounds_to(validation/accuracy, 0.5)", [0.1, 0.5, 0.3], 5),
        ("rounds_to(validation/accuracy, 0.1)", [0.1, 0.5, 0.3], 0),
        ("rounds_to(validation/accuracy, 0.9)", [0.1, 0.5, 0.3], 20 * 1.5),
        ("rounds_to(validation/accuracy, 0.9)", [0.1], 40),
        ("rounds_to(validation/accuracy, 0.9)", [0.1, 0.05], 40),
    ],
)
def test_values_of_accuracies(text, values, expected):
    assert one(text).value(run(values), ROUNDS) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("validation/loss", [2.0, 0.5, 0.75], 0.75),
        ("best(validation/loss)", [2.0, 0.5, 0.75], 0.5),
        ("auc(validation/loss)", [2.0, 1.0, 1.0], 1.25),
        ("rounds_to(validation/loss, 0.5)", [2.0, 1.0, 0.5], 10),
        ("rounds_to(validation/loss, 0.5)", [2.0, 1.0, 1.5], 20 * (1 + 1 / 3)),
    ],
)
def test_values_of_losses(text, values, expected):
    assert one(text).value(run(values, "validation/loss"), ROUNDS) == pytest.approx(expected)


def test_the_area_weighs_rounds_not_evaluations():
    rows = [{"round": r, "validation/accuracy": v} for r, v in ((0, 0.0), (1, 0.4), (11, 0.8))]
    assert one("auc(validation/accuracy)").value(rows, ROUNDS) == pytest.approx((0.2 * 1 + 0.6 * 10) / 11)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("how", ["{}", "best({})", "auc({})", "rounds_to({}, 0.2)"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_value_that_is_not_finite_is_nan(how, bad, place):
    values = [0.1, 0.3, 0.2]
    values[place] = bad
    found = one(how.format("validation/accuracy")).value(run(values), ROUNDS)
    if place == 0 and math.isnan(bad):  # as before the first cohort
        assert math.isfinite(found)
    else:
        assert math.isnan(found)


def test_every_metric_may_have_its_own_direction():
    found = parse_metrics("cohort/entropy, rounds_to(validation/loss, 0.5), ledger/passes", "max, auto, min")
    assert [metric.mode for metric in found] == ["max", "min", "min"]


@pytest.mark.parametrize("mode", ["up", "max, min, min", "", "max,"])
def test_a_mode_that_cannot_be_read(mode):
    with pytest.raises(UserError, match="mode must be auto, max or min, or one of these for each metric"):
        parse_metrics("validation/accuracy, validation/loss", mode)


def test_what_has_no_value_before_the_first_cohort_can_be_optimised():
    (metric,) = parse_metrics("auc(cohort/entropy)", "max")
    rows = [{"round": r, "cohort/entropy": v} for r, v in enumerate([math.nan, 1.0, 2.0])]
    assert metric.value(rows, 2) == 1.5
    assert math.isnan(metric.value(rows[:1], 2))


HUNDREDTHS = st.lists(st.integers(0, 100).map(lambda n: n / 100), max_size=7)
TARGET = st.integers(2, 100)


@st.composite
def reached_and_missed(draw):
    """A target, values that reach it, and values that do not."""
    target = draw(TARGET)
    below = st.lists(st.integers(0, target - 1).map(lambda n: n / 100), min_size=1, max_size=7)
    reached = draw(st.permutations([*draw(HUNDREDTHS), draw(st.integers(target, 100)) / 100]))
    return target / 100, reached, draw(below)


@given(reached_and_missed())
def test_a_run_that_reached_the_target_beats_every_run_that_did_not(drawn):
    target, one_run, other = drawn
    metric = one(f"rounds_to(validation/accuracy, {target})")
    reached, missed = (metric.value(run(values, every=2), ROUNDS) for values in (one_run, other))
    assert 0 <= reached <= ROUNDS < missed <= 2 * ROUNDS


@given(reached_and_missed(), st.integers(1, 99))
def test_of_runs_that_missed_the_target_the_nearer_is_better(drawn, part):
    target, _, values = drawn
    nearer = max(values) + (target - max(values)) * part / 100
    metric = one(f"rounds_to(validation/accuracy, {target})")
    far, near = metric.value(run(values), ROUNDS), metric.value(run([*values, nearer]), ROUNDS)
    assert ROUNDS < near < far


@given(values=HUNDREDTHS.filter(bool), target=TARGET)
def test_losses_mirror_accuracies(values, target):
    up = one(f"rounds_to(validation/accuracy, {target / 100})")
    down = one(f"rounds_to(validation/loss, {1 - target / 100})")
    losses = [1 - value for value in values]
    assume(all(abs(value - target / 100) > 1e-9 for value in values))
    assert down.value(run(losses, "validation/loss"), ROUNDS) == pytest.approx(up.value(run(values), ROUNDS))


@pytest.mark.parametrize(
    ("text", "mode", "source", "how", "direction", "target"),
    [
        ("validation/accuracy", "auto", "validation/accuracy", "last", "max", None),
        ("validation/loss", "auto", "validation/loss", "last", "min", None),
        (" best( validation/loss ) ", "auto", "validation/loss", "best", "min", None),
        ("best(validation/loss)", "max", "validation/loss", "best", "max", None),
        ("ledger/bytes_up", "auto", "ledger/bytes_up", "last", "min", None),
        ("seconds/train", "auto", "seconds/train", "last", "min", None),
        ("client_train/accuracy_worst10", "auto", "client_train/accuracy_worst10", "last", "max", None),
        ("client_train/accuracy_variance", "auto", "client_train/accuracy_variance", "last", "min", None),
        ("selection/distinct", "max", "selection/distinct", "last", "max", None),
        ("rounds_to(validation/accuracy,0.7)", "auto", "validation/accuracy", "rounds_to", "min", 0.7),
        ("rounds_to(validation/loss, 1e-1)", "min", "validation/loss", "rounds_to", "min", 0.1),
    ],
)
def test_what_is_read(text, mode, source, how, direction, target):
    assert one(text, mode) == SweepObjective(text.strip(), source, how, direction, target)


def test_several_metrics():
    found = parse_metrics(
        "best(validation/accuracy), rounds_to(validation/loss, 0.5),ledger/bytes_up", "auto"
    )
    assert [metric.text for metric in found] == [
        "best(validation/accuracy)", "rounds_to(validation/loss, 0.5)", "ledger/bytes_up",
    ]  # fmt: skip
    assert [metric.mode for metric in found] == ["max", "min", "min"]


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("test/accuracy", "auto", r"not be measured on the test set.*take validation/accuracy\."),
        ("client_test/accuracy_mean", "auto", r"not be measured on the test set.*take validation/accuracy\."),
        ("best(test/loss)", "auto", r"not be measured on the test set.*take validation/loss\."),
        ("worst(validation/loss)", "auto", r"a name such as .*, got 'worst\(validation/loss\)'"),
        ("best(validation/loss", "auto", "metric must be a name such as"),
        ("", "auto", "metric must be a name such as .*, got ''"),
        ("validation/loss,", "auto", "metric must be a name such as"),
        ("validation loss", "auto", "metric must be a name such as"),
        ("rounds_to(validation/accuracy)", "auto", r"rounds_to takes a target: rounds_to\(NAME, TARGET\)"),
        ("best(validation/accuracy, 0.7)", "auto", r"best takes no target: best\(validation/accuracy\)"),
        ("rounds_to(validation/accuracy, x)", "auto", "must have a number as its target, got 'x'"),
        ("rounds_to(validation/accuracy, nan)", "auto", "must have a number as its target, got 'nan'"),
        ("rounds_to(validation/accuracy, 70)", "auto", r"must have a target in \(0, 1\], as accuracies"),
        ("rounds_to(validation/accuracy, 0.7)", "max", "must be minimised, and be of an accuracy or a loss"),
        ("rounds_to(cohort/entropy, 0.7)", "auto", "must be minimised, and be of an accuracy or a loss"),
        ("cohort/entropy", "auto", "mode to max or min"),
        ("validation/loss, validation/loss", "auto", "metric must not name one twice"),
    ],
)  # fmt: skip
def test_a_metric_that_cannot_be_is_one_sentence(text, mode, said):
    with pytest.raises(UserError, match=said):
        parse_metrics(text, mode)


def test_older_names_of_columns_are_accepted():
    now, before = (parse_metrics(f"{group}/accuracy_worst10", "auto") for group in ("client_train", "client"))
    assert now == before


def test_measured_metrics_are_accepted():
    check_logged(parse_metrics("validation/loss, ledger/bytes_up", "auto"), LOGGED)


@pytest.mark.parametrize(
    ("text", "logged", "said"),
    [
        (
            "validation/loss",
            {"test/loss", "ledger/bytes_up"},
            r"metric validation/loss needs a validation set, .* set data\.validation above 0, such as 0\.1\.",
        ),
        (
            "validation/accuracy",
            {"validation/loss"},
            r"is not measured by this run; there are validation/loss\.",
        ),
        (
            "client_train/loss_mean",
            LOGGED,
            r"client_train/loss_mean is not measured by this run; there are ledger/bytes_up, "
            r"validation/accuracy, validation/loss\.",
        ),
    ],
)
def test_metrics_that_no_run_logs_are_refused(text, logged, said):
    with pytest.raises(UserError, match=said):
        check_logged(parse_metrics(text, "auto"), logged)
