"""Whether a run may get more rounds than it was begun with and equal one that had them from the start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.local.program import lr_factors


def check_extension(config: RunConfig, begun_with: int, played: int, *, ended: bool) -> None:
    """Refuse another number of rounds for a run whose past depends on the one it was begun with.

    Args:
        config: The settings, with the new number of rounds.
        begun_with: The number of rounds it was begun with.
        played: Rounds that are played.
        ended: Whether its target, its simulated time or a callback ended it.

    Raises:
        UserError: If it does; the message says why.
    """
    start = f"the run cannot have {config.rounds} rounds instead of {begun_with}"
    if config.rounds < played:
        raise UserError(f"{start}: {played} are played already.")
    if ended:
        raise UserError(
            f"{start}: its target (evaluation.stop_at_target), its simulated "
            "time (time.stop_after_seconds) or a callback ended it."
        )
    name = type(config.selector).__name__
    if reads_total(type(config.selector)):
        raise UserError(f"{start}: selector {name} looks at the total (view.rounds).")
    schedule = config.local.lr_schedule
    common = min(begun_with, config.rounds)
    if lr_factors(schedule, begun_with)[:common] != lr_factors(schedule, config.rounds)[:common]:
        raise UserError(f"{start}: local.lr_schedule depends on the total.")


def reads_total(selector: type) -> bool:
    """Tell whether the module of a selector's class, or of one that it is derived from, reads ``.rounds``.

    It stands in the code of a module; who reads it in another one is not seen.
    """
    homes = {made.__module__ for made in selector.__mro__} - {"builtins", "abc", "typing"}
    modules = (vars(sys.modules[name]) for name in homes if name in sys.modules)
    functions = (function for module in modules for function in _functions(module))
    return any("rounds" in code.co_names for function in functions for code in _codes(function.__code__))


def _functions(owner: Any) -> Iterator[FunctionType]:
    for value in owner.values():
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, type) and value.__module__ == owner.get("__name__"):
            yield from _functions({**vars(value), "__name__": None})


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
