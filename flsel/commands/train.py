"""``flsel train``: execute or resume one federated run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flsel.commands.argv import Word, parse, words
from flsel.commands.set_up_logging import set_up_logging
from flsel.errors import UserError
from flsel.execution.on_ray.workers import Workers, workers
from flsel.execution.run import execute, finished, show
from flsel.files import home
from flsel.runner.build import build
from flsel.runner.saved_settings import read_config
from flsel.runner.session import Session


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given = words(arguments)
    address = dict(given).get("address")
    given = [(key, value) for key, value in given if key != "address"]
    with workers(address) as processes:
        return _train(given, processes)


def _train(given: Sequence[Word], processes: Workers) -> int:
    if any(key == "resume" for key, _ in given):
        folder, rounds = _resumed(given)
        if (done := finished(folder, rounds)) is not None:
            set_up_logging(quiet=bool(done.settings.get("quiet")))
            show(done)
            return 0
        config = read_config(folder, rounds)
        set_up_logging(quiet=config.quiet)
        execute(Session(config, folder, build(config, workers=processes)))
    elif any(key == "seeds" for key, _ in given):
        raise UserError(
            "flsel train executes one run under one --seed; several seeds are run and compared by: "
            "flsel compare --seeds ..."
        )
    else:
        config = parse(given)
        set_up_logging(quiet=config.quiet)
        execute(Session.start(config, build(config, workers=processes)))
    return 0


def _resumed(given: Sequence[Word]) -> tuple[Path, int | None]:
    """Return the folder of the run to resume, and the number of rounds that it shall have."""
    asked = dict(given)
    name, rounds = asked["resume"], asked.get("rounds")
    if name is None or len(given) > 1 + ("rounds" in asked):
        raise UserError(
            "--resume takes the folder of a run and no other settings but --rounds: flsel train --resume RUN."
        )
    if "rounds" not in asked:
        return home(name), None
    try:
        return home(name), int(rounds or "")
    except ValueError:
        raise UserError(f"rounds must be a whole number, got {str(rounds)[:30]!r}.") from None
