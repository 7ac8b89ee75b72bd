"""Start Ray on this machine or connect to a cluster, quietly and without unasked network connections."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flsel.errors import UserError, short
from flsel.execution.executor import Resources
from flsel.execution.on_ray.cluster_cleanup import ClusterCleanup
from flsel.execution.on_ray.ray_internals import hush_reports
from flsel.execution.signals import like_ctrl_c, signals_kept

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
_NICENESS = "RAY_worker_niceness"
# Ray puts sockets below its folder, in 80 letters of its own, and the system takes 107.
_LONGEST_FOLDER = 25


@contextmanager
def cluster(resources: Resources, shared_bytes: int) -> Iterator[None]:
    """Have Ray running, with room for one job at least.

    Args:
        resources: Which cluster, and what a job needs.
        shared_bytes: Size of what jobs share.

    Raises:
        UserError: If no cluster answers at the address, or none of its machines has room for a job.
    """
    with started(resources.address, shared_bytes):
        _check_room(resources)
        with like_ctrl_c():
            yield


@contextmanager
def started(address: str | None, shared_bytes: int, workers: int | None = None) -> Iterator[None]:
    """Have Ray running: that of this process if there is one, at an address, or started on this machine.

    Args:
        address: ``auto`` or host:port; None stands for this machine.
        shared_bytes: Size of what processes on this machine share.
        workers: Processes to have there, as urgent as this one; None takes as many as there are CPUs, and
            lets them give way to others.

    Raises:
        UserError: If no cluster answers at the address, or Ray does not start.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "ray" not in sys.modules and not address:
        # Read once, when Ray is imported: servers that are told of it later would not let this process in. On
        # a cluster whose head does not ask for tokens, processes that do would die.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    _check_names(Path.cwd())
    own = None if address or ray.is_initialized() else _folder()
    cleanup = ClusterCleanup(own or "") if own or address else None
    ours = own is not None
    try:
        with signals_kept():
            if address:
                _connect(address)
                ours = True
            elif own is not None and cleanup is not None:
                with cleanup.marking(), _urgent(workers is not None):
                    _start(own, shared_bytes + _OBJECT_STORE, workers)
        _hush()
        yield
    finally:
        if ours:
            with signals_kept():
                ray.shutdown()
        if cleanup is not None:
            cleanup.close()


@contextmanager
def _urgent(wanted: bool) -> Iterator[None]:
    """Start processes as urgent as this one; Ray's would give way to every other program."""
    if not wanted or _NICENESS in os.environ:
        yield
        return
    os.environ[_NICENESS] = "0"
    try:
        yield
    finally:
        del os.environ[_NICENESS]


def _hush() -> None:
    """Keep Ray's tracebacks of dead processes from the screen: the sweep says what became of them."""
    for name in ("ray", "ray.tune", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    hush_reports()


@contextmanager
def _muted() -> Iterator[None]:
    """Keep from the screen what Ray's C++ says while it starts, of the level of its log for one."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    sys.stderr.flush()
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _check_names(folder: Path) -> None:
    """Refuse files that Ray's processes, which look there first, would take for installed modules."""
    for path in folder.iterdir():
        is_module = path.suffix == ".py" or (path / "__init__.py").exists()
        origin = getattr(sys.modules.get(path.stem), "__file__", None) if is_module else None
        if origin and Path(origin).parent not in (folder, path):
            raise UserError(
                f"{path.name} in the current folder would hide the installed module {path.stem} from Ray's "
                "processes: rename it, or start in another folder."
            )


def _folder() -> str:
    """Make a folder for Ray's logs and sockets, where it can name them."""
    try:
        return tempfile.mkdtemp(prefix="flsel-", dir=_nameable(tempfile.gettempdir()))
    except OSError as error:
        raise UserError(f"Ray needs a folder for temporary files: {error.strerror}; set TMPDIR.") from error


def _nameable(folder: str) -> str:
    """Return the folder, or /tmp where it is too long for Ray's sockets or not in ASCII."""
    fits = folder.isascii() and len(folder) <= _LONGEST_FOLDER
    return folder if fits or not os.access("/tmp", os.W_OK) else "/tmp"


def _start(folder: str, object_store: int, cpus: int | None) -> None:
    import ray

    # Known to its own processes alone. Ray would write one into the home folder, which may be missing. If it
    # has, this process may have read that one already, and would not be let in with another.
    if not os.path.exists(os.path.expanduser(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token")):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        with _muted():
            ray.init(
                address="local",  # not RAY_ADDRESS, nor what `ray start` has left running
                num_cpus=cpus,
                include_dashboard=False,
                logging_level=logging.CRITICAL,
                log_to_driver=False,
                object_store_memory=object_store,
                _temp_dir=folder,
            )
    except Exception as error:  # Ray raises no kind of its own where one of its processes dies at the start
        said = short(error).rstrip(".")
        raise UserError(f"Ray could not be started on this machine ({said}); try it again.") from error


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
        with _muted():
            ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if _asks_for_token(error):
            raise UserError(
                f"address {address} is a Ray cluster that asks for a token: copy ~/.ray/auth_token from its "
                "head, and set RAY_AUTH_MODE=token."
            ) from error
        raise UserError(
            f"address {address} is not a Ray cluster that answers: start one with `ray start --head`, or "
            "leave address out to use this machine."
        ) from error


def _asks_for_token(error: BaseException | None) -> bool:
    """Tell whether a cluster refused a token; Ray hides its own error in the texts of others."""
    while error is not None:
        if type(error).__name__ == "AuthenticationError" or "AuthenticationError" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def room(resources: Resources) -> int:
    """Return how many jobs Ray has room for at a time, at least one, and as many as are allowed at most."""
    needs = {name: amount for name, amount in _needs(resources).items() if amount}
    fits = sum(min(int(machine.get(n, 0) / amount) for n, amount in needs.items()) for machine in _machines())
    return max(1, min(fits, resources.max_concurrent or fits))


def _machines() -> list[dict[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _needs(resources: Resources) -> dict[str, float]:
    return {"CPU": resources.cpus, "GPU": resources.gpus, "memory": (resources.memory or 0) * 2**30}


def _check_room(resources: Resources) -> None:
    machines, needs = _machines(), _needs(resources)
    if any(all(machine.get(name, 0) >= amount for name, amount in needs.items()) for machine in machines):
        return
    offered = "; ".join(
        f"{machine.get('CPU', 0):g} CPUs, {machine.get('GPU', 0):g} GPUs, "
        f"{machine.get('memory', 0) / 2**30:.1f} GB"
        for machine in machines
    )
    asked = f"{resources.cpus:g} CPUs, {resources.gpus:g} GPUs" + (
        f", {resources.memory:g} GB" if resources.memory else ""
    )
    raise UserError(
        f"cpus, gpus and memory ask for more than any machine has ({asked} for a job; there is {offered}); "
        "lower them."
    )
