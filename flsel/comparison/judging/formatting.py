"""Numbers in words: units, signs and intervals, the same in every table, sentence and figure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from flsel.comparison.grid import ALL
from flsel.comparison.judging.estimates import Estimate
from flsel.comparison.judging.measures import Measure, Target, scale
from flsel.metrics import Score

_NOTHING = "-"
BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
TIMES = {"s": 1, "min": 60, "h": 3600, "days": 86_400}
Beyond = tuple[str, str]
SIGNS: Beyond = (">", "<")
WORDS: Beyond = ("above", "below")


def number(value: float, unit: str = "") -> str:
    """Write a value: shares in per cent, nats with three digits, bytes and long times with a unit."""
    if math.isnan(value):
        return _NOTHING
    if math.isinf(value):
        return "never"
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit == "nats":
        return f"{value:.3f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    if unit == "bytes":
        return _bytes(value)
    if unit in ("seconds", "simulated seconds") and value >= 120:
        return _time(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def estimate(found: Estimate, unit: str = "") -> str:
    """Write a value and its interval: ``71.2 % [70.1, 72.3]``."""
    if math.isnan(found.low):
        return number(found.value, unit)
    ends = ", ".join(number(end, unit).removesuffix(" %") for end in (found.low, found.high))
    return f"{number(found.value, unit)} [{ends}]"


def difference(found: Estimate, measure: Measure) -> str:
    """Write a difference with its sign: ``+1.8 [0.9, 2.7]``; shares in percentage points."""

    def write(x: float) -> str:
        return _signed(scale(measure) * x, share=measure.unit == "%")

    return f"{write(found.value)}{_bracketed(found, 0, lambda x: write(x).removeprefix('+'))}"


def ratio(found: Estimate) -> str:
    """Write a ratio: ``0.54 x [0.45, 0.66]``."""
    return f"{times(found.value)}{_bracketed(found, 1, three)}"


def bound(found: Estimate, side: str) -> str:
    """Write a bound of a ratio, from below (``low``) or above: ``<= 0.90 [0, 0.98]``."""
    known = replace(found, low=0.0) if side == "high" else replace(found, high=math.inf)
    interval = "" if math.isnan(found.low + found.high) else _bracketed(known, 1, three)
    return f"{'>=' if side == 'low' else '<='} {three(found.value)}{interval}"


def ends(low: float, high: float, none: int, write: Callable[[float], str], beyond: Beyond) -> list[str]:
    """Write the ends of an interval; one that merely rounds to no difference is said to be beyond it.

    Args:
        low: Lower end.
        high: Upper end.
        none: What no difference is: 0, or 1 of a ratio.
        write: Writes an end.
        beyond: Signs or words of "above" and "below".
    """
    shown, zero = [write(low), write(high)], write(none)
    if low >= none and shown[0] == zero:
        shown[0] = f"{beyond[0]} {none}"
    if high <= none and shown[1] == zero:
        shown[1] = f"{beyond[1]} {none}"
    return shown


def times(value: float) -> str:
    """Write a ratio alone: ``0.54 x``."""
    return f"{three(value)} x"


def p_value(p: float) -> str:
    """Write a p-value."""
    if math.isnan(p):
        return _NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def gain(value: float, score: Score) -> str:
    """Write a gain as the difference of scores, with its sign: ``+1.8`` points, ``-0.031`` of a loss."""
    return _signed(value if score.is_share else value / score.gains, share=score.is_share)


def relation(p: float) -> str:
    """Write a p-value behind p: ``= 0.09``, ``< 0.001``."""
    shown = f"{p:.2g}" if p >= 0.001 else p_value(p)
    return shown if shown.startswith("<") else f"= {shown}"


def width(points: float) -> str:
    """Write a number of points without a sign: ``1 point``, ``0.5 points``."""
    return f"{points:g} point" + ("" if points == 1 else "s")


def share(chance: float) -> str:
    """Write a chance: ``93 %``, ``> 99 %``, ``< 1 %``."""
    if 0.01 <= chance <= 0.99:
        return f"{100 * chance:.0f} %"
    return "> 99 %" if chance > 0.5 else "< 1 %"


def count(n: int, noun: str) -> str:
    """Write a number of things: ``1 claim``, ``3 claims``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def seeds(n: int) -> str:
    """Write how many seeds there are."""
    return "1 seed" if n == 1 else f"{n} seeds"


def goal(target: Target, last: int) -> str:
    """Write what is to be reached: ``80 % (mean of 10 evaluations)``."""
    return target.shown + (f" (mean of {last} evaluations)" if last > 1 else "")


def where(scenario: str) -> str:
    """Write a scenario behind a name; nothing where there is only one."""
    return "" if scenario == ALL else f" under {scenario}"


def _bracketed(found: Estimate, none: int, write: Callable[[float], str]) -> str:
    if math.isnan(found.low):
        return ""
    return f" [{', '.join(ends(found.low, found.high, none, write, SIGNS))}]"


def _signed(value: float, *, share: bool) -> str:
    """Write a difference: points of a share with one digit, others with three that count."""
    if share or math.isinf(value):
        return f"{round(value, 1) + 0.0:+.1f}"  # added to zero, what is rounded to it loses its sign
    return f"{'-' if value < 0 else '+'}{number(abs(value))}"


def three(value: float) -> str:
    """Write a ratio without its sign, with three digits that count."""
    if value in (0.0, math.inf):
        return f"{value:g}"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _time(seconds: float) -> str:
    """Write a time of minutes, hours or days: ``12 min``, ``3.4 h``, ``2.1 days``."""
    unit = "min" if seconds < 7200 else "h" if seconds < 172_800 else "days"
    return f"{seconds / TIMES[unit]:,.3g} {unit}"


def _bytes(value: float) -> str:
    unit = next((unit for unit, size in BYTES.items() if value < 1000 * size), "TB")
    return f"{value / BYTES[unit]:.3g} {unit}"
