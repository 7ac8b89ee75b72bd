"""The trackers that settings name, opened as Lightning loggers."""

from __future__ import annotations

import inspect
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.arguments.class_paths import callable_at, check_made
from flsel.config.groups import TrackConfig
from flsel.errors import UserError, users_code
from flsel.files import refuse_link, run_id
from flsel.runner.provenance import git_commit
from flsel.runner.trackers.mlflow_run import open_run
from flsel.runner.trackers.values import hyper_parameters
from flsel.runner.trackers.wandb_run import one_line, start_run

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger

_LOG = logging.getLogger("flsel")
_SECRET = re.compile(r"api[\W_]*key", re.IGNORECASE)
_TAG_LENGTH = 64
# Where the runs of a comparison and of a sweep are, below its folder.
_PARTS = {"comparison": ("runs/*/*/*/",), "sweep": ("trials/*/*/",)}


def make_loggers(
    config: TrackConfig,
    *,
    run_dir: Path,
    name: str,
    resolved_config: Mapping[str, Any],
    tags: Sequence[str],
    job_type: str = "train",
) -> list[Logger]:
    """Open the trackers of a run.

    Args:
        config: Which trackers, and their settings.
        run_dir: Folder of the run; what trackers store locally goes below it.
        name: Name of the run.
        resolved_config: Every setting of the run, nested; stored with it.
        tags: Tags of the run (selector, dataset) before those of ``config``.
        job_type: W&B's name for the kind of run: ``train``, ``trial``, ``sweep``.

    Returns:
        Lightning loggers for ``Fabric(loggers=...)`` and :class:`flsel.runner.trackers.tracker.Tracker`; none
        for ``tracker: none``, or if W&B or MLflow cannot start, which is said in one line.

    Raises:
        UserError: If the tracker's package is missing, or a setting looks like a secret.
    """
    refuse_secrets(resolved_config)
    for kind in {"wandb", "tensorboard"} & {*config.trackers}:
        refuse_link(run_dir / kind)
    settings = hyper_parameters(resolved_config, git_commit=git_commit())
    start = {
        "project": config.project,
        "entity": config.entity,
        "group": config.group or _dataset_name(resolved_config),
        "job_type": job_type,
        "tags": list(dict.fromkeys(tag[:_TAG_LENGTH] for tag in (*tags, *config.tags) if tag)),
        "name": name,
        "resume": "allow",
        "config": settings,
        "dir": str(run_dir),
    }
    loggers: list[Logger] = []
    for tracker in config.trackers:
        if tracker == "wandb":
            loggers += _wandb(config.mode, {**start, "id": run_id(run_dir)})
        elif tracker == "mlflow":
            loggers += _mlflow(config.project, {**start, "id": run_id(run_dir)})
        else:
            loggers.append(_tensorboard(run_dir) if tracker == "tensorboard" else _own(tracker, run_dir))
    return loggers


def refuse_secrets(config: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse a setting whose name looks like an API key, since settings are stored with the run.

    Args:
        config: Settings, nested.
        prefix: Dotted key of ``config`` itself, with a trailing dot.

    Raises:
        UserError: If there is one; the message names its key and not its value.
    """
    for key, value in config.items():
        if _SECRET.search(str(key)):
            raise UserError(
                f"config key `{prefix}{key}` looks like a secret and would be stored with the run; remove it "
                "and use `wandb login` or the environment variable WANDB_API_KEY."
            )
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Mapping):
                refuse_secrets(part, f"{prefix}{key}.")


def _tensorboard(run_dir: Path) -> Logger:
    _require("tensorboard")
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger(root_dir=run_dir, name="tensorboard", version="")


def _own(path: str, run_dir: Path) -> Logger:
    """Make a Lightning logger by import path; it gets the run's folder as save_dir, if it asks for one."""
    from lightning.fabric.loggers.logger import Logger

    made = callable_at("track.tracker", path, Logger)
    with users_code(f"track.tracker {path} cannot be built", reads=True):
        asked = inspect.signature(made).parameters
        folder = next((name for name in ("save_dir", "root_dir") if name in asked), None)
        logger: Logger = made(**({folder: str(run_dir)} if folder else {}))
    check_made("track.tracker", path, logger, Logger)
    return logger


def _wandb(mode: str, start: dict[str, Any]) -> list[Logger]:
    _require("wandb")
    from lightning.pytorch.loggers import WandbLogger

    run = start_run(mode, start)
    if run is not None and run.settings.mode == "offline":
        folder = shlex.quote(str(start["dir"]))
        kept = [f"{folder}/{part}wandb/offline-run-*" for part in (*_PARTS.get(start["job_type"], ()), "")]
        _LOG.info("W&B keeps runs offline; send them with: wandb sync %s", " ".join(kept))
    return [] if run is None else [WandbLogger(save_dir=start["dir"], experiment=run)]


def _mlflow(project: str, start: Mapping[str, Any]) -> list[Logger]:
    _require("mlflow")
    tags = {key: start[key] for key in ("group", "job_type")} | {"tags": ", ".join(start["tags"])}
    try:
        return [open_run(start["id"], project, start["name"], tags)]
    except Exception as error:  # a store that does not answer, or is of another version
        _LOG.warning("MLflow failed, the run goes on without it: %s", one_line(error))
        return []


def _dataset_name(config: Mapping[str, Any]) -> str | None:
    data = config.get("data")
    return str(data["name"]) if isinstance(data, Mapping) and "name" in data else None


def _require(package: str) -> None:
    try:
        import_module(package)
    except ImportError as error:
        raise UserError(
            f"`track.tracker: {package}` needs a package that cannot be imported ({error}): "
            f'pip install "flsel[{package}]", '
            "or set `track.tracker: none`."
        ) from error
