"""The page of a race: the choice, the table in the order in which variants left, and bounds as bars."""

from __future__ import annotations

import math
from collections.abc import Callable

import yaml

from flsel.choosing.choice_words import difference, headline, notes, table
from flsel.choosing.race_result import Racer, RaceResult
from flsel.comparison.reporting.webpage import fold_away, html_table, page_file
from flsel.files.escaping import html_text

_STYLE = """
.bars { display: grid; grid-template-columns: minmax(6rem, 12rem) 1fr; gap: .15rem .6rem; align-items: center;
  max-width: 60rem; font-size: .9rem; }
.bars b { font-weight: 400; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.track { position: relative; height: 1.1rem; background: linear-gradient(var(--line), var(--line)) no-repeat
  var(--zero) 0 / 1px 100%; }
.track .margin { position: absolute; top: 0; bottom: 0; background: var(--panel); z-index: -1; }
.track i { position: absolute; top: .45rem; height: .2rem; background: var(--open); border-radius: 2px; }
.track u { position: absolute; top: .2rem; width: .7rem; height: .7rem; margin-left: -.35rem;
  border-radius: 50%; background: var(--open); }
.equivalent i, .equivalent u, .chosen u { background: var(--good); }
.out i, .out u { background: var(--quiet); }
.ticks { position: relative; height: 1.2rem; font-size: .75rem; color: var(--quiet); }
.ticks span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
"""


def choice_page(result: RaceResult) -> str:
    """Return the page, which opens from disk and needs no network."""
    title, declared = result.folder.name, result.declared
    config = declared.grid.config
    about = (
        f"{config.get('data', {}).get('name', 'data')}, {config.get('clients') or 'all'} clients, "
        f"{config['clients_per_round']} a round, {config['rounds']} rounds; allowed: "
        f"{declared.rules.may or 'all that the config can answer'}"
    )
    results = html_table(*table(result), "In the order of elimination, the first to leave in the last row")
    limits = "".join(f"<li>{html_text(note)}</li>" for note in notes(result))
    left_out = "".join(
        f"<li><b>{html_text(name)}</b>: {html_text(why)}</li>" for name, why in declared.left_out.items()
    )
    best = yaml.safe_dump(result.best.to_dict(), sort_keys=False)
    commands = html_text("\n".join(declared.commands))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html_text(title)}</title><style>{page_file('page.css')}{_STYLE}</style></head>",
            '<body><a class="skip" href="#results">Skip to the results</a><main>',
            f'<h1>{html_text(title)}</h1><p class="quiet">{html_text(about)}</p>',
            f'<section aria-label="Choice"><p class="headline">{html_text(headline(result))}</p></section>',
            f'<div id="results" tabindex="-1">{results}</div>',
            _bars(result),
            f"<h2>What limits the choice</h2><ul>{limits}</ul>",
            f"<h2>Left out</h2><ul>{left_out}</ul>" if left_out else "",
            f"<h2>To repeat it</h2><h3>Commands</h3><pre>{commands}</pre>",
            fold_away(f"Settings of {result.winner} (best.yaml)", f"<pre>{html_text(best)}</pre>"),
            "</main></body></html>",
        ]
    )


def _bars(result: RaceResult) -> str:
    """Draw the difference of each racer to the winner with its bounds, cut at the edges of the figure."""
    shown = [racer for racer in result.racers if math.isfinite(racer.difference)]
    width = result.width
    ends = [abs(racer.difference) for racer in shown]
    reach = max(4 * width, 1.1 * sorted(ends)[int(0.9 * (len(ends) - 1))]) if ends else width
    low, high = -reach, max(2 * width, 0.25 * reach)

    def at(value: float) -> float:
        return round(100 * (min(max(value, low), high) - low) / (high - low), 2)

    deciding = result.deciding
    scored, score = deciding.target is None, deciding.score
    unit = "points of accuracy" if score.is_share else f"gains in {score.words}"
    unit = unit if scored else "ratios of costs"
    rows = "".join(_bar(racer, at, (-width, width), difference(result, racer)) for racer in shown)
    marks = ""
    for value in (-width, width):
        text = f"{value:+g}" if scored else f"{math.exp(-value):.2f}"
        marks += f'<span style="left:{at(value)}%">{text}</span>'
    return (
        f"<figure><h2>Difference to {html_text(result.winner)}</h2>"
        f'<p class="quiet">In {unit}, with the bounds that decided, cut at the edges; the band is the '
        f'margin, and the line is no difference.</p><div class="bars" style="--zero: {at(0.0)}%">{rows}'
        f'<b></b><div class="ticks">{marks}</div></div></figure>'
    )


def _bar(racer: Racer, place: Callable[[float], float], margin: tuple[float, float], told: str) -> str:
    left, right = place(racer.low), place(racer.high)
    band = f'<span class="margin" style="left:{place(margin[0])}%;right:{100 - place(margin[1])}%"></span>'
    bounded = math.isfinite(racer.low) and racer.place not in ("chosen", "leads")
    line = f'<i style="left:{left}%;right:{100 - right}%"></i>' if bounded else ""
    name, told = html_text(racer.name), html_text(told)
    return (
        f'<b title="{name}">{name}</b><div class="track {racer.place}" role="img" '
        f'aria-label="{told}" title="{told}">{band}{line}'
        f'<u style="left:{place(racer.difference)}%"></u></div>'
    )
