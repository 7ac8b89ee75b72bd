"""What happens to the console never happens to the run."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import lines, wait_for

from flsel.commands import cli
from flsel.errors import UserError
from flsel.execution.live_table import LiveTable
from flsel.execution.signals import Interrupt
from flsel.files import new_run_dir
from flsel.runner.terminal import Outlet, open_console

TRAIN = [
    sys.executable,
    "-m",
    "flsel",
    "train",
    "--clients",
    "4",
    "--clients_per_round",
    "2",
    "--output.name",
    "run",
    "--local.backend",
    "sequential",
]


@pytest.mark.parametrize(
    "command", ["{} | head -1", "{} 2>&1 | head -1", "{} > /dev/full", "{} <&- >&- 2>&-"]
)
def test_a_console_that_breaks_is_silenced_and_the_run_goes_on(tmp_path: Path, command: str) -> None:
    train = " ".join([*TRAIN, "--rounds", "3"])
    script = command.format(f"{{ {train}; echo $? > code; }}")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert (tmp_path / "code").read_text() == "0\n"
    assert (tmp_path / "runs/run/summary.json").is_file()
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_name_that_the_terminal_cannot_encode_is_escaped(tmp_path: Path) -> None:
    command = [*TRAIN, "--output.name", "läuft", "--rounds", "1"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr
    assert r"wrote runs/l\xe4uft/summary.json" in done.stdout


def test_an_outlet_writes_what_a_stream_can_take() -> None:
    raw = io.BytesIO()
    outlet = Outlet(io.TextIOWrapper(raw, encoding="ascii"))
    assert outlet.write("é\n") == 2
    outlet.flush()
    assert raw.getvalue() == b"\\xe9\n"
    raw.close()
    outlet.write("nobody reads this")
    outlet.flush()


def test_what_many_runs_are_shown_on_falls_silent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich by itself ends the process where nobody reads, and raises where the disk is full."""
    reader, writer = os.pipe()
    os.close(reader)
    for handle in (os.open("/dev/full", os.O_WRONLY), writer):
        stream = os.fdopen(handle, "w", buffering=1)
        monkeypatch.setattr(sys, "stdout", stream)
        with LiveTable(quiet=False) as board:
            for _ in range(3):
                board.line("a line")
        open_console().print("a table")
        monkeypatch.undo()
        with suppress(OSError):
            stream.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_a_run_between_rounds(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*TRAIN, "--rounds", "100000"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: len(lines(tmp_path / "runs/run/rounds.jsonl")) > 2)
        process.send_signal(number)
        told = process.communicate(timeout=500)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "continue with: flsel train --resume runs/run" in told


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_a_command_that_executes_no_round(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(arguments: list[str]) -> int:
        os.kill(os.getpid(), number)
        time.sleep(60)
        return 0

    before = signal.getsignal(number)
    monkeypatch.setattr(cli, "load", lambda name: SimpleNamespace(main=judge))
    assert cli.main(["compare"]) == 130
    assert "stopped; resume what had started with" in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert new_run_dir("~/runs", "x") == tmp_path / "home/runs/x"
    assert not (tmp_path / "~").exists()
    with pytest.raises(UserError, match="there is no home folder for ~nobody-by-this-name/runs; write the"):
        new_run_dir("~nobody-by-this-name/runs", "x")
