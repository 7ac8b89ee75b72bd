"""A sweep's process may die of anything: it is started again, and its cluster does not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and Linux's signals")

COMMAND = """
import os, signal, sys, time
from pathlib import Path
from flsel.execution.on_ray.supervisor import supervise, tell

def command(arguments):
    deaths = len(list(Path().glob("death*")))
    print(*arguments, flush=True)
    {body}

sys.exit(supervise(["--new"], command))
"""
DIE = 'Path(f"death{deaths}").touch(); os.kill(os.getpid(), signal.SIGKILL)'
# A cluster: one process starts another, one has a title like those of Ray's agents, which write
# it over their environment; and a process that is none of it.
CLUSTER = """
import os, subprocess, sys, time
from flsel.execution.on_ray.cluster_cleanup import ClusterCleanup

WAIT = "import time; time.sleep(99)"

def begin(code):
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.DEVNULL)

reaper = ClusterCleanup(sys.argv[1])
with reaper.marking():
    marked = begin(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])")
with open(sys.argv[1] + "/log", "w") as log:
    titled = subprocess.Popen(["ray::Agent", "-c", WAIT], executable=sys.executable, stdout=log)
other = begin(WAIT)
print(marked.pid, titled.pid, other.pid, flush=True)
sys.stdin.readline()
reaper.close()
print("closed", flush=True)
time.sleep(99)
"""


def supervised(body: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = COMMAND.format(body=body)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=500
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(holds) -> bool:
    deadline = time.monotonic() + 500
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(holds())


def test_a_process_that_ends_by_itself_is_not_started_again(tmp_path):
    done = supervised("return 7", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (7, "--new\n", "")
    assert supervised("raise SystemExit(3)", tmp_path).returncode == 3
    assert "ZeroDivisionError" in supervised("1 / 0", tmp_path).stderr


def test_a_ray_that_does_not_start_is_tried_again_with_the_same_arguments(tmp_path):
    """A sweep has no folder yet; a comparison has, which is resumed."""
    why = "die('Ray could not be started (it timed out)')"
    die = f'Path(f"death{{deaths}}").touch(); from flsel.execution.on_ray.supervisor import die; {why}'
    body = 'tell("cluster", "none")\n    if deaths < MOST: ' + die + "\n    return 0"
    done = supervised(body.replace("MOST", "2"), tmp_path)
    assert (done.returncode, done.stdout) == (0, 3 * "--new\n")
    again = "flsel: warning: Ray could not be started (it timed out); it is started again\n"
    assert done.stderr == 2 * again
    done = supervised('tell("work", "a\\n b"); ' + body.replace("MOST", "9"), tmp_path)
    assert done.stdout == "--new\n" + 3 * "--resume a\n b\n"
    assert "could not be started (it timed out), 4 times in a row" in done.stderr


@pytest.mark.parametrize("death", [DIE, 'Path(f"death{deaths}").touch(); os._exit(1)'])
def test_a_process_that_dies_is_resumed(tmp_path, death):
    done = supervised(f'tell("work", "sweeps/a b")\n    if deaths < 2: {death}\n    return 0', tmp_path)
    assert done.returncode == 0
    assert done.stdout == "--new\n" + 2 * "--resume sweeps/a b\n"
    assert done.stderr.count("Ray's daemon or the process of flsel tune died") == 2


def test_a_process_that_dies_again_and_again_is_given_up(tmp_path):
    done = supervised(f'tell("work", "sweeps/a")\n    {DIE}', tmp_path)
    assert "died (signal 9), 4 times in a row; memory may be short" in done.stderr
    assert "go on with flsel tune --resume sweeps/a." in done.stderr
    assert len(list(tmp_path.glob("death*"))) == 4
    before = supervised(DIE, tmp_path)
    assert "UserError: the process of flsel tune died before its first run (signal 9)" in before.stderr


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 5), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_are_passed_on_and_a_kill_takes_the_inner_process_along(tmp_path, number, expected):
    wait = 'Path("inner").write_text(str(os.getpid())); time.sleep(99)'
    code = COMMAND.format(body=f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n    {wait}")
    outer = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.DEVNULL)
    note = tmp_path / "inner"
    assert eventually(lambda: note.exists() and note.read_text())
    inner = int(note.read_text())
    outer.send_signal(number)
    assert outer.wait(timeout=500) == expected
    assert eventually(lambda: not alive(inner))


@pytest.mark.parametrize("ends", ["signal.SIG_DFL", "lambda *_: sys.exit(1)", "lambda *_: sys.exit(15)"])
def test_a_process_that_a_signal_ends_is_not_started_again(tmp_path, ends):
    """Before it listens to signals itself, or while Ray starts or ends, which then ends it."""
    wait = 'Path("inner").write_text("here"); time.sleep(99)'
    code = COMMAND.format(body=f'tell("work", "a b"); signal.signal(signal.SIGTERM, {ends}); {wait}')
    outer = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert eventually(lambda: (tmp_path / "inner").exists())
    outer.terminate()
    _, said = outer.communicate(timeout=500)
    assert said.endswith("Interrupted: stopped; continue with: flsel tune --resume 'a b'\n")
    assert "started again" not in said


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_cluster_ends_with_its_driver(tmp_path, how):
    folder = tmp_path / "cluster"
    folder.mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert driver.stdin is not None
    assert driver.stdout is not None
    marked, titled, other = map(int, driver.stdout.readline().split())
    children = Path(f"/proc/{marked}/task/{marked}/children")
    assert eventually(lambda: children.read_text())
    (child,) = map(int, children.read_text().split())
    try:
        if how == "closed":
            driver.stdin.write("\n")
            driver.stdin.flush()
            assert driver.stdout.readline() == "closed\n"
            assert not alive(marked)
            assert not alive(titled)
        else:
            driver.kill()
        assert eventually(lambda: not any(map(alive, (marked, titled, child))) and not folder.exists())
        assert alive(other)
    finally:
        os.kill(other, signal.SIGKILL)
        driver.kill()
        driver.wait()
        driver.stdin.close()
        driver.stdout.close()
