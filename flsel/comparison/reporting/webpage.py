"""The report as one page that opens from disk: verdicts, tables, charts and everything to repeat it."""

from __future__ import annotations

import functools
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from flsel.comparison.grid import ALL
from flsel.comparison.judging import formatting
from flsel.comparison.judging.headline import headline
from flsel.comparison.judging.measures import titles
from flsel.comparison.judging.notes import notes
from flsel.comparison.judging.summaries import Analysis
from flsel.comparison.judging.verdicts import Verdict, folded
from flsel.comparison.reporting import tables
from flsel.comparison.reporting.chart import JOINS, MOST_IN_PANEL, Chart
from flsel.comparison.reporting.chart_data import chart_data, packed
from flsel.comparison.reporting.draw import UndrawnError, bundle
from flsel.comparison.reporting.result_charts import charts
from flsel.comparison.run_table import Run, complete
from flsel.files.escaping import chart_text, html_data, html_text
from flsel.report.style import Style, looks
from flsel.runner.cost_axes import COST_AXES

_CONFIG = {
    "font": "system-ui, sans-serif",
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelFlush": False,
        "labelSeparation": 8,
    },
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "view": {"stroke": None},
    "line": JOINS,
}
_LOG = logging.getLogger("flsel")
_EXPOSED = "window.vegaEmbed = vegaEmbed;"
_UNIT = re.compile(r"(?<=\d) (?=%|(?:x|points|seeds?|rounds)\b)")


def page(analysis: Analysis, title: str, folder: Path | None, commands: Sequence[str]) -> str:
    """Return the page.

    Args:
        analysis: The comparison.
        title: Heading.
        folder: Where the page will lie, for links to the runs; None links to where they are.
        commands: Command lines that led here.

    Raises:
        UserError: If the package that holds the charts' library is missing.
    """
    data, styles = chart_data(analysis), looks(analysis.variants)
    listed = charts(analysis, styles, data)
    parts = [
        _verdicts(analysis),
        _tables(analysis),
        _limits(analysis),
        _controls(analysis, styles, data),
        _figures(listed, data),
        _details(analysis, folder, commands),
    ]
    embedded = {
        "scenarios": analysis.scenarios, "words": titles(analysis.curves),
        "config": _CONFIG, "sign": math.copysign(1, analysis.options.score.gains),
        "formats": {axis.name: axis.format for axis in COST_AXES.values()},
        "baseline": analysis.options.baseline, "panel": MOST_IN_PANEL,
        "data": {name: packed(rows) for name, rows in data.items()},
        "charts": [
            {"name": c.name, "title": c.title, "spec": c.spec, "one": c.one} for c in listed
        ],
    }  # fmt: skip
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title><style>{page_file('page.css')}</style></head>",
            '<body><a class="skip" href="#results">Skip to the results</a><main>',
            f"<h1>{_text(title)}</h1>{_about(analysis)}",
            *parts,
            "</main>",
            f'<script type="application/json" id="page-data">{html_data(chart_text(embedded))}</script>',
            f"{_scripts()}</body></html>",
        ]
    )


@functools.cache
def library() -> str:
    """Return Vega, Vega-Lite and their embedding as one script.

    Raises:
        UserError: If the package that holds them is missing.
    """
    return bundle(_EXPOSED)


def _scripts() -> str:
    """Return the elements that draw the charts; the page says so if there is no memory for them."""
    try:
        return f"<script>{_safe(library())}</script><script>{_safe(page_file('page.js'))}</script>"
    except UndrawnError as error:
        _LOG.warning("report.html lacks its charts: %s", error)
        return f"<p>The charts are missing: {_text(error)}</p>"


def _about(analysis: Analysis) -> str:
    run = complete(analysis.runs)[0]
    settings = run.settings
    seeds = sorted({r.seed for r in complete(analysis.runs)})
    said = (
        f"{settings.get('data', {}).get('name', 'data')}, {settings.get('clients') or 'all'} clients, "
        f"{settings.get('clients_per_round')} a round, {settings.get('rounds')} rounds, "
        f"{formatting.seeds(len(seeds))} ({', '.join(map(str, seeds))})"
    )
    return f'<p class="quiet">{_text(said)}</p>'


def _verdicts(analysis: Analysis) -> str:
    shown, rest = folded(analysis)
    count = f"{len(rest)} more comparisons" if shown else f"{len(rest)} comparisons"
    more = fold_away(f"{count}, none significant", _listed(rest)) if rest else ""
    first = f'<p class="headline">{_text(headline(analysis))}</p>'
    return f'<section aria-label="Verdicts">{first}{_listed(shown)}{more}</section>'


def _listed(found: Sequence[Verdict]) -> str:
    items = "".join(f'<li class="{v.kind}"><b>{_text(v.label)}.</b> {_text(v.text)}</li>' for v in found)
    return f'<ul class="verdicts">{items}</ul>'


def _tables(analysis: Analysis) -> str:
    made = [_table(analysis, scenario) for scenario in analysis.scenarios]
    if len(made) <= tables.MOST_SCENARIOS:
        return "".join(made)
    rest = zip(analysis.scenarios[1:], made[1:], strict=True)
    return made[0] + "".join(fold_away(scenario, table) for scenario, table in rest)


def _table(analysis: Analysis, scenario: str) -> str:
    headings, rows = tables.main_table(analysis, scenario)
    caption = f"Means with {100 * analysis.options.level:g} % intervals" if scenario == ALL else scenario
    mark = ' id="results" tabindex="-1"' if scenario == analysis.scenarios[0] else ""
    return f"<div{mark}>{html_table(headings, rows, caption)}</div>"


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Write a table that scrolls by itself where it is wider than the screen; rows begin with their name."""
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in headings)
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(caption)}"><table>'
        f"<caption>{_text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    """Write a cell, an interval below its value."""
    value, bracket, interval = text.partition(" [")
    return _text(value) + (f"<br><small>[{_text(interval)}</small>" if bracket else "")


def _limits(analysis: Analysis) -> str:
    found = f"<ul>{''.join(f'<li>{_text(note)}</li>' for note in notes(analysis))}</ul>"
    lost = tables.lost_rows(analysis)
    if lost:
        listed = "".join(f"<li><code>{_text(folder)}</code>: {_text(why)}</li>" for folder, why in lost)
        found += f"<h3>Runs that count nowhere</h3><ul>{listed}</ul>"
    return f"<h2>What limits these claims</h2>{found}"


def _controls(analysis: Analysis, styles: Mapping[str, Style], data: Mapping[str, Any]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" name="variant" value="{html_text(chart_text(name))}" checked>'
        f"{_swatch(styles[name])}"
        f"{_text(name)}</label>"
        for name in analysis.variants
        if any(run.variant == name for run in complete(analysis.runs))
    )
    first: Mapping[str, Any] = next(iter(data.get("curves", [])), {})
    words = titles(analysis.curves)
    costs = {name: words[name] for name in COST_AXES if name in first}
    choices = [_select("cost", "Against", costs, analysis.options.cost)]
    choices.append(_select("measure", "Show", {name: words[name] for name in analysis.curves}))
    if len(analysis.scenarios) > 1:
        choices.append(_select("scenario", "Under", {chart_text(name): name for name in analysis.scenarios}))
    return (
        f'<h2>Charts</h2><form class="controls" aria-label="What the charts show"><fieldset><legend>Variants'
        f"</legend>{boxes}</fieldset>{''.join(choices)}</form>"
    )


def _select(name: str, label: str, options: Mapping[str, str], chosen: str = "") -> str:
    listed = "".join(
        f'<option value="{_text(key)}"{" selected" * (key == chosen)}>{_text(text)}</option>'
        for key, text in options.items()
    )
    return f'<label>{label} <select id="{name}">{listed}</select></label>'


def _swatch(look: Style) -> str:
    """Draw the line, and the marker, by which a variant is known in every chart."""
    dash = f' stroke-dasharray="{" ".join(map(str, look.dash))}"' if look.dash else ""
    shape = {
        "circle": '<circle cx="15" cy="7" r="4.5"/>',
        "square": '<rect x="11" y="3" width="8" height="8"/>',
        "triangle-up": '<path d="M15 2l5 9h-10z"/>',
        "triangle-down": '<path d="M15 12l5-9h-10z"/>',
        "triangle-right": '<path d="M20 7l-9 5v-10z"/>',
        "triangle-left": '<path d="M10 7l9 5v-10z"/>',
        "diamond": '<path d="M15 1l5 6-5 6-5-6z"/>',
        "cross": '<path d="M13 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z"/>',
    }[look.shape]
    return (
        f'<svg class="swatch" viewBox="0 0 30 14" aria-hidden="true" fill="{look.colour}"><path d="M0 7H30" '
        f'stroke="{look.colour}" stroke-width="2"{dash}/>{shape}</svg>'
    )


def _figures(listed: Sequence[Chart], data: Mapping[str, Any]) -> str:
    found = []
    for chart in listed:
        names = {chart_text(row["variant"]): row["variant"] for row in data[chart.name]} if chart.one else {}
        choice = _select(f"one-{chart.name}", "Variant", names) if chart.one else ""
        found.append(
            f'<figure aria-labelledby="title-{chart.name}"><h3 id="title-{chart.name}">{_text(chart.title)}'
            f'</h3><p class="quiet">{_text(chart.about)}</p>{choice}'
            f'<div class="chart" id="chart-{chart.name}"></div></figure>'
        )
    return f'{found[0]}<div class="grid">{"".join(found[1:])}</div>' if found else ""


def _details(analysis: Analysis, folder: Path | None, commands: Sequence[str]) -> str:
    done, listed = complete(analysis.runs), tables.difference_rows(analysis)
    rows = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in r.values()] for r in listed]
    headings = list(listed[0]) if listed else []
    config = yaml.safe_dump(dict(done[0].settings), sort_keys=False)
    links = "".join(f"<li>{_link(run, folder)}</li>" for run in analysis.runs)
    parts = ["<h2>To repeat it</h2>"]
    if commands:
        lines = "\n".join(commands)
        parts.append(f"<h3>Commands</h3><pre>{_text(lines)}</pre>")
    parts += [
        f"<h3>Where it ran</h3><p>{_text(_environment(done))}</p>",
        fold_away(
            "All differences to the baseline",
            html_table(headings, rows, "All differences") if rows else "",
            screen=True,
        ),
        fold_away(f"Settings of {done[0].variant}, seed {done[0].seed}", f"<pre>{_text(config)}</pre>"),
        fold_away(f"Runs ({len(analysis.runs)})", f"<ul>{links}</ul>"),
    ]
    return "".join(parts)


def fold_away(title: str, inside: str, *, screen: bool = False) -> str:
    """Fold a part away; print opens it, unless it is for the screen alone."""
    kind = ' class="screen"' if screen else ""
    return f"<details{kind}><summary>{_text(title)}</summary>{inside}</details>" if inside else ""


def _link(run: Run, folder: Path | None) -> str:
    where = run.folder if folder is None else Path(os.path.relpath(run.folder, folder))
    who = f"{run.variant}{formatting.where(run.scenario)}, seed {run.seed}: {run.status}"
    return f'<a href="{_text(where.as_posix())}/">{_text(who)}</a>'


def _environment(runs: Sequence[Run]) -> str:
    found = []
    for name, what in (("device_name", "devices"), ("git_commit", "commits")):
        values = sorted({str(run.summary[name]) for run in runs if run.summary.get(name)})
        found.append(f"{what}: {', '.join(values) or 'unknown'}")
    versions = {f"{k} {v}" for run in runs for k, v in run.summary.get("versions", {}).items()}
    return "; ".join([*found, f"versions: {', '.join(sorted(versions)) or 'unknown'}"])


def _text(value: object) -> str:
    """Escape a text, and keep units in the line of their numbers."""
    return html_text(_UNIT.sub("\u00a0", str(value)))


def _safe(script: str) -> str:
    """Keep a script from ending the element that holds it."""
    return script.replace("</script", "<\\/script")


def page_file(name: str) -> str:
    """Return a file that the page holds, such as ``page.css``."""
    return resources.files("flsel.comparison.reporting").joinpath("page", name).read_text(encoding="utf-8")
