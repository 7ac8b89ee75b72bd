"""Format messages on standard error while a command runs."""

from __future__ import annotations

import logging
import sys

from flsel.files.escaping import terminal_text
from flsel.runner.terminal import Outlet


class _Console(logging.Handler):
    # The stream is looked up for every message: a progress bar replaces it to print above itself.
    def emit(self, record: logging.LogRecord) -> None:
        kind = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        outlet = Outlet(sys.stderr)
        outlet.write(f"flsel: {kind}{terminal_text(record.getMessage())}\n")
        outlet.flush()


def set_up_logging(*, quiet: bool = False) -> None:
    """Show flsel's messages on standard error, one line each, and Lightning's only if they warn.

    Lightning's callbacks are shown, too: the user has named them.

    Args:
        quiet: Show warnings only.
    """
    logger = logging.getLogger("flsel")
    if not any(isinstance(handler, _Console) for handler in logger.handlers):
        logger.addHandler(_Console())
    for name in ("flsel", "lightning.pytorch.callbacks"):
        logging.getLogger(name).setLevel(logging.WARNING if quiet else logging.INFO)
    for name in ("lightning", "lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
