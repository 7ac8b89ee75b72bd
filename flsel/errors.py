"""Errors that a user can mend: one sentence each, shown without a traceback (exit code 2)."""

from __future__ import annotations


class UserError(ValueError):
    """Something the user gave is wrong; the message says what, where, and what would be right."""


class DivergedError(UserError):
    """Every client of a round returned a non-finite model, so the round has nothing to aggregate."""


class UndeclaredNeedError(UserError):
    """A selector asked for information that its ``needs`` do not declare."""


class Interrupted(Exception):
    """A signal stopped the run between rounds; its state is saved and the message says how to go on."""
