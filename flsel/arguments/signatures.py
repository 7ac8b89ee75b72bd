"""Check that the methods that a class overrides can be called like those of its base."""

from __future__ import annotations

import inspect


def keep_signatures(made: type, base: type) -> None:
    """Refuse a class whose public methods cannot be called as its base's are.

    Args:
        made: The class.
        base: What flsel calls it as.

    Raises:
        TypeError: If a method lacks an argument, or needs one more.
    """
    for name, theirs in vars(base).items():
        own = vars(made).get(name)
        if name.startswith("_") or not (inspect.isfunction(own) and inspect.isfunction(theirs)):
            continue
        called = inspect.signature(theirs)
        # What wraps a method takes what it takes, whatever it wraps.
        given = inspect.signature(own, follow_wrapped=False)
        parameters = called.parameters.values()
        by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        try:
            given.bind(*by_place, **dict.fromkeys(by_name))
        except TypeError:
            takes, got = (f"({', '.join(signature.parameters)})" for signature in (called, given))
            raise TypeError(
                f"{made.__name__}.{name} must take {takes} as {base.__name__}.{name} does, got {got}"
            ) from None
