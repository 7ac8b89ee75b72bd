"""Start Ray on this machine or connect to a cluster, quietly and without talking to anybody unasked."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from flsel.errors import UserError, short
from flsel_tune.config import SweepConfig
from flsel_tune.guard import die, tell
from flsel_tune.reaper import Reaper

_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    # What Ray's C++ writes to the screen where a daemon dies; the sweep says itself what became of it.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # A config's relative paths are those of the folder in which the sweep was started.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
_OBJECT_STORE = 200 * 2**20
_ANSWER_SECONDS = 5.0
_TOKEN = Path.home() / ".ray" / "auth_token"


@contextmanager
def cluster(config: SweepConfig, shared_bytes: int) -> Iterator[None]:
    """Have Ray running, with room for one trial at least.

    Args:
        config: Which cluster, and what a trial needs.
        shared_bytes: Size of what trials share.

    Raises:
        UserError: If no cluster answers at the address, or none of its machines has room for a trial.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "ray" not in sys.modules and not config.address:
        # Read once, when Ray is imported: servers that are told of it later would not let this process in. On
        # a cluster whose head does not ask for tokens, processes that do would die.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    own = None if config.address or ray.is_initialized() else tempfile.mkdtemp(prefix="flsel-")
    reaper = None if own is None else Reaper(own)
    try:
        if config.address:
            _connect(config.address)
        elif own is not None and reaper is not None:
            tell("cluster", own)
            with reaper.marking():
                _start(own, shared_bytes + _OBJECT_STORE)
        _hush()
        _keep_token()
        _check_room(config)
        yield
    finally:
        if config.address or own is not None:
            ray.shutdown()
        if reaper is not None:
            reaper.close()


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be connected to a cluster that is there already.

    Args:
        address: ``auto`` or host:port.

    Raises:
        UserError: If no cluster answers.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    import ray

    _connect(address)
    try:
        _hush()
        _keep_token()
        yield
    finally:
        ray.shutdown()


def _hush() -> None:
    """Keep Ray's tracebacks of dead processes from the screen: the sweep says what became of them."""
    for name in ("ray", "ray.tune", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    worker = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):  # no option of ray.init() reaches what Ray's daemon reports
        setattr(worker, "print_to_stdstream", _ignore)  # noqa: B010


def _keep_token() -> None:
    """Let nobody else read the token that Ray's processes know each other by."""
    with suppress(OSError):
        _TOKEN.chmod(0o600)


def _ignore(*given: object, **named: object) -> None:
    pass


def _start(folder: str, object_store: int) -> None:
    import ray

    try:
        ray.init(
            include_dashboard=False,
            logging_level=logging.CRITICAL,
            log_to_driver=False,
            object_store_memory=object_store,
            _temp_dir=folder,
        )
    except Exception as error:  # Ray raises no kind of its own where one of its processes dies at the start
        said = f"Ray could not be started on this machine ({short(error).rstrip('.')})"
        # In another process: threads of what has failed go on in this one, and may end it.
        die(said)
        raise UserError(f"{said}.") from error


def _connect(address: str) -> None:
    import ray

    if ":" in address and "://" not in address:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower().rstrip(".")
            raise UserError(f"address {address} is not a Ray cluster that answers: {reason}.") from error
    try:
        ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False)
    except ray.exceptions.AuthenticationError as error:
        raise UserError(
            f"address {address} is a Ray cluster that asks for a token: copy ~/.ray/auth_token from its "
            "head, and set RAY_AUTH_MODE=token."
        ) from error
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(
            f"address {address} is not a Ray cluster that answers: start one with `ray start --head`, or "
            "leave address out to use this machine."
        ) from error


def _check_room(config: SweepConfig) -> None:
    import ray

    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    needs = {"CPU": config.cpus, "GPU": config.gpus, "memory": (config.memory or 0) * 2**30}
    if any(all(machine.get(name, 0) >= amount for name, amount in needs.items()) for machine in machines):
        return
    found = "; ".join(
        f"{machine.get('CPU', 0):g} CPUs, {machine.get('GPU', 0):g} GPUs, "
        f"{machine.get('memory', 0) / 2**30:.1f} GB"
        for machine in machines
    )
    asked = f"{config.cpus:g} CPUs, {config.gpus:g} GPUs" + (
        f", {config.memory:g} GB" if config.memory else ""
    )
    raise UserError(
        f"cpus, gpus and memory ask for more than any machine has ({asked} for a trial; there is {found}); "
        "lower them."
    )
