"""Private names of Ray that a sweep uses. A sweep runs without any of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flsel.errors import say_once

_WORKER = "ray._private.worker"


def hush_reports() -> None:
    """Keep from the screen what Ray's daemon reports; no option of ``ray.init`` reaches that."""
    try:
        worker: Any = import_module(_WORKER)
    except ImportError:
        worker = None
    if hasattr(worker, "print_to_stdstream"):
        setattr(worker, "print_to_stdstream", _ignore)  # noqa: B010
    else:
        import ray

        say_once(
            f"ray {ray.__version__} has no {_WORKER}.print_to_stdstream: tracebacks of dead processes appear "
            "on the screen"
        )


def _ignore(*given: object, **named: object) -> None:
    pass
