"""The settings that stand in a run's folder, and the names of folders that settings make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flsel.config import RunConfig
from flsel.files import check_folder


def read_config(folder: Path, rounds: int | None = None) -> RunConfig:
    """Read the settings of the run in a folder.

    Args:
        folder: The run's folder.
        rounds: Communication rounds that the run shall have; None keeps the number.

    Raises:
        UserError: If it is not the folder of a run.
    """
    check_folder(folder, "run", "config.yaml")
    config = RunConfig.from_file(folder / "config.yaml")
    return config if rounds is None else replace(config, rounds=rounds)


def run_name(config: RunConfig) -> str:
    """Return the name of a run's folder: as set, or made of its dataset, selector and seed."""
    return config.output.name or f"{dataset_and_selector(config)}-s{config.seed}"


def dataset_and_selector(config: RunConfig) -> str:
    """Return what names of folders are made of: ``synthetic-powd``."""
    return f"{short_name(config.data.name)}-{type(config.selector).__name__.lower()}"


def short_name(path: str) -> str:
    """Return the last part of an import path, or a name, in lower case."""
    return path.rpartition(".")[2].lower()
