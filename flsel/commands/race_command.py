"""``flsel choose`` itself: which selector should this federation use?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from flsel.choosing.choice import Choice
from flsel.choosing.choose_config import ChooseConfig
from flsel.choosing.run_race import resume_race, start_race
from flsel.commands.argv import Word, parse
from flsel.commands.command_settings import CommandSettings
from flsel.commands.set_up_logging import set_up_logging
from flsel.errors import UserError
from flsel.execution.choose_executor import executor_for
from flsel.files import home
from flsel.runner.terminal import fitting_table, open_console

USAGE = """flsel choose --config FILE [--margin 1] [--may labels,losses | --may nothing] [--key value ...]
       flsel choose --config FILE --devices Phones --decides simulated_seconds --target 0.75
       flsel choose --config FILE --selectors Uniform,PowD:d=12 --variants FILE
       flsel choose --resume RACE"""
DESCRIPTION = """\
Find the selector for a federation. Every selector that may be used here races, seed by seed, and leaves when
another is better. The race ends when the leader is within the margin of the best with 95 % confidence. A
report has the table, and best.yaml has the settings of the winner for flsel train --config. Every setting of
flsel train is a setting of the runs, on the command line or in a file (--config FILE).
"""
OWN = CommandSettings("choose", ChooseConfig, USAGE, DESCRIPTION, ("resume",))
_PLACED = ("max_concurrent", "cpus", "gpus", "memory", "address", "retries")


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given = OWN.split(arguments)
    if given is None:
        print(OWN.parser().format_help())
        return 0
    mine, others = given
    wanted = OWN.typed([(key, value) for key, value in mine if key != "resume"])
    executor = executor_for(wanted.resources)
    resumed = next((value or "" for key, value in mine if key == "resume"), None)
    quiet = False
    if resumed is None:
        config = parse(others)
        quiet = config.quiet
        set_up_logging(quiet=True)
        command = shlex.join(["flsel", "choose", *arguments])
        choice = Choice(*start_race(config, wanted, command, executor))
    else:
        _refuse(resumed, mine, others)
        set_up_logging(quiet=True)
        choice = Choice(*resume_race(home(resumed), executor))
    page, *_, best = choice.write()
    if not quiet:
        _say(choice)
        out = open_console()
        for path in (page, best):
            out.print(str(path), markup=False, highlight=False, soft_wrap=True)
    return 0


def _refuse(resumed: str, mine: Sequence[Word], others: Sequence[Word]) -> None:
    """Refuse what a race that is resumed has already.

    Raises:
        UserError: If something is given besides where its runs are executed.
    """
    if not resumed:
        raise UserError("--resume takes the folder of a race: flsel choose --resume RACE.")
    for key, _ in (*mine, *others):
        if key not in ("resume", *_PLACED):
            raise UserError(
                f"{key} stays as it is when a race is resumed; leave it out, or start a new race."
            )


def _say(choice: Choice) -> None:
    """Print who was left out, the table, the choice and what limits it."""
    out = open_console()
    head, body = choice.table()
    out.print(fitting_table(head, body, out.width, "Who left first stands last"), markup=False)
    for name, reason in choice.declared.left_out.items():
        out.print(f"  left out: {name} {reason}", markup=False, highlight=False, style="dim")
    out.print(choice.headline, markup=False, highlight=False, style="bold")
    for note in choice.notes:
        out.print(f"  {note}", markup=False, highlight=False, style="dim")
