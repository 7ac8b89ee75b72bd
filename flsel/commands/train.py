"""``flsel train``: play one federated run, or go on with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flsel.commands.console import set_up_logging
from flsel.config.layers import Word, words
from flsel.config.parser import parse
from flsel.errors import UserError
from flsel.runner.play import play
from flsel.runner.session import Session, read_config


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given = words(arguments)
    if any(key == "resume" for key, _ in given):
        folder = _resumed_folder(given)
        set_up_logging(quiet=read_config(folder).quiet)
        play(Session.resume(folder))
    else:
        config = parse(given)
        set_up_logging(quiet=config.quiet)
        play(Session.start(config))
    return 0


def _resumed_folder(given: Sequence[Word]) -> Path:
    name = dict(given)["resume"]
    if name is None or len(given) > 1:
        raise UserError("--resume takes the folder of a run and no other settings: flsel train --resume RUN.")
    return Path(name).expanduser()
