"""The page of a race: the choice, the table in the order in which variants left, and bounds as bars."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any

import yaml

from flsel.choosing.choice_words import difference, headline, notes, table
from flsel.choosing.race_result import RaceResult
from flsel.comparison.reporting.webpage import render


def choice_page(result: RaceResult) -> str:
    """Return the page, which opens from disk and needs no network."""
    declared, config, winner = result.declared, result.declared.grid.config, result.winner
    about = (
        f"{config.get('data', {}).get('name', 'data')}, {config.get('clients') or 'all'} clients, "
        f"{config['clients_per_round']} a round, {config['rounds']} rounds; allowed: "
        f"{declared.rules.may or 'all that the config can answer'}"
    )
    template = resources.files("flsel.choosing").joinpath("page", "choice.html").read_text(encoding="utf-8")
    return render(
        template, title=result.folder.name, about=about, headline=headline(result), winner=winner,
        results=(*table(result), "In the order of elimination, the first to leave in the last row"),
        notes=notes(result), left_out=declared.left_out, commands="\n".join(declared.commands),
        config=yaml.safe_dump(result.best.to_dict(), sort_keys=False), **_bars(result),
    )  # fmt: skip


def _bars(result: RaceResult) -> dict[str, Any]:
    """Return where the bar of each racer's difference to the winner is, cut at the edges of the figure."""
    shown = [racer for racer in result.racers if math.isfinite(racer.difference)]
    width = result.width
    ends = [abs(racer.difference) for racer in shown]
    reach = max(4 * width, 1.1 * sorted(ends)[int(0.9 * (len(ends) - 1))]) if ends else width
    low, high = -reach, max(2 * width, 0.25 * reach)

    def at(value: float) -> float:
        return round(100 * (min(max(value, low), high) - low) / (high - low), 2)

    scored, score = result.deciding.target is None, result.deciding.score
    unit = "points of accuracy" if score.is_share else f"gains in {score.words}"
    bars = [
        {
            "name": racer.name, "place": racer.place, "told": difference(result, racer),
            "low": at(racer.low), "high": at(racer.high), "at": at(racer.difference),
            "bounded": math.isfinite(racer.low) and racer.place not in ("chosen", "leads"),
        }
        for racer in shown
    ]  # fmt: skip
    ticks = [(at(x), f"{x:+g}" if scored else f"{math.exp(-x):.2f}") for x in (-width, width)]
    return {
        "unit": unit if scored else "ratios of costs", "zero": at(0.0), "bars": bars, "ticks": ticks,
        "band": (at(-width), at(width)),
    }  # fmt: skip
