"""``flsel train``: play one federated run, or go on with one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from flsel.errors import UserError
from flsel.parser import parse, parse_file, run_parser
from flsel.run import resume, run


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    set_up_logging()
    if "--resume" in arguments or any(a.startswith("--resume=") for a in arguments):
        folder = _resumed_folder(arguments)
        resume(parse_file(folder / "config.yaml"), folder)
    else:
        run(parse(run_parser("train"), with_comments(arguments)))
    return 0


def with_comments(arguments: Sequence[str]) -> list[str]:
    """Make ``--print_config`` print the keys' comments too."""
    return ["--print_config=comments" if a == "--print_config" else a for a in arguments]


def set_up_logging() -> None:
    """Show flsel's messages on standard error, one line each, and Lightning's only if they warn."""
    logger = logging.getLogger("flsel")
    if not logger.handlers:
        logger.addHandler(RichHandler(console=Console(stderr=True), show_time=False, show_path=False))
    logger.setLevel(logging.INFO)
    for name in ("lightning", "lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _resumed_folder(arguments: Sequence[str]) -> Path:
    folder = arguments[1] if len(arguments) == 2 and arguments[0] == "--resume" else None
    if len(arguments) == 1:
        folder = arguments[0].removeprefix("--resume=")
    if folder is None or folder == "--resume":
        raise UserError(
            "--resume takes the folder of a run and no other settings: flsel train --resume runs/NAME."
        )
    path = Path(folder)
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not the folder of a run: it holds no config.yaml.")
    return path
