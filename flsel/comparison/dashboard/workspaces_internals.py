"""Private names of wandb-workspaces that a dashboard uses, and what happens if they are missing."""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from importlib.metadata import version
from typing import Any

import wandb_workspaces.reports.v2 as wr

from flsel.errors import UserError

_LOG = logging.getLogger("flsel")
_INTERNAL = "wandb_workspaces.reports.v2.internal"


class Setting(wr.ParallelCoordinatesPlotColumn):  # type: ignore[misc]
    """A setting by its whole dotted key: runs store them flat, and the library's own column nests them."""

    def _to_model(self) -> Any:
        column = _column()
        if column is None:
            return super()._to_model()
        return column(accessor=f"config:{self.metric.name}.value", display_name=self.display_name)


def setting(key: str) -> Any:
    """Return the column of a setting in parallel coordinates."""
    nests = _column() is None or not hasattr(wr.ParallelCoordinatesPlotColumn, "_to_model")
    if nests and "." in key:
        _warn()
    return Setting(metric=wr.Config(key), display_name=key)


def definition(made: Any) -> str:
    """Return a report or a workspace as JSON, in W&B's own format.

    Raises:
        UserError: If the library does not give it.
    """
    if not hasattr(made, "_to_model"):
        raise UserError(
            f"wandb-workspaces {version('wandb-workspaces')} does not tell a dashboard's definition "
            f"({type(made).__name__}._to_model is gone): install wandb-workspaces 0.4.13, or log in with "
            "`wandb login` and leave --folder out, which saves the dashboard in W&B."
        )
    return str(made._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)) + "\n"


def _column() -> Any:
    try:
        return getattr(import_module(_INTERNAL), "Column", None)
    except ImportError:
        return None


@functools.cache
def _warn() -> None:
    """Say once in a process what is not shown."""
    _LOG.warning(
        "wandb-workspaces %s has no %s.Column: parallel coordinates lack settings whose key has a dot",
        version("wandb-workspaces"),
        _INTERNAL,
    )
