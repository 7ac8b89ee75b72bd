import json
import math
import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flsel.errors import UserError
from flsel.runner.record import JsonLines, MetricsCsv, device_name, git_commit, versions, write_summary

in_tmp_path = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None
)
floats = st.floats(allow_nan=False)


def same(left: float, right: float) -> bool:
    return type(left) is type(right) and (left == right or (math.isnan(left) and math.isnan(right)))


@pytest.fixture
def full(tmp_path) -> Path:
    path = tmp_path / "full"
    path.symlink_to("/dev/full")
    return path


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


def test_json_lines_are_compact_and_on_disk_after_each_append(tmp_path):
    file = JsonLines(tmp_path / "rounds.jsonl")
    file.append(
        {"round": 0, "plan": ((3,), (1,)), "n": np.int64(2), "w": torch.tensor([0.1]).double(), "ok": True}
    )
    assert file.path.read_text() == '{"round":0,"plan":[[3],[1]],"n":2,"w":[0.10000000149011612],"ok":true}\n'


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
    file = JsonLines(tmp_path / "rounds.jsonl")
    for index in range(3):
        file.append({"round": index, "x": 0.5 + index})
    text = file.path.read_bytes()
    file.path.write_bytes(text[:-cut])
    kept = [row["round"] for row in file.rows()]
    assert kept == list(range(text[:-cut].count(b"\n")))
    file.truncate(len(kept))
    for index in range(len(kept), 3):
        file.append({"round": index, "x": 0.5 + index})
    assert file.path.read_bytes() == text


@pytest.mark.parametrize(("after", "left"), [(0, []), (2, [0]), (4, [0, 2]), (99, [0, 2, 4])])
def test_json_lines_truncate_drops_from_the_given_round_on(tmp_path, after, left):
    file = JsonLines(tmp_path / "rounds.jsonl")
    for index in (0, 2, 4):
        file.append({"round": index})
    file.truncate(after)
    assert [row["round"] for row in file.rows()] == left
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.jsonl"]


@pytest.mark.parametrize("damage", ["not json", "[1]", '{"other": 1}', "3"])
def test_json_lines_name_a_damaged_line(tmp_path, damage):
    file = JsonLines(tmp_path / "rounds.jsonl")
    file.path.write_text('{"round":0}\n' + damage + '\n{"round":2}\n')
    with pytest.raises(UserError, match="line 2 is damaged"):
        file.rows()
    with pytest.raises(UserError, match="line 2 is damaged"):
        file.truncate(1)
    assert file.path.read_text().count("\n") == 3


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
    file = MetricsCsv(tmp_path / "metrics.csv")
    rows = [{"round": index, "a": 0.125 * index, "b": 12345.678} for index in range(3)]
    for row in rows:
        file.append(row)
    whole = file.path.read_bytes()
    for size in range(len(whole)):
        file.path.write_bytes(whole[:size])
        kept = whole[:size].count(b"\n") - 1
        assert file.rows() == rows[: max(kept, 0)]
        file.truncate(99)
        for row in rows[max(kept, 0) :]:
            file.append(row)
        assert file.path.read_bytes() == whole


@pytest.mark.parametrize(("after", "left"), [(0, []), (10, [0, 5]), (11, [0, 5, 10])])
def test_metrics_truncate_drops_from_the_given_round_on(tmp_path, after, left):
    file = MetricsCsv(tmp_path / "metrics.csv")
    for index in (0, 5, 10):
        file.append({"round": index, "a": 1.0})
    file.truncate(after)
    assert [row["round"] for row in file.rows()] == left
    file.append({"round": 99, "a": 2.0})
    assert file.path.read_text().count("round") == 1


@pytest.mark.parametrize("damage", ["1,2.0,3.0", "1", "1,x", "\0\0"])
def test_metrics_name_a_damaged_line(tmp_path, damage):
    file = MetricsCsv(tmp_path / "metrics.csv")
    file.path.write_text(f"round,a\n0,1.0\n{damage}\n")
    with pytest.raises(UserError, match="line 3 is damaged"):
        file.rows()


# --- both ---


@pytest.mark.parametrize("kind", [JsonLines, MetricsCsv])
def test_a_missing_file_is_an_empty_one(tmp_path, kind):
    file = kind(tmp_path / "none")
    file.truncate(0)
    file.sync()
    assert file.rows() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [JsonLines, MetricsCsv])
def test_a_full_disk_is_one_sentence(full, kind):
    file = kind(full)
    file._columns = lambda: []  # /dev/full reads as endless zeros
    with pytest.raises(UserError, match=r"cannot write .*: the disk is full"):
        file.append({"round": 0, "a": 1.0})


@pytest.mark.parametrize("kind", [JsonLines, MetricsCsv])
def test_sync_reaches_the_file(tmp_path, monkeypatch, kind):
    file, synced = kind(tmp_path / "rows"), []
    file.append({"round": 0, "a": 1.0})
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    file.sync()
    assert synced == [file.path.stat().st_ino]


# --- summary.json and where the run ran ---


def test_summary_is_readable_json(tmp_path):
    write_summary(
        tmp_path / "summary.json", {"final": {"test/accuracy": np.float32(0.5)}, "rounds_to_target": None}
    )
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text) == {"final": {"test/accuracy": 0.5}, "rounds_to_target": None}
    assert text.count("\n") == 6


def test_versions_are_those_imported():
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["numpy"] == np.__version__
    assert torch.__version__.startswith(found["torch"])


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


def test_device_name_tells_the_hardware(monkeypatch):
    assert device_name("cpu")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU behind {device}")
    assert device_name("cuda:1") == "GPU behind cuda:1"
    assert device_name("mps") == "mps"


def test_cpu_name_without_proc(monkeypatch):
    def absent(path, encoding):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    assert device_name("cpu") == (platform.processor() or platform.machine())
