"""Runs on a device that is not the CPU: a stand-in. Torch keeps it for good, so they have a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

FILES = sorted((Path(__file__).parent / "standin").glob("on_*.py"))


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch lets no device be written in Python",
)
def test_runs_on_the_standin_are_right() -> None:
    assert [file.stem for file in FILES] == ["on_refusals", "on_runs", "on_selectors"]
    # Worker processes of pytest-xdist would import torch once more.
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["FLSEL_STANDIN"] = "1"
    command = [sys.executable, "-m", "pytest", *options, *map(str, FILES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
