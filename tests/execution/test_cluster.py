"""Ray on this machine: what is said where it does not start."""

from __future__ import annotations

import signal
import socket
import sys
from typing import Any

import pytest
import ray

from flsel.errors import UserError
from flsel.execution.executor import Resources
from flsel.execution.on_ray.cluster import _check_names, _nameable, cluster
from flsel.execution.signals import like_ctrl_c


@pytest.mark.parametrize("name", ["yaml.py", "torch/__init__.py", "mine.py"])
def test_files_that_would_hide_modules_from_rays_processes(tmp_path, monkeypatch, name) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    if name == "mine.py":
        monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test's
        _check_names(tmp_path)
        return
    with pytest.raises(UserError, match=r"would hide the installed module (yaml|torch) from"):
        _check_names(tmp_path)


@pytest.mark.parametrize(
    ("folder", "taken"),
    [("/var/tmp", "/var/tmp"), ("/var/tmp/ü", "/tmp"), ("/var/" + 40 * "t", "/tmp")],
)
def test_rays_folder_is_one_that_it_can_name(folder: str, taken: str) -> None:
    assert _nameable(folder) == taken


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise Exception("The current node timed out\n during startup.")

    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(UserError, match=r"Ray could not be started .* timed out during startup"),
        cluster(Resources(), 0),
    ):
        pass


def test_a_cluster_that_asks_for_a_token_is_told_from_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray raises a ConnectionError from a RuntimeError that has the other traceback as its text."""

    def init(**options: object) -> None:
        reason = RuntimeError(
            "Failed to connect to GCS: ray.exceptions.AuthenticationError: InvalidAuthToken"
        )
        raise ConnectionError("Failed to connect to Ray cluster") from reason

    monkeypatch.setattr(ray, "init", init)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(UserError, match="is a Ray cluster that asks for a token: copy"),
        cluster(Resources(address=f"127.0.0.1:{server.getsockname()[1]}"), 0),
    ):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_other_signals_stop_a_sweep_as_ctrl_c_does(number: int, ctrl_c: Any) -> None:
    """Also where Ctrl-C is ignored, as by what a shell starts in the background."""
    before = signal.signal(number, lambda *_: sys.exit(15))  # as Ray has it
    interrupts = signal.signal(signal.SIGINT, ctrl_c)
    try:
        with pytest.raises(KeyboardInterrupt), like_ctrl_c():
            signal.raise_signal(number)
        with pytest.raises(SystemExit):
            signal.raise_signal(number)
        signal.signal(number, signal.SIG_IGN)  # as under nohup
        with like_ctrl_c():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
        signal.signal(signal.SIGINT, interrupts)
