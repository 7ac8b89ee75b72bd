"""Files of a run: written whole or not at all, and never over another run's."""

from __future__ import annotations

from flsel.files.folders import RUN_ID_FILE, check_folder, check_folder_name, home, new_run_dir, run_id
from flsel.files.writing import (
    check_regular,
    make_folder,
    naming,
    open_new,
    open_own,
    refuse_link,
    sync_files,
    sync_folder,
    write_atomic,
)

__all__ = [
    "RUN_ID_FILE",
    "check_folder",
    "check_folder_name",
    "check_regular",
    "home",
    "make_folder",
    "naming",
    "new_run_dir",
    "open_new",
    "open_own",
    "refuse_link",
    "run_id",
    "sync_files",
    "sync_folder",
    "write_atomic",
]
