import io
import re

import pytest

from flsel.execution import progress
from flsel.execution.progress import Progress, final_table


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose only element is the time now, in seconds."""
    now = [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def lines_of(clock, stream, rounds, seconds, **options):
    with Progress(rounds, quiet=False, stream=stream, **options) as shown:
        for done in range(options.get("start", 0) + 1, rounds + 1):
            clock[0] += seconds
            shown.update(done, {"test/accuracy": done / rounds, "test/loss": 1 / done})
    return stream.getvalue().splitlines()


def test_plain_lines_tell_round_accuracy_loss_pace_and_time_left(clock):
    lines = lines_of(clock, io.StringIO(), rounds=4, seconds=90.0)
    assert lines == [
        "round 1/4  accuracy 0.2500  loss 1.0000  90 s/round  0:04:30 left",
        "round 2/4  accuracy 0.5000  loss 0.5000  90 s/round  0:03:00 left",
        "round 3/4  accuracy 0.7500  loss 0.3333  90 s/round  0:01:30 left",
        "round 4/4  accuracy 1.0000  loss 0.2500  90 s/round  0:00:00 left",
    ]


def test_plain_lines_come_every_few_seconds_and_first_and_last(clock):
    lines = lines_of(clock, io.StringIO(), rounds=103, seconds=0.25)
    shown = [int(re.match(r"round (\d+)/103", line)[1]) for line in lines]
    assert shown == [1, 21, 41, 61, 81, 101, 103]


def test_the_last_line_is_there_when_a_run_breaks_off(clock):
    stream = io.StringIO()

    def broken_run():
        with Progress(100, quiet=False, stream=stream) as shown:
            for done in (1, 2, 3):
                clock[0] += 0.1
                shown.update(done)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_run()
    assert [line.split("  ")[0] for line in stream.getvalue().splitlines()] == ["round 1/100", "round 3/100"]


def test_a_resumed_run_counts_on_and_times_only_its_own_rounds(clock):
    lines = lines_of(clock, io.StringIO(), rounds=100, seconds=2.0, start=98)
    assert lines[0] == "round 99/100  accuracy 0.9900  loss 0.0101  2 s/round  0:00:02 left"
    assert len(lines) == 2


def test_the_pace_follows_the_last_rounds(clock):
    stream = io.StringIO()
    with Progress(200, quiet=False, stream=stream) as shown:
        for done in range(1, 101):
            clock[0] += 60.0 if done < 50 else 1.0
            shown.update(done)
    assert stream.getvalue().splitlines()[-1] == "round 100/200  1 s/round  0:01:40 left"


def test_what_is_not_measured_keeps_its_last_value(clock):
    stream = io.StringIO()
    with Progress(9, quiet=False, stream=stream) as shown:
        for metrics in (
            {"validation/accuracy": 0.5, "client_train/loss_mean": 2.0},
            None,
            {"test/accuracy": 0.75},
        ):
            clock[0] += 10.0
            shown.update(round(clock[0] / 10) - 10, metrics)
    values = [line.split("  ")[1:3] for line in stream.getvalue().splitlines()]
    assert values == [["accuracy 0.5000", "loss 2.0000"]] * 2 + [["accuracy 0.7500", "loss 2.0000"]]


def test_a_terminal_gets_a_bar_with_the_same(clock):
    lines = lines_of(clock, Terminal(), rounds=4, seconds=30.0, start=2)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "\n".join(lines))
    assert "round 2/4" in text
    assert "round 4/4  accuracy 1.0000  loss 0.2500  30 s/round  0:00:00 left" in text
    assert "━" * 10 in text
    assert max(map(len, text.replace("\r", "\n").splitlines())) <= 100


def test_a_narrow_terminal_stays_on_one_line(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = "\n".join(lines_of(clock, Terminal(), rounds=2, seconds=1.0))
    assert (
        max(len(line) for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").split("\n"))
        <= 40
    )


def test_the_table_is_plain_text_where_there_is_no_terminal():
    stream = io.StringIO()
    long = "runs/" + "x" * 200
    rows = [("test/accuracy", 0.81234, 12), ("target", None, 3)]
    final_table(rows, [long], columns=("metric", "best", "round"), stream=stream)
    assert stream.getvalue() == (
        "metric           best  round\n"
        "test/accuracy  0.8123     12\n"
        "target              -      3\n"
        f"wrote {long}\n"
    )
