"""A cluster ends with its driver, and what died is said with the command that resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and Linux's signals")

# A cluster: a daemon, one process that starts another, one with a title like those of Ray's agents, which
# write it over their environment; and a process that is none of it.
CLUSTER = """
import os, subprocess, sys, time
from flsel.execution.on_ray.cluster_cleanup import ClusterCleanup, resume_by

WAIT = "import time; time.sleep(99)"

def begin(code, title=sys.executable):
    return subprocess.Popen(
        [title, "-c", code], executable=sys.executable, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )

cleanup = ClusterCleanup(sys.argv[1])
with cleanup.marking():
    daemon = begin(WAIT, "/core/raylet")
    marked = begin(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])")
with open(sys.argv[1] + "/log", "w") as log:
    titled = subprocess.Popen(["ray::Agent", "-c", WAIT], executable=sys.executable, stdout=log, stderr=log)
other = begin(WAIT)
if sys.argv[2]:
    resume_by(sys.argv[2])
print(cleanup._process.pid, daemon.pid, marked.pid, titled.pid, other.pid, flush=True)
sys.stdin.readline()
cleanup.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def watched(pid: int) -> int:
    """Count the handles of processes that a process keeps; others come and go while it looks around."""
    try:
        return sum("pidfd" in os.readlink(handle) for handle in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize(
    ("how", "advice", "sentence"),
    [
        ("closed", "continue with: flsel tune --resume s", ""),
        ("killed", "", "The process of flsel died, perhaps for lack of memory; nothing was begun"),
        (
            "daemon",
            "continue with: flsel tune --resume 'a\n b'",
            "Ray's daemon died, perhaps for lack of memory; continue with: flsel tune --resume 'a\n b'",
        ),
    ],
)
def test_a_cluster_ends_with_its_driver_or_its_daemon(tmp_path, how, advice, sentence):
    folder = tmp_path / "cluster"
    folder.mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(folder), advice],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert driver.stdin is not None
    assert driver.stdout is not None
    cleanup, daemon, marked, titled, other = map(int, driver.stdout.readline().split())
    children = Path(f"/proc/{marked}/task/{marked}/children")
    assert eventually(lambda: children.read_text())
    (child,) = map(int, children.read_text().split())
    assert eventually(lambda: watched(cleanup) == 2)  # the driver and its daemon
    members = (daemon, marked, titled, child)
    try:
        if how == "closed":
            driver.stdin.write("\n")
            driver.stdin.flush()
            assert driver.stdout.readline() == "closed\n"
            assert not any(map(alive, members))
        elif how == "killed":
            driver.kill()
        else:
            os.kill(daemon, signal.SIGKILL)
        assert eventually(lambda: not any(map(alive, members)) and not folder.exists())
        assert alive(other)
        if how == "daemon":
            assert driver.wait() == -signal.SIGKILL
        _, said = driver.communicate()
        assert said == (f"flsel: error: {sentence}\n" if sentence else "")
    finally:
        os.kill(other, signal.SIGKILL)
        driver.kill()
        driver.wait()
