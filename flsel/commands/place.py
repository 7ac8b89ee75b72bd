"""``flsel place``: how does a new selector do against others, over partitions and availability?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from flsel.commands.command_settings import CommandSettings
from flsel.commands.set_up_logging import set_up_logging
from flsel.errors import UserError
from flsel.execution.choose_executor import executor_for
from flsel.placing.place_config import PlaceConfig
from flsel.placing.placement_report import all_table, notes, sentence, write_placement
from flsel.placing.run_placement import run_placement
from flsel.runner.terminal import fitting_table, open_console

USAGE = """flsel place my_selector.EpsilonGreedy [MORE ...] [--atlas synthetic] [--seeds 5]
       flsel place --variants FILE [--atlas fashion]"""
DESCRIPTION = """\
Place selectors on an atlas. Only they run, in the atlas's scenarios, and are paired seed by seed with the
committed results of other selectors. The report has rank, differences, costs and a heat map. The .csv and the
.json file in the folder can be contributed to flsel under atlas/contributed/.
"""
OWN = CommandSettings("place", PlaceConfig, USAGE, DESCRIPTION, ("quiet",))


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    left, selectors = list(arguments), list[str]()
    while left and not left[0].startswith("-"):
        selectors.append(left.pop(0))
    given = OWN.split(left)
    if given is None:
        print(OWN.parser().format_help())
        return 0
    mine, others = given
    if others:
        raise UserError(
            f"{others[0][0]} is a setting of runs, and an atlas has its own; give settings of a variant in a "
            "file (--variants)."
        )
    quiet = any(key == "quiet" for key, _ in mine)
    wanted = OWN.typed([(key, value) for key, value in mine if key != "quiet"])
    set_up_logging(quiet=True)
    command = shlex.join(["flsel", "place", *arguments])
    placed = run_placement(selectors, wanted, command, executor_for(wanted.resources), quiet=quiet)
    paths = write_placement(placed)
    if not quiet:
        out = open_console()
        head, body = all_table(placed)
        out.print(fitting_table(head, body, out.width), markup=False)
        for name in placed.placed:
            out.print(sentence(placed, name), markup=False, highlight=False, style="bold")
        for note in notes(placed):
            out.print(f"  {note}", markup=False, highlight=False, style="dim")
        for path in paths:
            out.print(str(path), markup=False, highlight=False, soft_wrap=True)
    return 0
