"""``flsel deploy``: write a Flower app that runs a config over real nodes."""

from __future__ import annotations

from collections.abc import Sequence

from flsel.commands.argv import parse, words
from flsel.commands.set_up_logging import set_up_logging
from flsel.errors import UserError
from flsel.files import home
from flsel.flower.app_files import write_app
from flsel.runner.terminal import print_lines

USAGE = """\
usage: flsel deploy --nodes N [--app FOLDER] [--timeout S] [--wait S] [--own-data] [--config FILE]
                    [--key value ...]

Write a Flower app that runs a config over N nodes. Node i of N trains the clients i, i + N, i + 2 N and so
on. The Flower app needs flsel[flower] on the server and on every node: docs/flower.md.

  --nodes N      number of nodes
  --app FOLDER   new or empty folder of the app (default: flsel-app); --folder is the same
  --timeout S    seconds that a node has for an answer (default: 600)
  --wait S       seconds to wait for the nodes (default: 300)
  --own-data     each node is one client, with the training set that data.name gives on that node;
                 the server's dataset gives the test set and the holdouts

All other options are settings of the run, as in flsel train."""
_OWN = {"app": "flsel-app", "timeout": "600", "wait": "300", "own-data": "false"}


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    set_up_logging()
    given = [("app" if key == "folder" else key, value) for key, value in words(arguments)]
    own = _OWN | {key: value or "" for key, value in given if key in (*_OWN, "nodes")}
    config = parse([(key, value) for key, value in given if key not in (*_OWN, "nodes")])
    folder = home(own["app"])
    write_app(
        config,
        folder,
        nodes=int(_number("nodes", own.get("nodes", ""), 1, whole=True)),
        timeout=_number("timeout", own["timeout"], 1),
        wait=_number("wait", own["wait"], 0),
        own_data=_flag("own-data", own["own-data"]),
    )
    print_lines(f"wrote {folder}", f"start it with: flwr run {folder} CONNECTION")
    return 0


def _number(name: str, text: str, least: float, *, whole: bool = False) -> float:
    """Return an option as a number.

    Raises:
        UserError: If it is none, or too small.
    """
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = -1
    if not least <= value <= 10**7:
        kind = "a whole number" if whole else "a number of seconds"
        raise UserError(f"{name} must be {kind} in [{least}, 1e7], got {text[:30] or 'nothing'}.")
    return value


def _flag(name: str, text: str) -> bool:
    """Return an option as a truth value.

    Raises:
        UserError: If it is none.
    """
    if text not in ("true", "false", ""):
        raise UserError(f"{name} must be true or false, got {text[:30]}.")
    return text != "false"  # The option alone means true.
