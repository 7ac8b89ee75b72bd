"""A placement in words, as a picture, and as the two files that can be contributed."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flsel.comparison.judging.estimates import Estimate
from flsel.comparison.reporting.tables import to_csv, to_markdown
from flsel.comparison.run_table import Run
from flsel.config import RunConfig
from flsel.files import write_atomic
from flsel.files.escaping import markdown_code, markdown_text
from flsel.placing.placement import FAMILIES, Placement
from flsel.placing.shipped_atlas import ACCURACIES, BASE, ShippedAtlas

FORMAT = 1
_MOST_NAMED = 3


def points(mean: Estimate) -> str:
    """Write a difference in points with its interval."""
    value, low, high = (round(end, 1) + 0.0 for end in (mean.value, mean.low, mean.high))  # without -0.0
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def ratio(mean: Estimate) -> str:
    """Write a ratio of costs with its interval."""
    return f"{mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]"


def headings(atlas: ShippedAtlas) -> list[str]:
    """Return headings of what is shown of an atlas, in the order of :func:`cells`."""
    own = {"accuracy": f"points to {BASE}", "worst": "worst tenth"}
    target = f"to {100 * atlas.target:g} %, ratio"
    found = [own.get(name, f"{name.replace('_', ' ')} {target}") for name in atlas.shown]
    return found if atlas.decides in ACCURACIES else [*found, "missed"]


def cells(atlas: ShippedAtlas, means: Mapping[str, Estimate], missed: int) -> list[str]:
    """Write what :func:`mean_of` returned of all that is shown, and how often the target was missed."""
    found = [points(means[name]) if name in ACCURACIES else ratio(means[name]) for name in atlas.shown]
    return found if atlas.decides in ACCURACIES else [*found, str(missed)]


def mean_of(placement: Placement, selector: str, measure: str) -> Estimate:
    """Return a selector's points or ratio to the baseline over all scenarios."""
    if measure in ACCURACIES:
        return placement.mean_gain(selector, measure=measure)
    return placement.ratio(selector, measure)


def difference(placement: Placement, gain: Estimate) -> str:
    """Write a difference in what decides: points, or a ratio of costs."""
    if placement.atlas.decides in ACCURACIES:
        return points(gain)
    value, low, high = (math.exp(-end) for end in (gain.value, gain.high, gain.low))
    return ratio(Estimate(value, low, high, gain.n))


def sentence(placement: Placement, selector: str) -> str:
    """Say where a selector stands."""
    atlas, count = placement.atlas, len(placement.scenarios)
    best, first = placement.best("all scenarios"), placement.first(selector)
    named = ", ".join(f"({name})" for name in first[:_MOST_NAMED])
    more = f" and {len(first) - _MOST_NAMED} more" if len(first) > _MOST_NAMED else ""
    told = f"first in {len(first)}: {named}{more}" if first else "first in none"
    rank, size = placement.rank(selector), len(placement.measured.selectors)
    what, side, kind, ends = f"points to {BASE}", "above", "difference", ""
    if atlas.decides not in ACCURACIES:
        cost = atlas.decides.replace("_", " ")
        what, side, kind = f"times {BASE}'s {cost} to {100 * atlas.target:g} %", "below", "ratio"
        own, other = (mean_of(placement, name, "accuracy") for name in (selector, best))
        ends = f" At the end {selector} has {points(own)} points to {BASE}, and {best} {points(other)}."
        if missed := placement.missed(selector):
            ends += f" Its ratio is too low: {missed} of its runs miss a target that {BASE}'s reach."
    to_best = difference(placement, placement.to_best(selector, "all scenarios"))
    return (
        f"{selector} is number {rank} of {size} on the atlas {atlas.name}: "
        f"{difference(placement, placement.mean_gain(selector))} {what} over {count} scenarios and "
        f"{placement.seeds} seeds, {side} {BASE} in {placement.above(selector)} of {count}; {told}. The best "
        f"is {best}; to it the {kind} is {to_best}.{ends}"
    )


def notes(placement: Placement) -> list[str]:
    """Say what the placement rests on."""
    pairs = (
        f"Three runs of {BASE} had the committed results, and the fingerprints of all runs are the committed "
        "ones: data, initial model and availability are the same, and differences are paired by seed."
        if placement.repeated
        else f"{BASE} does not have its committed results here, so it was run here. Each selector is "
        f"compared with its own {BASE}; selectors are not paired with one another."
    )
    found = [
        pairs,
        "Intervals are of 95 %, by Student's t over seeds, each for itself. Ranks and *first* describe "
        "means; they are no tests.",
        f"Costs are ratios to {BASE}'s until {100 * placement.atlas.target:g} % test accuracy. A run that "
        "does not arrive counts as its end, so a ratio with such runs is a bound.",
    ]
    if placement.atlas.decides not in ACCURACIES:
        found.append(
            f"*Missed* is the number of runs that miss the target although {BASE}'s reaches it. The ratio "
            "of such a selector is too low, and it is never called the best."
        )
    return [*found, *(f"{name} was tuned: {how}." for name, how in placement.tuned.items())]


def family_table(placement: Placement, selector: str) -> tuple[list[str], list[list[str]]]:
    """Return a line for each family of scenarios that the atlas has."""
    body = []
    for family in FAMILIES:
        inside = int(placement.family(family).sum())
        if inside == 0 or (family != "all scenarios" and inside == len(placement.scenarios)):
            continue
        body.append(
            [
                f"{family} ({inside})", str(placement.rank(selector, family)),
                difference(placement, placement.mean_gain(selector, family)), placement.best(family),
                difference(placement, placement.to_best(selector, family)),
            ]
        )  # fmt: skip
    what = "points" if placement.atlas.decides in ACCURACIES else "ratio"
    return ["scenarios", "rank", f"{what} to {BASE}", "best", f"{what} to it"], body


def all_table(placement: Placement) -> tuple[list[str], list[list[str]]]:
    """Return a line for each selector, the best first."""
    names = sorted(placement.measured.selectors, key=lambda name: -placement.mean_gain(name).value)
    body = []
    for name in (name for name in names if name != BASE):
        means = {measure: mean_of(placement, name, measure) for measure in placement.atlas.shown}
        marked = name in placement.placed and not name.endswith("(placed)")
        shown = f"{name} (placed)" if marked else name
        body.append([shown, *cells(placement.atlas, means, placement.missed(name))])
    return ["selector", *headings(placement.atlas)], body


def heat_map(placement: Placement) -> bytes:
    """Draw what decides relative to the baseline in every scenario, what is placed on top, as PNG."""
    from matplotlib.figure import Figure

    names = sorted(placement.measured.selectors, key=lambda name: -placement.mean_gain(name).value)
    names = [*placement.placed, *(n for n in names if n != BASE and n not in placement.placed)]
    shown = np.stack([placement.gains(name).mean(axis=1) for name in names])
    figure = Figure(figsize=(9, 1.6 + 0.27 * len(names)), layout="constrained")
    axes = figure.subplots()
    scored = placement.atlas.decides in ACCURACIES
    limit = max(float(np.quantile(np.abs(shown), 0.95)), 1e-9)
    image = axes.imshow(shown, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    labels = [", ".join(scenario) for scenario in placement.scenarios]
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(labelsize=8)
    axes.axhline(len(placement.placed) - 0.5, color="black", linewidth=1.5)
    for (row, column), value in np.ndenumerate(shown):
        colour = "white" if abs(value) > 0.6 * limit else "black"
        text = (f"{value:+.0f}" if round(value) else "0") if scored else f"{math.exp(-value):.2f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    cost = placement.atlas.decides.replace("_", " ")
    figure.colorbar(
        image, label=f"points to {BASE}" if scored else f"ln of {BASE}'s {cost} over a selector's"
    )
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130)
    return drawn.getvalue()


def result_rows(placement: Placement) -> list[dict[str, Any]]:
    """Return a row for each run of what was placed, as an atlas has them."""
    rows = []
    for run in placement.runs:
        parts = dict(zip(placement.atlas.parts, run.scenario.split(", "), strict=True))
        measured = {name: f"{value:.6g}" for name, value in placement.atlas.measure(run).items()}
        rows.append({**parts, "seed": run.seed, "selector": run.variant, **measured})
    return rows


def summary(placement: Placement) -> dict[str, Any]:
    """Return what can be contributed beside the rows: numbers, settings, code and versions."""
    entries = {}
    for name in placement.placed:
        run = next(run for run in placement.runs if run.variant == name)
        entries[name] = {
            "rank": placement.rank(name),
            "of": len(placement.measured.selectors),
            **{
                key_of(measure): _ends(mean_of(placement, name, measure)) for measure in placement.atlas.shown
            },
            "missed": placement.missed(name),
            "selector": run.settings["selector"],
            "objective": run.settings.get("objective"),
            "tuned": placement.tuned.get(name, ""),
            "code": code_hash(run),
        }
    return {
        "format": FORMAT,
        "atlas": placement.atlas.name,
        "seeds": placement.seeds,
        "paired": placement.repeated,
        "measures": list(placement.atlas.measures),
        "entries": entries,
        "versions": dict(placement.runs[0].summary.get("versions", {})),
        "commit": placement.runs[0].summary.get("git_commit"),
        "commands": list(placement.commands),
    }


def key_of(measure: str) -> str:
    """Return the name of a measure in a placement's JSON file."""
    return "points" if measure == "accuracy" else measure


def _ends(mean: Estimate) -> list[float]:
    return [round(mean.value, 4), round(mean.low, 4), round(mean.high, 4)]


def code_hash(run: Run) -> str:
    """Return the SHA-256 of the file that a run's selector is written in."""
    made = type(RunConfig.from_dict(dict(run.settings)).selector)
    source = inspect.getsourcefile(made)
    return "" if source is None else hashlib.sha256(Path(source).read_bytes()).hexdigest()


def to_text(placement: Placement) -> str:
    """Return the report as Markdown."""
    title = markdown_text(f"{', '.join(placement.placed)} on the atlas {placement.atlas.name}")
    parts = [f"# {title}", ""]
    for name in placement.placed:
        parts += [f"**{markdown_text(sentence(placement, name))}**", ""]
        parts += [to_markdown(*family_table(placement, name)), ""]
    parts += ["## All selectors", "", to_markdown(*all_table(placement)), ""]
    parts += [f"![{headings(placement.atlas)[0]} in every scenario](heatmap.png)", ""]
    parts += [f"- {markdown_text(note)}" for note in notes(placement)]
    parts += ["", *(markdown_code(command) for command in placement.commands)]
    return "\n".join(parts) + "\n"


def write_placement(placement: Placement) -> list[Path]:
    """Write the report, the heat map, and the two files that can be contributed.

    Raises:
        UserError: If a file cannot be written.
    """
    files: Mapping[str, str | bytes] = {
        "report.md": to_text(placement),
        "heatmap.png": heat_map(placement),
        f"{placement.folder.name}.csv": to_csv(result_rows(placement)),
        f"{placement.folder.name}.json": json.dumps(summary(placement), indent=1) + "\n",
    }
    for name, content in files.items():
        write_atomic(placement.folder / name, content)
    return [placement.folder / name for name in files]
