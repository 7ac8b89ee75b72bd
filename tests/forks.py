"""Interpreters that have imported torch and nothing else that is large, at the price of a fork each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

SERVER = """
import json, os, sys, tempfile, traceback
import torch

for line in sys.stdin:
    code, folder = json.loads(line)
    said = [tempfile.TemporaryFile("w+") for _ in range(2)]
    if not (pid := os.fork()):
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(said, 1):
            os.dup2(file.fileno(), number)
        status = 0
        try:
            exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})
        except SystemExit as stop:
            status = stop.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for file in said:
        file.seek(0)
    print(json.dumps([status, *(file.read() for file in said)]), flush=True)
    for file in said:
        file.close()
"""


class Forks:
    """Run pieces of code in a process each, forked from one that has imported torch."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run code in a folder, and return its exit code and what it wrote."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([code, str(folder)]), file=self._server.stdin, flush=True)
        return subprocess.CompletedProcess("", *json.loads(self._server.stdout.readline()))

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.communicate()
