"""``flsel train``: play one federated run, or go on with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flsel.commands.console import set_up_logging
from flsel.config.parser import Word, parse, parse_file, run_parser, words
from flsel.errors import UserError
from flsel.runner.play import resume, run


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given = words(arguments)
    if any(key == "resume" for key, _ in given):
        folder = _resumed_folder(given)
        config = parse_file(folder / "config.yaml")
        set_up_logging(quiet=config.quiet)
        resume(config, folder)
    else:
        config = parse(run_parser("train"), given)
        set_up_logging(quiet=config.quiet)
        run(config)
    return 0


def _resumed_folder(given: Sequence[Word]) -> Path:
    name = dict(given)["resume"]
    if name is None or len(given) > 1:
        raise UserError("--resume takes the folder of a run and no other settings: flsel train --resume RUN.")
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder} to resume; a run's folder is below runs/ or output.dir."
        )
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not the folder of a run: it holds no config.yaml.")
    return folder
