"""Check and repair the journal of a sweep's study before the sweep is resumed."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from flsel.errors import UserError, users_code
from flsel.files import naming, open_own
from flsel_tune.study import JOURNAL

_LOG = logging.getLogger("flsel")


def repair_journal(folder: Path) -> None:
    """Check the journal of a sweep to resume, and remove a last line that a full disk or a power loss cut.

    No other process writes to it: the sweep's lock is held.

    Args:
        folder: Folder of the sweep.

    Raises:
        UserError: If it is damaged, or missing though trials have begun.
    """
    path = folder / JOURNAL
    path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # Optuna's own, of a process that was killed
    begun = any((folder / "trials").glob("*"))
    if not path.exists() and not begun:
        return
    if not path.exists():
        raise UserError(
            f"{path} is missing, and with it what the trials were: restore it, or start a new sweep."
        )
    with naming(path):
        os.close(open_own(path, os.O_WRONLY))  # Optuna appends to it
    damaged = f"{path} is damaged: restore it, or start a new sweep"
    with users_code(damaged, reads=True), TemporaryDirectory() as scratch:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        # A copy is read, so that what is no journal is left as it is.
        copy = Path(scratch) / JOURNAL
        copy.write_bytes(whole)
        known = optuna.get_all_study_names(JournalStorage(JournalFileBackend(str(copy))))
    if len(known) > 1 or (begun and not known):
        raise UserError(
            f"{path} holds {len(known)} studies instead of one: restore it, or start a new sweep."
        )
    if len(whole) < len(data) and _is_no_line(data[len(whole) :]):
        raise UserError(f"{damaged}: what follows its last line is no part of one.")
    if len(whole) < len(data):
        with os.fdopen(open_own(path, os.O_WRONLY), "wb") as stream:
            stream.truncate(len(whole))
        _LOG.warning("%s ended within a line, which is cut; its trial goes on from before that", path)


def _is_no_line(rest: bytes) -> bool:
    """Tell whether bytes are not the beginning of a line of a journal, which a full disk may have cut."""
    text = rest.rstrip(b"\0")  # a power loss may leave these
    return bool(text) and (not text.startswith(b"{") or not text.isascii())
