"""The report: as one page that opens from disk, and as Markdown."""

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
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from flsel.comparison.grid import ALL
from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.headline import headline
from flsel.comparison.judging.measures import titles
from flsel.comparison.judging.notes import notes
from flsel.comparison.judging.verdicts import Verdict, folded
from flsel.comparison.reporting import tables
from flsel.comparison.reporting.chart import JOINS, MOST_IN_PANEL
from flsel.comparison.reporting.chart_data import chart_data, packed
from flsel.comparison.reporting.draw import UndrawnError, bundle
from flsel.comparison.reporting.result_charts import charts
from flsel.comparison.run_table import Run, complete
from flsel.files.escaping import chart_text, html_data, html_text, markdown_code, markdown_text, one_line
from flsel.report.style import looks
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
    data, styles, done = chart_data(analysis), looks(analysis.variants), complete(analysis.runs)
    listed, words = charts(analysis, styles, data), titles(analysis.curves)
    shown, rest = folded(analysis)
    level = f"Means with {100 * analysis.options.level:g} % intervals"
    differences = tables.difference_rows(analysis)
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()] for row in differences]
    drawn: Mapping[str, Any] = next(iter(data.get("curves", [])), {})
    embedded = {
        "scenarios": analysis.scenarios, "words": words,
        "config": _CONFIG, "sign": math.copysign(1, analysis.options.score.gains),
        "formats": {axis.name: axis.format for axis in COST_AXES.values()},
        "baseline": analysis.options.baseline, "panel": MOST_IN_PANEL,
        "data": {name: packed(rows) for name, rows in data.items()},
        "charts": [
            {"name": c.name, "title": c.title, "spec": c.spec, "one": c.one} for c in listed
        ],
    }  # fmt: skip
    return render(
        page_file("report.html"), title=title, about=_about(done), headline=headline(analysis), shown=shown,
        rest=rest, notes=notes(analysis), lost=tables.lost_rows(analysis),
        tables=[
            (*tables.main_table(analysis, s), level if s == ALL else s) for s in analysis.scenarios
        ],
        fold=len(analysis.scenarios) > tables.MOST_SCENARIOS,
        looks={name: look for name, look in styles.items() if any(run.variant == name for run in done)},
        costs={name: words[name] for name in COST_AXES if name in drawn}, cost=analysis.options.cost,
        curves={name: words[name] for name in analysis.curves},
        scenarios={chart_text(name): name for name in analysis.scenarios},
        charts=[
            (c, {chart_text(row["variant"]): row["variant"] for row in data[c.name]} if c.one else {})
            for c in listed
        ],
        commands="\n".join(commands), environment=_environment(done),
        differences=(list(differences[0]), cells, "All differences") if differences else (),
        first=f"{done[0].variant}, seed {done[0].seed}",
        config=yaml.safe_dump(dict(done[0].settings), sort_keys=False),
        runs=[_link(run, folder) for run in analysis.runs],
        data=Markup(html_data(chart_text(embedded))), library=_library(),
    )  # fmt: skip


def render(template: str, **content: Any) -> str:
    """Fill a template of a page. Texts in it are escaped, and units stay in the line of their numbers."""
    files = FunctionLoader(page_file)
    made = Environment(
        autoescape=True, finalize=_text, loader=files, trim_blocks=True, undefined=StrictUndefined
    )
    made.globals = {
        "file": lambda name: Markup(page_file(name)),
        "exact": lambda text: Markup(html_text(chart_text(text))),
    }
    return made.from_string(template).render(**content)


def _text(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(html_text(_UNIT.sub("\u00a0", str(value))))


def _library() -> Markup | UndrawnError:
    """Return the script that draws the charts; where there is no memory for it, why."""
    try:
        return Markup(library().replace("</script", "<\\/script"))
    except UndrawnError as error:
        _LOG.warning("report.html lacks its charts: %s", error)
        return error


def _about(done: Sequence[Run]) -> str:
    settings, seeds = done[0].settings, sorted({run.seed for run in done})
    return (
        f"{settings.get('data', {}).get('name', 'data')}, {settings.get('clients') or 'all'} clients, "
        f"{settings.get('clients_per_round')} a round, {settings.get('rounds')} rounds, "
        f"{formatting.seeds(len(seeds))} ({', '.join(map(str, seeds))})"
    )


def _link(run: Run, folder: Path | None) -> tuple[str, str]:
    """Return where a run is, and what it is."""
    where = run.folder if folder is None else Path(os.path.relpath(run.folder, folder))
    return where.as_posix(), f"{run.variant}{formatting.where(run.scenario)}, seed {run.seed}: {run.status}"


@functools.cache
def library() -> str:
    """Return Vega, Vega-Lite and their embedding as one script.

    Raises:
        UserError: If the package that holds them is missing.
    """
    return bundle(_EXPOSED)


def _environment(runs: Sequence[Run]) -> str:
    found = []
    for name, what in (("device_name", "devices"), ("git_commit", "commits")):
        values = sorted({str(run.summary[name]) for run in runs if run.summary.get(name)})
        found.append(f"{what}: {', '.join(values) or 'unknown'}")
    versions = {f"{k} {v}" for run in runs for k, v in run.summary.get("versions", {}).items()}
    return "; ".join([*found, f"versions: {', '.join(sorted(versions)) or 'unknown'}"])


def page_file(name: str) -> str:
    """Return a file that the page holds, such as ``page.css``."""
    return resources.files("flsel.comparison.reporting").joinpath("page", name).read_text(encoding="utf-8")


def report(analysis: Analysis, title: str, commands: Sequence[str]) -> str:
    """Write verdicts, tables, what limits them, lost runs and commands."""
    parts = [f"# {markdown_text(title)}", "", f"**{markdown_text(headline(analysis))}**", ""]
    shown, rest = folded(analysis)
    parts += _listed(shown)
    if rest:
        title = f"{len(rest)} more comparisons, none significant"
        parts += ["", f"<details><summary>{title}</summary>", "", *_listed(rest), "", "</details>"]
    for scenario in analysis.scenarios:
        parts += ["", f"## {'Results' if scenario == ALL else markdown_text(scenario)}", ""]
        parts.append(tables.to_markdown(*tables.main_table(analysis, scenario)))
    level = f"{100 * analysis.options.level:g} %"
    parts += ["", f"Intervals are of {level}; flsel's docs/comparing.md says how to read each column."]
    parts += [
        "",
        "## What limits these claims",
        "",
        *(f"- {markdown_text(note)}" for note in notes(analysis)),
    ]
    if lost := tables.lost_rows(analysis):
        rows = (f"- {markdown_code(folder)}: {markdown_text(why)}" for folder, why in lost)
        parts += ["", "## Runs that count nowhere", "", *rows]
    if commands:
        parts += ["", "## Commands", "", "````", *map(one_line, commands), "````"]
    return "\n".join(parts) + "\n"


def _listed(found: Sequence[Verdict]) -> list[str]:
    return [f"- **{markdown_text(v.label)}.** {markdown_text(v.text)}" for v in found]
