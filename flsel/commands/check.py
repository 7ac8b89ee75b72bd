"""``flsel check``: check a selector against the contract, and list the checks."""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from flsel.commands.argv import parse, words
from flsel.errors import UserError, users_code, written_by
from flsel.selector import Selector
from flsel.testing import CHECKS

USAGE = """\
usage: flsel check SELECTOR [--argument value ...]

Check a selector against the contract, on a tiny federation whose clients answer by formulas. No model is
trained. SELECTOR is a name or an import path, such as my_selector.EpsilonGreedy. Give its arguments as in
flsel train, --selector.epsilon 0.1, or as --epsilon 0.1. The exit code is 0 if the selector keeps the
contract, 1 if it breaks a rule, and 2 if there is no such selector."""

_PLACE = re.compile(r"\(.+, line \d+\)")
# The method that a broken rule is about, by a word of its sentence; select where there is none.
_METHODS = {"constructor": "__init__", "diagnostics": "diagnostics", "weigh": "weigh", "observe": "observe"}


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    if not __debug__:
        raise UserError("the checks are assertions, which python -O and PYTHONOPTIMIZE leave out: unset it.")
    name, *rest = arguments
    if name.startswith("-"):
        raise UserError("flsel check takes the selector first: flsel check SELECTOR [--argument value ...].")
    given = [(f"selector.{key.removeprefix('selector.')}", value) for key, value in words(rest)]
    made = parse([("selector", name), *given]).selector
    # With defaults the class itself, whose arguments are then checked too.
    broken = _run_checks((lambda: copy.deepcopy(made)) if given else type(made), type(made))
    how = f"breaks {broken} of" if broken else "keeps"
    print(f"{type(made).__name__} {how} the {len(CHECKS)} rules of the contract.")
    return 1 if broken else 0


def _run_checks(factory: Callable[[], Selector], made: type[Selector]) -> int:
    """Run every check, say how it went, and return how many rules were broken."""
    broken = 0
    for check in CHECKS:
        rule = (inspect.getdoc(check) or check.__name__).partition("\n")[0]
        why = _why_not(check, factory, made)
        print(f"{'broken' if why else 'ok':8}{rule.replace('``', '')}")
        if why:
            print(f"{'':8}-> {why}")
            broken += 1
    return broken


def _why_not(
    check: Callable[[Callable[[], Selector]], None], factory: Callable[[], Selector], made: type[Selector]
) -> str | None:
    try:
        with users_code("the selector failed"):
            check(factory)
    except (AssertionError, UserError) as error:
        said = str(error)
        return said if _PLACE.search(said) else f"{said.rstrip('.')} ({_place(error, made)})"
    return None


def _place(error: BaseException, made: type[Selector]) -> str:
    """Return the file and the line of the user's code that raised, or else of the method that is wrong."""
    raised: BaseException | None = error
    while raised is not None:
        for part in reversed(traceback.extract_tb(raised.__traceback__)):
            if written_by(part.filename) == "user":
                return f"{Path(part.filename).name}, line {part.lineno}"
        raised = raised.__cause__ or raised.__context__
    method = next((name for word, name in _METHODS.items() if word in str(error)), "select")
    found = inspect.unwrap(getattr(made, method))
    if not inspect.isfunction(found):  # a constructor that is Python's own
        return f"{Path(inspect.getfile(made)).name}, line {inspect.getsourcelines(made)[1]}"
    return f"{Path(found.__code__.co_filename).name}, line {found.__code__.co_firstlineno}"
