"""Errors that a user can mend, their words, and the one place that runs and blames users' own code."""

from flsel.errors.blame import blamed, imported, relayed, users_code, written_by
from flsel.errors.messages import (
    DivergedError,
    Interrupted,
    RelayedError,
    UndeclaredNeedError,
    UserError,
    bounded,
    closest,
    going_on,
    keep_whole,
    located,
    machine_failed,
    meant,
    raised_at,
    sentence,
    short,
)

__all__ = [
    "DivergedError",
    "Interrupted",
    "RelayedError",
    "UndeclaredNeedError",
    "UserError",
    "blamed",
    "bounded",
    "closest",
    "going_on",
    "imported",
    "keep_whole",
    "located",
    "machine_failed",
    "meant",
    "raised_at",
    "relayed",
    "sentence",
    "short",
    "users_code",
    "written_by",
]
