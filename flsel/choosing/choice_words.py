"""A choice in words: the sentence, what limits it, differences, and the table."""

from __future__ import annotations

import math

from flsel.choosing.guarantee import CERTAIN, guarantee, more
from flsel.choosing.race_result import Racer, RaceResult
from flsel.comparison.judging.formatting import count, gain, number, seeds
from flsel.runner.cost_axes import COST_AXES

CONDITION = "if differences between seeds are normally distributed"
_MOST_NAMED = 4


def headline(result: RaceResult) -> str:
    """Return the choice in one sentence, and what needs least."""
    first, rules = result.racers[0], result.declared.rules
    used = f"{result.runs_used:,} of {result.most_runs:,} runs"
    known = guarantee(result.standing.race, result.deciding)
    known = f": {known}" if known else ""
    if not result.standing.whole:
        return f"The race goes on: {first.name} leads after {seeds(first.seeds)} ({used}){known}."
    what = result.deciding.score.words
    if rules.target is not None:
        unit = COST_AXES[rules.decides].unit
        what = f"{'' if unit == 'bytes' else f'{unit} '}to {_goal(result)}"
    about = f"{seeds(first.seeds)}, {used}"
    if not math.isnan(first.value):
        about = f"{_value(result, first)} {what}, {about}"
    if not result.decided:
        return f"Undecided: {first.name} leads ({about}){known}; {_rivals(result)}."
    return (f"Choose {first.name}: {CERTAIN} {_margin(result)} ({about}). {_advice(result)}").strip()


def _margin(result: RaceResult) -> str:
    return more(result.deciding, result.declared.rules.margin)


def _goal(result: RaceResult) -> str:
    """Write the target, such as ``80 % test accuracy``."""
    score, target = result.deciding.score, result.declared.rules.target or 0.0
    parts = score.shown(target), score.words
    return " ".join(parts if score.is_share else parts[::-1])


def _value(result: RaceResult, racer: Racer) -> str:
    """Write the mean of a racer's values: a score, or the geometric mean of costs."""
    deciding = result.deciding
    if math.isnan(racer.value):
        return "-"
    if deciding.target is None:
        score = racer.value / deciding.score.gains
        return number(score, "%" if deciding.score.is_share else "")
    return number(math.exp(-racer.value), "bytes" if deciding.name.startswith("bytes") else "")


def _named(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _rivals(result: RaceResult) -> str:
    """Say who may be better than the leader by more than the margin."""
    if result.standing.low is not None and not result.winnable:
        return "nobody that is left reaches the target in every seed: lower the target, or run more rounds"
    return (
        f"{_named(result.rivals)} may be more than {_margin(result)}: start another race with a larger "
        "max_seeds or margin"
    )


def _advice(result: RaceResult) -> str:
    """Name the choice that needs least."""
    least, chosen = result.needs_least, result.racers[0]
    equivalent = [racer.name for racer in result.racers if racer.place == "equivalent"]
    text = f"It needs {chosen.needs}."
    if equivalent:
        verb = "is" if len(equivalent) == 1 else "are"
        text = f"{_named(equivalent)} {verb} equivalent within the margin. "
        text += f"{least.name} needs least of these: {least.needs}."
    other = result.simplest_open
    if other is not None:
        text += (
            f" {other.name} needs less ({other.needs}), but is not shown to be equivalent: "
            f"{difference(result, other)}."
        )
    return text


def difference(result: RaceResult, racer: Racer) -> str:
    """Write the difference of a racer to the winner with its bounds: of scores, or a ratio of costs."""
    if racer is result.racers[0] or math.isnan(racer.low):
        return "-"
    known = not math.isnan(racer.difference)
    score = result.deciding.score
    if result.deciding.target is None:
        low, high = sorted((racer.low, racer.high), key=lambda end: end * score.gains)
        return f"{gain(racer.difference, score)} [{gain(low, score)}, {gain(high, score)}]"
    least = "0" if math.isinf(racer.high) else f"{math.exp(-racer.high):.2f}"
    most = "more" if math.isinf(racer.low) else f"{math.exp(-racer.low):.2f}"
    return f"{f'{math.exp(-racer.difference):.2f} x' if known else '-'} [{least}, {most}]"


def notes(result: RaceResult) -> list[str]:
    """Say what the choice rests on, and what it cannot exclude."""
    n, rules = result.racers[0].seeds, result.declared.rules
    collapse = 100 * (1 - 0.05 ** (1 / max(n, 1)))
    found = [
        "The chance that the best is more than the margin better than the chosen one is at most 5 %, "
        f"{CONDITION}. All bounds of differences to the best hold together at this level.",
        f"{seeds(n)} in which no run of {result.winner} collapsed cannot exclude that up to {collapse:.0f} % "
        "of its runs do.",
        "A variant leaves when another is better. A variant that cannot be more than the margin better than "
        "the leader rests, and is not run with more seeds.",
        "A mean is over all seeds of a line, and lines have different seeds. Differences are over seeds that "
        "both have.",
    ]
    if rules.target is not None:
        found.append(
            f"Costs are those to {_goal(result)} (mean of "
            f"{count(rules.last, 'evaluation')}). A run that does not arrive counts as more than it spent."
        )
    return found


def table(result: RaceResult) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a line for each racer, the winner first."""
    rules = result.declared.rules
    scored = rules.target is None
    totals = [total for total in _UNITS if any(total in racer.totals for racer in result.racers)]
    head = ["variant", "place", result.deciding.score.words if scored else rules.decides.replace("_", " ")]
    head += ["difference" if scored else "ratio", "seeds", "needs"]
    body = [
        [
            racer.name, _place(racer), _value(result, racer), difference(result, racer),
            str(racer.seeds), racer.needs, *(_total(racer, total) for total in totals),
        ]
        for racer in result.racers
    ]  # fmt: skip
    return [*head, *(total.replace("_", " ") for total in totals)], body


_UNITS = {"bytes": "bytes", "questions": "", "simulated_seconds": ""}


def _total(racer: Racer, name: str) -> str:
    """Write what a run spends, whole where it counts."""
    if name not in racer.totals:
        return "-"
    value = racer.totals[name]
    return number(value if _UNITS[name] else float(round(value)), _UNITS[name])


def _place(racer: Racer) -> str:
    if racer.place == "lost":
        return racer.reason.partition(":")[0]
    return f"out at {racer.seeds} seeds" if racer.place == "out" else racer.place
