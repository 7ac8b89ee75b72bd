"""Starts a Weights & Biases run without ever blocking: online, else offline, else not at all."""

from __future__ import annotations

import logging
import netrc
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flsel.runner.trackers.values import STEPS

_LOG = logging.getLogger("flsel")
_SERVICE_SECONDS = 60
_INIT_SECONDS = 20
_LOGIN_SECONDS = 5
_FINISH_SECONDS = 60


def start_run(mode: str, start: Mapping[str, Any]) -> Any:
    """Start a run whose x axis is the logged value ``round``.

    Args:
        mode: ``auto``, ``online``, ``offline`` or ``disabled``.
        start: Arguments of ``wandb.init`` but for the mode.

    Returns:
        The ``wandb.Run``; one that cannot go online is offline; None if that fails as well. Both are said in
        one line.
    """
    # Defaults only: the user's own choice wins.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_FINISH_TIMEOUT", str(_FINISH_SECONDS))
    # A variable that is set to nothing is one that is not set, which wandb takes for a wrong value.
    for name in [name for name, value in os.environ.items() if name.startswith("WANDB_") and not value]:
        del os.environ[name]
    try:
        if mode != "disabled":
            _start_service()
        if mode == "online" and not has_key():
            # wandb would ask for one on a terminal and wait.
            _LOG.warning("W&B finds no API key (`wandb login`), so the run is tracked offline.")
            mode = "offline"
        mode = resolved() if mode == "auto" else mode
    except Exception as error:  # another variable of wandb's is wrong, a key that ends in a newline for one
        return _without(error)
    run = _init(mode, start)
    if run is not None:
        run.define_metric("round")
        run.define_metric("*", step_metric="round")
        # The summary keeps the last value of everything: a maximum of test accuracies is chosen by them.
        for metric in STEPS:
            run.define_metric(metric, step_metric="round")
    return run


def _start_service() -> None:
    """Start wandb's process, in a thread: where that fails wandb waits for a lock that it holds itself.

    Raises:
        TimeoutError: If it does not run in time.
    """
    import wandb

    failed: list[Exception] = []

    def start() -> None:
        try:
            wandb.setup()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(_SERVICE_SECONDS)
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise TimeoutError(f"its process did not start within {_SERVICE_SECONDS} s")


def _init(mode: str, start: Mapping[str, Any]) -> Any:
    import wandb

    # create_new: the default would hand out another run that is open in this process.
    settings = wandb.Settings(
        init_timeout=_INIT_SECONDS,
        login_timeout=_LOGIN_SECONDS,
        x_disable_stats=True,
        console="off",
        silent=True,
        reinit="create_new",
    )
    try:
        return wandb.init(settings=settings, **{**start, "mode": mode})
    except Exception as error:
        if mode == "online":
            _LOG.warning("W&B cannot go online, so the run is tracked offline: %s", one_line(error))
            # Without it the failed attempt keeps the run's id.
            wandb.teardown()
            return _init("offline", start)
        return _without(error)


def _without(error: Exception) -> None:
    _LOG.warning("W&B failed, the run goes on without it: %s", one_line(error))


def one_line(error: Exception) -> str:
    """Return an error's type and message on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def resolved() -> str:
    """Return the mode that ``auto`` stands for: the environment's, else online where there is a key."""
    return os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")


def has_key() -> bool:
    """Tell whether an API key is found where wandb looks for one; nothing is sent."""
    import wandb

    settings = wandb.setup().settings
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or settings.api_key:
        return True
    own = urlsplit(os.environ.get("WANDB_BASE_URL") or settings.base_url).netloc
    return any(host == own or (_is_public(host) and _is_public(own)) for host in _netrc_hosts())


def _is_public(host: str) -> bool:
    # W&B's public service answers under two names, and accepts the key stored for either.
    return host in ("api.wandb.ai", "api.forge.coreweave.com")


def _netrc_hosts() -> list[str]:
    home = Path.home()
    for path in (os.environ.get("NETRC"), home / ".netrc", home / "_netrc"):
        try:
            if path:
                return list(netrc.netrc(str(path)).hosts)
        except (OSError, netrc.NetrcParseError):
            continue
    return []
