"""The settings of a run: their schema, and how they are read, explained and written."""

from flsel.config.run_config import RunConfig

__all__ = ["RunConfig"]
