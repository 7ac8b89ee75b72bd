"""What the benchmarks share: their options, alternating timings and Markdown tables. Imports no torch."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

# This module is imported before torch, whose import is part of what a user waits for.
STARTED = time.perf_counter()
# Upper by lower quartile of the times of equal calls; above this a median says little.
BUSY = 1.25
ROOT = Path(__file__).resolve().parents[1]


def options(about: str) -> argparse.Namespace:
    """Parse the options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=about)
    add_options(parser)
    return parser.parse_args()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: does it run, roughly how fast?"
    )
    parser.add_argument("--accelerator", default="cpu", help="Lightning's flag: cpu, cuda, mps or auto")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument(
        "--data-root",
        default=os.environ.get("FLSEL_DATA"),
        help="folder with FashionMNIST (default: FLSEL_DATA); without it, random images of the same shape",
    )


def alternate(
    sides: Mapping[str, Callable[[], None]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    calls: int = 1,
) -> dict[str, list[float]]:
    """Time several sides in turn, each starting first equally often.

    Args:
        sides: What to time, by name; a call returns when the work is done, on the device too.
        repeats: Turns of each side.
        clock: Returns seconds; ``time.process_time`` leaves out what other programs take.
        calls: Calls in a turn. Work of a millisecond or two is timed over many: a single call after another
            side's turn finds caches that are not its own.

    Returns:
        Seconds that a call took in each turn, by side.
    """
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            began = clock()
            for _ in range(calls):
                sides[name]()
            seconds[name].append((clock() - began) / calls)
    return seconds


def ratios(side: Sequence[float], base: Sequence[float]) -> list[float]:
    """Divide the times of two sides, call by call: neighbours in time share the machine's state."""
    return [a / b for a, b in zip(side, base, strict=True)]


def drift(seconds: Sequence[float]) -> str:
    """Return a warning if equal calls took times so different that the machine must have had other work."""
    low, _, high = quantiles(seconds, n=4)
    if high <= BUSY * low:
        return ""
    return f"The machine was busy: equal calls took {low:.3g} s to {high:.3g} s (quartiles). Measure again."


def spread(values: Sequence[float], unit: str = "", scale: float = 1.0, digits: int = 2) -> str:
    """Write the median and, in brackets, smallest and largest value."""
    low, mid, high = (f"{scale * v:.{digits}f}" for v in (min(values), median(values), max(values)))
    return f"{mid}{unit} ({low}..{high})"


def verdict(value: float, most: float) -> str:
    return "met" if value <= most else "**missed**"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
