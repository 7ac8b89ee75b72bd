"""The settings that stand in a run's folder, and the folder's name that they make."""

from __future__ import annotations

from pathlib import Path

from flsel.config import RunConfig
from flsel.config.parser import parse_file
from flsel.files import check_folder


def read_config(folder: Path) -> RunConfig:
    """Read the settings of the run in a folder.

    Raises:
        UserError: If it is not the folder of a run.
    """
    check_folder(folder, "run", "config.yaml")
    return parse_file(folder / "config.yaml")


def run_name(config: RunConfig) -> str:
    """Return the name of a run's folder: as set, or made of its dataset, selector and seed."""
    dataset = config.data.name.rpartition(".")[2].lower()
    made = f"{dataset}-{type(config.selector).__name__.lower()}-s{config.seed}"
    return config.output.name or made
