"""Availability from a record: files, times, and what is refused."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flsel.availability import HOMO, YFF, Intervals, Trace, intervals
from flsel.availability.read_intervals import PlacedRecord, Record, read_intervals
from flsel.errors import UserError

COUNTS = np.full((3, 2), 5)
TABLE = "client,from,to\n0,0,2\n0,3,4\n1,1,4\n2,3,3\n"


def table(folder: Path, text: str = TABLE) -> str:
    path = folder / "record.csv"
    path.write_text(text)
    return str(path)


def there(mode: Intervals, rounds: int, counts: np.ndarray = COUNTS, seed: int = 0) -> list[list[int]]:
    trace = Trace(mode, counts, seed)
    return [np.flatnonzero(trace(round)).tolist() for round in range(rounds)]


def test_a_table_in_rounds_says_who_is_there_and_repeats(tmp_path: Path) -> None:
    path = table(tmp_path)
    assert there(Intervals(path), 6) == [[0], [0, 1], [1], [0, 1], [0], [0, 1]]
    assert there(Intervals(path, repeat=False), 6) == [[0], [0, 1], [1], [0, 1], [], []]
    assert Trace(Intervals(path, repeat=False), COUNTS, 0).empty(6).tolist() == [4, 5]


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: Any) -> None:
    read, path = [], table(tmp_path)
    monkeypatch.setattr(intervals, "read_intervals", lambda *given: read.append(1) or read_intervals(*given))
    for seed in (0, 1):
        assert there(Intervals(path), 3, seed=seed) == [[0], [0, 1], [1]]
    assert len(read) == 1
    table(tmp_path, TABLE + "2,0,1\n")
    assert there(Intervals(path), 1) == [[0, 2]]


def test_clients_without_examples_are_never_there(tmp_path: Path) -> None:
    counts = COUNTS.copy()
    counts[1] = 0
    assert there(Intervals(table(tmp_path)), 4, counts) == [[0], [0], [], [0]]


def test_a_table_in_seconds_follows_the_clock(tmp_path: Path) -> None:
    trace = Trace(Intervals(table(tmp_path), unit="seconds"), COUNTS, 0)
    assert [np.flatnonzero(trace(9, at)).tolist() for at in (0.5, 2.0, 2.99, 3.0, 4.5)] == [
        [0], [1], [1], [0, 1], [0],
    ]  # fmt: skip
    assert trace.stays([0, 1, 2], 0, 1.5).tolist() == [0.5, 2.5, 0.0]
    assert trace.stays([0], 0, 3.25).tolist() == [2.75]  # the record repeats with an interval of 2
    assert trace.empty(100).tolist() == []


def test_the_server_waits_for_the_next_client(tmp_path: Path) -> None:
    path = table(tmp_path, "client,from,to\n0,2,3\n1,5,10\n2,4,4\n")
    trace = Trace(Intervals(path, unit="seconds"), COUNTS, 0)
    assert [trace.wait(at) for at in (0.0, 2.5, 3.0, 10.0, 12.0)] == [2.0, 0.0, 2.0, 2.0, 0.0]
    assert Trace(Intervals(path, unit="seconds", repeat=False), COUNTS, 0).wait(11.0) == 0.0
    assert Trace(Intervals(path), COUNTS, 0).wait(0.0) == 0.0
    assert Trace(HOMO(), COUNTS, 0).stays([0, 1], 3).tolist() == [math.inf, math.inf]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), min_size=1, max_size=6),
    st.integers(0, 29),
    st.booleans(),
    st.integers(0, 90),
)
def test_times_agree_with_a_table_of_whole_seconds(pairs: Any, start: int, repeats: bool, time: int) -> None:
    on = np.zeros(30, dtype=bool)
    for first, last in pairs:
        on[first:last] = True
    record = PlacedRecord(Record.of(pairs, 30.0), float(start if repeats else 0), repeats)
    line = np.tile(on, 8)[start:] if repeats else np.concatenate([on, np.zeros(210, dtype=bool)])
    after = line[time:]
    stays = 0 if not after[0] else len(after) if after.all() else int(after.argmin())
    until = 0 if after[0] else int(after.argmax()) if after.any() else math.inf
    assert record.left(time) == (math.inf if repeats and on.all() else stays)
    assert record.until(time) == until


def test_a_shift_moves_each_record_by_the_seed(tmp_path: Path) -> None:
    text = "client,from,to\n" + "".join(f"{client},0,1\n" for client in range(40)) + "0,19,20\n"
    counts = np.full((40, 2), 5)
    mode = Intervals(table(tmp_path, text), shift=True)
    first = there(mode, 20, counts)
    assert sum(map(len, first)) == 41
    assert len([clients for clients in first if clients]) > 10
    assert first == there(mode, 20, counts)
    assert first != there(mode, 20, counts, seed=1)
    assert [*map(len, there(Intervals(mode.path), 2, counts))] == [40, 0]


def test_records_of_others_are_drawn_by_the_seed(tmp_path: Path) -> None:
    path = table(tmp_path, "client,from,to\nphone a,0,1\nphone b,1,2\nphone c,2,3\n")
    counts = np.full((6, 2), 5)
    drawn = there(Intervals(path), 3, counts)
    assert [*map(len, drawn)] == [2, 2, 2]
    assert sorted(client for round in drawn for client in round) == [*range(6)]
    assert drawn != there(Intervals(path), 3, counts, seed=1)
    with pytest.raises(UserError, match=r"must name clients 0 to 5, .* names phone a: set availability.draw"):
        there(Intervals(path, draw=False), 3, counts)


def test_fedscales_trace(tmp_path: Path) -> None:
    trace = {7: {"active": [10, 50], "inactive": [20, 90], "finish_time": 100, "duration": 50}}
    for name, raw in (("t.json", json.dumps(trace).encode()), ("t", pickle.dumps(trace))):
        (tmp_path / name).write_bytes(raw)
        (record,) = read_intervals("availability.path", str(tmp_path / name)).values()
        assert [*record.starts, *record.ends, record.length] == [10, 50, 20, 90, 100]


def test_a_trace_names_users_and_is_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({str(k): {"active": [k], "inactive": [9], "finish_time": 9} for k in range(3)})
    )
    for clients, first in ((6, [0, 0, 1, 1, 2, 2]), (3, [0, 1, 2])):
        records = Intervals(str(path), "seconds").records(clients, np.random.default_rng(0))
        assert sorted(int(own.record.starts[0]) for own in records) == first
    assert [int(own.record.starts[0]) for own in records] == first
    with pytest.raises(
        UserError, match=r"availability.unit must be seconds with a trace of FLASH or FedScale"
    ):
        Intervals(str(path)).records(3, np.random.default_rng(0))


def test_flashs_traces(tmp_path: Path) -> None:
    day = "2020-02-01 00:"
    messages = "\n".join(
        f"{day}{at}\t{state}"
        for at, state in (
            ("00:00", "Wifi"), ("01:00", "battery_charged_on"), ("02:00", "screen_lock"), ("03:30", "57%"),
            ("05:00", "4G"), ("06:00", "wifi"), ("07:00", "screen_unlock"), ("10:00", "screen_on"),
        )
    )  # fmt: skip
    raw = {"a": {"guid": "a", "model": "x", "messages": messages}}
    cached = {
        "a": {"isSuccess": True, "trace_start": 50, "trace_end": 650, "ready_time": [[170, 350], [410, 470]]}
    }
    for trace in (raw, cached):
        path = tmp_path / "flash.json"
        path.write_text(json.dumps(trace))
        (record,) = read_intervals("availability.path", str(path)).values()
        assert [*record.starts, *record.ends, record.length] == [120, 360, 300, 420, 600]


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("client;from;to\n0;1;2\n", "separated by semicolons: use commas"),
        ("client,from\n0,1\n", "without to"),
        ("client,from,to\n0,3,2\n", "end after they start, .*3 to 2 in line 2"),
        ("client,from,to\n0,-1,2\n", "a finite number >= 0 as from, .*'-1' in line 2"),
        ("client,from,to\n0,1,nan\n", "a finite number >= 0 as to, .*'nan' in line 2"),
        ("client,from,to\n0,1,1\n", "all in .* are empty"),
        ("", "without rows"),
        ("{", "must name a file of intervals, got"),
        ("{}", "record of each client"),
        ('{"a": {"active": [1], "inactive": [2]}}', "client a: a record must have active, inactive and"),
        ('{"a": {"active": [1], "inactive": [], "finish_time": 9}}', "client a: a record must have"),
        ('{"a": {"active": [1], "inactive": [12], "finish_time": 9}}', "within the record, 0 to 9"),
        ('{"a": 3}', "client a: a record must have .*, got 3"),
        ('{"a": {"messages": 3}}', "client a: a record must have .*, got {'messages': 3}"),
        ('{"a": 3, "a": 4}', "the key a stands twice"),
        ('{"a":' * 5000, "nested too deeply"),
        (pickle.dumps({0: Bomb()}), "builtins.print, and only plain numbers are read"),
        (b"\x80\x04nonsense", "must name a file of intervals"),
    ],
)
def test_wrong_files_are_refused(raw: str | bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    with pytest.raises(UserError, match=said):
        Trace(Intervals(str(path)), COUNTS, 0)


def test_a_mark_before_the_text_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b'\xef\xbb\xbf{"0": {"active": [1], "inactive": [2], "finish_time": 9}}\r\n')
    assert read_intervals("availability.path", str(path))["0"].starts.tolist() == [1.0]
    with pytest.raises(UserError, match="is a pipe or a device; give a regular one"):
        read_intervals("availability.path", "/dev/zero")
    with pytest.raises(UserError, match="got nosuch: no such file or directory"):
        read_intervals("availability.path", "nosuch")


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"availability.shift must be false without availability.repeat"):
        Intervals(table(tmp_path), repeat=False, shift=True)
    with pytest.raises(UserError, match=r"a CSV file that can be read|a file of intervals"):
        Trace(Intervals(str(tmp_path / "none")), COUNTS, 0)


def test_flgos_modes() -> None:
    counts = np.array([[1, 0, 0, 0], [1, 2, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    rng = np.random.default_rng(0)
    found = YFF(beta=0.4).probabilities(counts, np.arange(1), rng)[0]
    np.testing.assert_allclose(found, [0.7, 0.8, 1.0, 0.0])
    assert HOMO(beta=0.25).probabilities(counts, np.arange(1), rng)[0].tolist() == [0.75, 0.75, 0.75, 0.0]
