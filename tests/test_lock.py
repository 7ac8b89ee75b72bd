"""One writer a folder, whoever dies how."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from runs import lines, settings

from flsel.errors import UserError
from flsel.execution.run import run
from flsel.runner.lock import LOCK_FILE, Lock

HOLD = """
import os, sys, time
from pathlib import Path
from flsel.runner.lock import Lock
lock = Lock(Path(sys.argv[1]), "run")
lock.acquire()
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(5)
    os._exit(0)
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def holder(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of a folder, until it is killed."""
    command = [sys.executable, "-c", HOLD, str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("options", [(), ("fork",)])
def test_the_lock_of_another_process_is_refused_and_ends_with_it(tmp_path: Path, options: tuple[str]) -> None:
    with holder(tmp_path, *options) as process:
        who = f"process {process.pid} on {socket.gethostname()} since "
        with pytest.raises(UserError, match=rf"^run {tmp_path} is being written by {who}.*: wait for it or"):
            Lock(tmp_path, "run").acquire()
    with Lock(tmp_path, "run"):  # also while a child that it forked is alive
        pass


def test_two_parts_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with Lock(tmp_path, "sweep"):
        with pytest.raises(UserError, match=f"sweep .* process {os.getpid()} on"):
            Lock(tmp_path, "sweep").acquire()
        # The refused one has not given up the first one's lock.
        code = HOLD.replace("time.sleep(60)", "")
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert f"process {os.getpid()}" in done.stderr
    with Lock(tmp_path, "sweep"):
        pass


def test_a_lock_that_nobody_refers_to_is_given_up(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "run")
    lock.acquire()
    del lock
    with Lock(tmp_path, "run"):
        pass


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_note_tells_who_may_live(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    note = {"host": socket.gethostname(), "pid": os.getppid()}
    for host, alive in ((note["host"], True), ("elsewhere", True), (note["host"], False)):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        pid = note["pid"] if alive else dead.pid
        (tmp_path / LOCK_FILE).write_text(json.dumps({"host": host, "pid": pid}))
        if alive:
            with pytest.raises(
                UserError, match=rf"process {pid} on {host}: .* or remove .*\.lock if it is dead"
            ):
                Lock(tmp_path, "run").acquire()
        else:
            with caplog.at_level(logging.WARNING, "flsel"), Lock(tmp_path, "run"):
                assert "has no locks" in caplog.text


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=rf"cannot write .*{LOCK_FILE}: permission denied"):
        Lock(tmp_path, "run").acquire()


@pytest.mark.parametrize("kind", ["pipe", "noise", "link to a device", "note of a dead process elsewhere"])
def test_odd_locks_can_be_taken(tmp_path: Path, kind: str) -> None:
    file = tmp_path / LOCK_FILE
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "noise":
        file.write_bytes(bytes(range(256)) * 20)
    elif kind == "link to a device":
        file.symlink_to(os.devnull)
    else:
        file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": "2020-01-01"}))
    with Lock(tmp_path, "run"), pytest.raises(UserError, match="is being written by process"):
        Lock(tmp_path, "run").acquire()


def test_a_lock_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / LOCK_FILE
    file.mkdir()
    with pytest.raises(UserError, match="which is a folder: remove it"):
        Lock(tmp_path, "run").acquire()
    file.rmdir()
    other = tmp_path / "other"
    other.write_text("kept")
    os.link(other, file)
    with pytest.raises(UserError, match="hard link"):
        Lock(tmp_path, "run").acquire()
    assert other.read_text() == "kept"


def test_two_processes_cannot_resume_one_run(tmp_path: Path) -> None:
    """Either the second one is refused, or it comes when the first is done; the record is whole."""
    run(settings(tmp_path, rounds=60))
    folder = tmp_path / "run"
    for name in ("last.ckpt", "previous.ckpt"):
        (folder / "checkpoints" / name).unlink()
    for name in ("metrics.csv", "rounds.jsonl", "summary.json"):
        (folder / name).unlink()
    command = [sys.executable, "-m", "flsel", "train", "--resume", str(folder)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=500)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes in ([0, 2], [2, 0]) or codes == [0, 0], told
    if 2 in codes:
        assert "is being written by process" in told[codes.index(2)]
    assert len(lines(folder / "rounds.jsonl")) == 60
