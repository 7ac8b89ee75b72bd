import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flsel.errors import UserError
from flsel.runner.provenance import git_commit
from flsel.runner.run_log import JsonLines, Mark, MetricsCsv, write_summary

in_tmp_path = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None
)
floats = st.floats(allow_nan=False)


def same(left: float, right: float) -> bool:
    return type(left) is type(right) and (left == right or (math.isnan(left) and math.isnan(right)))


# --- rounds.jsonl ---


@in_tmp_path
@given(rows=st.lists(st.lists(floats, max_size=4), max_size=6))
def test_json_lines_give_back_exactly_what_was_appended(tmp_path, rows):
    file = JsonLines(tmp_path / "rounds.jsonl")
    file.path.unlink(missing_ok=True)
    stored = [{"round": index, "weights": row, "plan": [[1], [2]]} for index, row in enumerate(rows)]
    for row in stored:
        file.append(row)
    assert file.rows() == stored
    assert JsonLines(file.path).rows() == stored


def test_json_lines_keep_non_finite_numbers(tmp_path):
    file = JsonLines(tmp_path / "rounds.jsonl")
    file.append({"round": 0, "loss": float("nan"), "worst": float("inf")})
    (row,) = file.rows()
    assert math.isnan(row["loss"])
    assert row["worst"] == math.inf


def test_json_lines_refuse_what_json_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match="object cannot be stored as JSON"):
        JsonLines(tmp_path / "rounds.jsonl").append({"round": 0, "x": object()})
    assert not (tmp_path / "rounds.jsonl").exists()


@pytest.mark.parametrize("cut", range(1, 25))
def test_json_lines_survive_a_torn_last_line(tmp_path, cut):
    file, marks = JsonLines(tmp_path / "rounds.jsonl"), [Mark()]
    for index in range(3):
        file.append({"round": index, "x": 0.5 + index})
        marks.append(file.lines.mark())
    text = file.path.read_bytes()
    file.path.write_bytes(text[:-cut])
    again = JsonLines(file.path)
    kept = [row["round"] for row in again.rows()]
    assert kept == list(range(text[:-cut].count(b"\n")))
    again.lines.check(marks[len(kept)])
    again.lines.rewind(marks[len(kept)])
    for index in range(len(kept), 3):
        again.append({"round": index, "x": 0.5 + index})
    assert again.path.read_bytes() == text
    assert again.lines.mark() == marks[-1]


@pytest.mark.parametrize("damage", [b"not json", b"[1]", b'{"other": 1}', b"3", b"\xff\xfe", b"[" * 100_000])
def test_json_lines_name_a_damaged_line(tmp_path, damage):
    file = JsonLines(tmp_path / "rounds.jsonl")
    file.path.write_bytes(b'{"round":0}\n' + damage + b'\n{"round":2}\n')
    with pytest.raises(UserError, match="line 2 is damaged"):
        file.rows()


# --- metrics.csv ---


@in_tmp_path
@given(rows=st.lists(st.tuples(st.floats(), st.floats(), st.integers()), min_size=1, max_size=6))
def test_metrics_give_back_exactly_what_was_appended(tmp_path, rows):
    file = MetricsCsv(tmp_path / "metrics.csv")
    file.path.unlink(missing_ok=True)
    stored = [
        {"round": index, "test/accuracy": accuracy, "test/loss": loss, "ledger/models": models}
        for index, (accuracy, loss, models) in enumerate(rows)
    ]
    for row in stored:
        file.append(row)
    for got, want in zip(MetricsCsv(file.path).rows(), stored, strict=True):
        assert list(got) == list(want)
        assert all(same(got[key], want[key]) for key in want)


def test_metrics_are_a_plain_csv_with_round_first(tmp_path):
    file = MetricsCsv(tmp_path / "metrics.csv")
    file.append({"test/loss": 0.1, "round": 5})
    file.append({"round": 10, "test/loss": np.float64(0.25)})
    file.append({"round": np.int64(15), "test/loss": torch.tensor(2.0)})
    assert file.path.read_text() == "round,test/loss\n5,0.1\n10,0.25\n15,2.0\n"
    assert [[row["round"] for row in file.rows(start)] for start in (0, 1, 3)] == [[5, 10, 15], [10, 15], []]


@pytest.mark.parametrize("row", [{"round": 1}, {"round": 1, "a": 1.0, "b": 1.0}, {"round": 1, "b": 1.0}])
def test_metrics_columns_are_fixed_by_the_first_row(tmp_path, row):
    file = MetricsCsv(tmp_path / "metrics.csv")
    file.append({"round": 0, "a": 1.0})
    with pytest.raises(ValueError, match=r"has the columns \['round', 'a'\], got a row with"):
        file.append(row)
    assert file.path.read_text() == "round,a\n0,1.0\n"


def test_metrics_need_a_round(tmp_path):
    with pytest.raises(ValueError, match="got a row with"):
        MetricsCsv(tmp_path / "metrics.csv").append({"a": 1.0})


def test_metrics_survive_a_cut_anywhere(tmp_path):
    file, marks = MetricsCsv(tmp_path / "metrics.csv"), [Mark()]
    rows = [{"round": index, "a": 0.125 * index, "b": 12345.678} for index in range(3)]
    for row in rows:
        file.append(row)
        marks.append(file.lines.mark())
    whole = file.path.read_bytes()
    for size in range(len(whole)):
        file.path.write_bytes(whole[:size])
        kept = max(whole[:size].count(b"\n") - 1, 0)
        again = MetricsCsv(file.path)
        assert again.rows() == rows[:kept]
        again.lines.check(marks[kept])
        again.lines.rewind(marks[kept])
        for row in rows[kept:]:
            again.append(row)
        assert again.path.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"1,2.0,3.0", b"1", b"1,x", b"\0\0", b"1.5,2.0", b"\xff,1.0"])
def test_metrics_name_a_damaged_line(tmp_path, damage):
    file = MetricsCsv(tmp_path / "metrics.csv")
    file.path.write_bytes(b"round,a\n0,1.0\n" + damage + b"\n")
    with pytest.raises(UserError, match="line 3 is damaged"):
        file.rows()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\n", b"a,b\n1,2\n"])
def test_metrics_without_a_header_are_refused(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(
        UserError, match=r"metrics\.csv must hold a header with `round`.*line [12] is damaged"
    ):
        MetricsCsv(tmp_path / "metrics.csv").rows()


# --- both ---


@pytest.mark.parametrize("kind", [JsonLines, MetricsCsv])
def test_a_missing_file_is_an_empty_one(tmp_path, kind):
    file = kind(tmp_path / "none")
    file.lines.check(Mark())
    file.lines.rewind(Mark())
    assert file.lines.mark() == Mark()
    assert file.rows() == []
    assert list(tmp_path.iterdir()) == []


DAMAGES = {
    "missing": (lambda path, text: path.unlink(), "is missing, and the checkpoint counts on its first"),
    "emptied": (lambda path, text: path.write_bytes(b""), "ends after 0 lines, and the checkpoint counts on"),
    "cut": (lambda path, text: path.write_bytes(text[:-1]), r"ends after \d lines, and the checkpoint"),
    "changed": (lambda path, text: path.write_bytes(text.replace(b"1", b"2")), "was changed or damaged, and"),
}


@pytest.mark.parametrize("kind", [JsonLines, MetricsCsv])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_lost_what_a_mark_counts_on_is_refused(tmp_path, kind, damage):
    file = kind(tmp_path / "rows")
    for index in range(3):
        file.append({"round": index, "a": 1.0})
    mark = file.lines.mark()
    act, message = DAMAGES[damage]
    act(file.path, file.path.read_bytes())
    with pytest.raises(UserError, match=f"rows {message}"):
        kind(file.path).lines.check(mark)


@pytest.mark.parametrize("kind", [JsonLines, MetricsCsv])
def test_going_back_to_a_mark_drops_what_came_after_it(tmp_path, kind):
    file = kind(tmp_path / "rows")
    file.append({"round": 0, "a": 1.0})
    text, mark = file.path.read_bytes(), file.lines.mark()
    file.append({"round": 1, "a": 1.0})
    file.lines.check(mark)
    file.lines.rewind(mark)
    assert (file.path.read_bytes(), file.lines.mark()) == (text, mark)


@pytest.mark.parametrize("kind", [JsonLines, MetricsCsv])
def test_a_full_disk_is_one_sentence(tmp_path, kind, monkeypatch):
    file = kind(tmp_path / "full")
    monkeypatch.setattr("flsel.runner.run_log.open_own", lambda path, flags: os.open("/dev/full", flags))
    with pytest.raises(UserError, match=r"cannot write .*: the disk is full"):
        file.append({"round": 0, "a": 1.0})


# --- summary.json and where the run ran ---


def test_summary_is_readable_json(tmp_path):
    write_summary(
        tmp_path / "summary.json", {"final": {"test/accuracy": np.float32(0.5)}, "rounds_to_target": None}
    )
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text) == {"format": 1, "final": {"test/accuracy": 0.5}, "rounds_to_target": None}
    assert text.count("\n") == 7


def test_git_commit_is_that_of_the_current_folder(tmp_path, monkeypatch):
    def git(*command):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *identity, *command], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    monkeypatch.chdir(tmp_path)
    assert git_commit() is None
    git("init", "-q")
    assert git_commit() is None
    git("commit", "-q", "--allow-empty", "-m", "x")
    assert git_commit() == git("rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "")
    assert git_commit() is None


@pytest.mark.parametrize(
    "change", [Path.unlink, lambda path: path.write_text(""), lambda path: path.write_text("a\n" * 9)]
)
def test_a_file_that_somebody_else_changes_is_not_written_on(tmp_path, change):
    file = JsonLines(tmp_path / "rounds.jsonl")
    file.lines.rewind(Mark())
    file.append({"round": 0})
    file.append({"round": 1})
    change(file.path)
    with pytest.raises(UserError, match=r"rounds\.jsonl was removed or changed while the run was writing it"):
        file.append({"round": 2})
