"""Configs and search spaces for tests, made by hand and by hypothesis."""

from __future__ import annotations

from functools import cache
from typing import Any

import optuna
from hypothesis import strategies as st

from flsel.config import RunConfig

optuna.logging.set_verbosity(optuna.logging.WARNING)

_FLOATS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda number: round(number, 4))
_POSITIVE = st.floats(1e-6, 1e3).map(lambda number: float(f"{number:.3g}"))


@cache
def _described(selector: str) -> dict[str, Any]:
    return RunConfig.from_dict({}, {"selector": selector}).to_dict()


def config_of(selector: str, **arguments: Any) -> dict[str, Any]:
    """The default run with a selector, as plain values."""
    described = _described(selector)
    made = described["selector"]
    return {**described, "selector": {**made, "init_args": {**made.get("init_args", {}), **arguments}}}


def defaults() -> dict[str, Any]:
    return RunConfig().to_dict()


@st.composite
def _between(draw: Any, numbers: Any) -> tuple[Any, Any]:
    low, high = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    return low, high


@st.composite
def _numeric(draw: Any) -> dict[str, Any]:
    kind = draw(st.sampled_from(["uniform", "loguniform", "int", "int log", "quantised"]))
    if kind == "int log":
        low, high = draw(_between(st.integers(1, 1000)))
        return {"type": "int", "low": low, "high": high, "log": True}
    if kind == "int":
        low, step = draw(st.integers(-1000, 1000)), draw(st.none() | st.integers(1, 50))
        high = low + (step or 1) * draw(st.integers(1, 40))
        return {"type": "int", "low": low, "high": high} | ({} if step is None else {"step": step})
    if kind == "quantised":
        tenths, step = draw(st.integers(-1000, 1000)), draw(st.integers(1, 50))
        high = tenths + step * draw(st.integers(1, 40))
        return {"type": kind, "low": tenths / 10, "high": high / 10, "step": step / 10}
    low, high = draw(_between(_POSITIVE if kind == "loguniform" else _FLOATS))
    return {"type": kind, "low": low, "high": high}


_CHOICE = st.lists(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["auto", "a b", "1"]),
    min_size=1,
    max_size=4,
    unique_by=lambda value: (type(value), value),
).map(lambda values: {"type": "choice", "values": values})


@st.composite
def _space(draw: Any) -> dict[str, Any]:
    """Dimensions a, b, ... of which each may depend on choices before it."""
    entries: dict[str, Any] = {}
    for key in "abcde"[: draw(st.integers(1, 5))]:
        entry = dict(draw(_numeric() | _CHOICE))
        choices = [name for name, other in entries.items() if other["type"] == "choice"]
        if choices and draw(st.booleans()):
            on = draw(st.sampled_from(choices))
            entry["when"] = {
                on: draw(st.lists(st.sampled_from(entries[on]["values"]), min_size=1, unique_by=repr))
            }
        entries[key] = entry
    return entries


ANY_SPACE = _space()
