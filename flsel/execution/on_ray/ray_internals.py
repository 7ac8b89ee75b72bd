"""Private names of Ray that a sweep uses. A sweep runs without any of them."""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import Any

_LOG = logging.getLogger("flsel")
_WORKER = "ray._private.worker"


def daemon_socket() -> str | None:
    """Return the socket of this machine's Ray daemon; None behind a proxy, or if Ray does not tell."""
    worker = _worker()
    if not hasattr(worker, "_global_node"):
        _warn(f"{_WORKER}._global_node", "trials fail that are running when Ray's daemon dies")
        return None
    node = worker._global_node
    if node is not None and not hasattr(node, "raylet_socket_name"):
        _warn("Node.raylet_socket_name", "trials fail that are running when Ray's daemon dies")
    return getattr(node, "raylet_socket_name", None)


def hush_reports() -> None:
    """Keep from the screen what Ray's daemon reports; no option of ``ray.init`` reaches that."""
    worker = _worker()
    if hasattr(worker, "print_to_stdstream"):
        setattr(worker, "print_to_stdstream", _ignore)  # noqa: B010
    else:
        _warn(f"{_WORKER}.print_to_stdstream", "tracebacks of dead processes appear on the screen")


def _worker() -> Any:
    try:
        return import_module(_WORKER)
    except ImportError:
        return None


@functools.cache
def _warn(name: str, follows: str) -> None:
    """Say once in a process that a name is gone."""
    import ray

    _LOG.warning("ray %s has no %s: %s", ray.__version__, name, follows)


def _ignore(*given: object, **named: object) -> None:
    pass
