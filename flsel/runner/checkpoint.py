"""Checkpoints: written whole or not at all, bound to their config, loaded without running code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from flsel.errors import UserError
from flsel.files import naming, sync_folder

VERSION = 1


def save_checkpoint(fabric: Fabric, path: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Save a run's state under a temporary name, then rename.

    Args:
        fabric: Writes the file.
        path: The checkpoint; its folder exists.
        state: Tensors and plain values.
        fingerprint: Hash of the config that the state belongs to.

    Raises:
        UserError: If the file cannot be written; the previous checkpoint is then untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path):
            fabric.save(temporary, {"version": VERSION, "fingerprint": fingerprint, **state})
            with open(temporary, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def load_checkpoint(fabric: Fabric, path: Path, fingerprint: str) -> dict[str, Any]:
    """Load a run's state.

    Raises:
        UserError: If the file is not a complete checkpoint, or belongs to another config.
    """
    try:
        state = fabric.load(path, weights_only=True)
        version = state["version"]
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        raise UserError(
            f"checkpoint {path} is damaged or not a checkpoint of flsel; remove it to start the run again."
        ) from error
    if version != VERSION:
        raise UserError(f"checkpoint {path} has format {version}, this flsel reads format {VERSION}.")
    if state["fingerprint"] != fingerprint:
        raise UserError(
            f"checkpoint {path} belongs to another config than {path.parents[1] / 'config.yaml'}; restore "
            "that file, or start a new run with --config."
        )
    return state
