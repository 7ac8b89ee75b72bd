"""Provenance of a result besides its settings: versions, commit, hardware."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

_PACKAGES = ("flsel", "torch", "torchvision", "lightning", "torchmetrics", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that a result depends on."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    numbers = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            numbers[name] = metadata.version(name)
    return numbers


def git_commit() -> str | None:
    """Return the commit checked out in the current folder's repository, or None where there is none."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    said = done.stdout.decode("ascii", errors="replace").strip()
    return said if re.fullmatch("[0-9a-f]{40,64}", said) else None


def device_name(device: str) -> str:
    """Return the hardware's name behind a torch device such as ``"cpu"`` or ``"cuda:0"``."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return _cpu_name() if device == "cpu" else device


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
