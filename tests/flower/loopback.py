"""A SuperLink, nodes and one run on this machine's loopback; by itself it is ``make demo-flower``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

BIN = Path(sys.executable).parent
SETTINGS = [
    "--config", "quickstart", "--rounds", "2", "--selector", "PowD", "--selector.d", "8", "--local.backend",
    "sequential", "--quiet", "true", "--output.name", "run", "--threads", "1",
]  # fmt: skip


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Flower's switches for what would leave this machine, and a home of its own."""
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }
    return os.environ | quiet | {"FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}


@contextmanager
def started(command: Sequence[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own, and end that whole session."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=env, start_new_session=True)
        try:
            yield process
        finally:
            for way in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, way)
                except ProcessLookupError:
                    break
                time.sleep(1.0)
            process.wait()


class Federation:
    """A SuperLink and its nodes.

    Attributes:
        env: The environment of ``flwr``, with a connection ``loop``.
    """

    def __init__(self, folder: Path, nodes: int, stack: ExitStack) -> None:
        self.env, port = environment(folder / "home"), free_port()
        self._address, self._folder, self._count, self._stack = f"127.0.0.1:{port}", folder, nodes, stack
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "home").mkdir(parents=True)
        told = f'[superlink.loop]\naddress = "{self._address}"\ninsecure = true\n'
        (folder / "home/config.toml").write_text(told)
        link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        self._start([*link, "--disable-runtime-dependency-installation"], "superlink")
        _wait_for(f"http://{self._address}/health")
        for part in range(nodes):
            self.start_node(part)

    def start_node(self, part: int) -> None:
        where = f"partition-id={part} num-partitions={self._count}"
        self._nodes[part] = self._start(
            ["flower-supernode", "--insecure", "--superlink", self._address, "--port", str(free_port()),
             "--node-config", where], f"node{part}",
        )  # fmt: skip

    def kill_node(self, part: int) -> None:
        os.killpg(self._nodes[part].pid, signal.SIGKILL)

    def _start(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        whole = [str(BIN / command[0]), *command[1:]]
        return self._stack.enter_context(started(whole, self._folder / f"{name}.log", self.env))

    def run(self, app: Path, done: Path, seconds: float) -> None:
        """Run an app until a file is there."""
        self.begin(app)
        self.wait_for(done, seconds)

    def begin(self, app: Path) -> None:
        subprocess.run([BIN / "flwr", "run", str(app), "loop"], check=True, env=self.env)

    def wait_for(self, done: Path, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not done.exists():
            if time.monotonic() > end:
                logs = [path.read_text()[-3000:] for path in sorted(self._folder.glob("*.log"))]
                raise TimeoutError("\n".join([f"{done} did not come", *logs]))
            time.sleep(0.5)


@contextmanager
def federation(folder: Path, nodes: int) -> Iterator[Federation]:
    """A SuperLink and nodes, which end with the block."""
    with ExitStack() as stack:
        yield Federation(folder, nodes, stack)


def _wait_for(url: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"{url} did not answer within {seconds:g} s")


def deployed(folder: Path, nodes: int, settings: Sequence[str], seconds: float = 540.0) -> Path:
    """Deploy a config over nodes, wait for the end of its run, and return its folder."""
    own = ["--nodes", str(nodes), "--app", str(folder / "app"), "--output.dir", str(folder / "runs")]
    run = folder / "runs/run"
    with federation(folder, nodes) as there:
        subprocess.run([sys.executable, "-m", "flsel", "deploy", *own, *settings], check=True, env=there.env)
        there.run(folder / "app", run / "summary.json", seconds)
    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        began = time.monotonic()
        found = deployed(Path(temporary), 3, SETTINGS)
        print((found / "metrics.csv").read_text())
        print(f"two rounds over three Flower nodes took {time.monotonic() - began:.0f} s")
