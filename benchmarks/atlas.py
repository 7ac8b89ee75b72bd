"""Which selector where? The atlases' tables and pictures from their comparisons' runs.

    python benchmarks/atlas.py --collect comparisons/atlas_synthetic   # runs -> docs/results/data
    python benchmarks/atlas.py                                         # docs/results/data -> pages

The tables are made of the committed files alone; a test compares them with the pages.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from atlas_runs import BASE, Atlas, collect, read
from scipy import stats

from flsel.comparison.judging.ranking import rank

RESULTS = Path(__file__).resolve().parents[1] / "docs/results"


@dataclass(frozen=True)
class Source:
    """Where an atlas's measurements, page and picture are."""

    data: Path
    page: Path
    picture: Path

    @property
    def tuned(self) -> Path:
        """Where the measurements of its tuned selectors are."""
        return self.data.with_name(f"{self.data.stem}_tuned.csv")


ATLASES = {
    "atlas_synthetic": Source(
        RESULTS / "data/atlas_synthetic.csv", RESULTS / "atlas.md", RESULTS / "images/atlas.png"
    ),
    "atlas_fashion": Source(
        RESULTS / "data/atlas_fashion.csv", RESULTS / "atlas-fashion.md", RESULTS / "images/atlas_fashion.png"
    ),
    "atlas_mnist": Source(
        RESULTS / "data/atlas_mnist.csv", RESULTS / "atlas-mnist.md", RESULTS / "images/atlas_mnist.png"
    ),
    "atlas_sizes": Source(
        RESULTS / "data/atlas_sizes.csv", RESULTS / "atlas-sizes.md", RESULTS / "images/atlas_sizes.png"
    ),
}
SKEWED = ("Dirichlet 0.1", "2SPC", "1SPC", "HiCS mix")
DRAWS = 2000


def tables(atlas: Atlas) -> str:
    """Return all tables in Markdown."""
    families: dict[str, Callable[[tuple[str, str]], bool]] = {
        "all": lambda s: True,
        "skewed labels": lambda s: s[0] in SKEWED,
        "mild partitions": lambda s: s[0] not in SKEWED,
        "everybody there": lambda s: s[1] == "IDL",
        "clients away": lambda s: s[1] != "IDL",
    }
    parts = [
        ("Difference to Uniform over all settings", overall(atlas)),
        ("Mean ranks by family of settings, 1 is best", ranks(atlas, families)),
        ("Gain over Uniform by partition", effects(atlas, 0)),
        ("Gain over Uniform by availability", effects(atlas, 1)),
        ("Gain over Uniform in every setting", cells(atlas)),
    ]
    return "\n\n".join(f"### {title}\n\n{table}" for title, table in parts)


def overall(atlas: Atlas) -> str:
    """Return differences with bootstrap intervals over settings, and the chance to be ahead of Uniform."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(atlas.settings), (DRAWS, len(atlas.settings)))
    names = {"accuracy": "after all rounds", "cheap": "after half of Uniform's bytes", "worst": "worst tenth"}
    rows = []
    for k, selector in enumerate(atlas.selectors):
        if selector == BASE:
            continue
        shown = [_interval(atlas.gains(name)[:, k], draws, "{:+.1f}") for name in names]
        pairs = atlas.values["accuracy"][..., k] - atlas.values["accuracy"][..., atlas.selectors.index(BASE)]
        ahead = np.nanmean(np.where(np.isnan(pairs), np.nan, (pairs > 0) + 0.5 * (pairs == 0)), axis=1)
        ratios = [_ratio(atlas, name, k, draws) for name in ("rounds", "bytes")]
        ratios.append(f"{np.nanmean(atlas.values['passes'][..., k]):.0f}")
        rows.append([selector, *shown, _interval(ahead, draws, "{:.2f}"), *ratios])
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    head = [
        "selector",
        *names.values(),
        "chance to be ahead",
        "rounds to 70 %, ratio",
        "bytes, ratio",
        "passes",
    ]
    return _table(head, rows)


def _interval(values: np.ndarray, draws: np.ndarray, form: str) -> str:
    means = values[draws].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{form} [{form}, {form}]".format(values.mean(), low, high)


def _ratio(atlas: Atlas, name: str, k: int, draws: np.ndarray) -> str:
    """Return the geometric mean of the ratios to the baseline; runs that never arrive count as their end."""
    values = atlas.values[name]
    base = values[..., atlas.selectors.index(BASE)]
    logs = np.nanmean(np.log(values[..., k] / base), axis=1)
    low, high = np.quantile(logs[draws].mean(axis=1), [0.025, 0.975])
    return f"{np.exp(logs.mean()):.2f} [{np.exp(low):.2f}, {np.exp(high):.2f}]"


def ranks(atlas: Atlas, families: dict[str, Callable[[tuple[str, str]], bool]]) -> str:
    """Return mean ranks, and the critical difference of each family."""
    scores = np.nanmean(atlas.values["accuracy"], axis=1)
    found = {}
    for name, inside in families.items():
        rows = scores[[inside(setting) for setting in atlas.settings]]
        if len(rows) > 1 and (name == "all" or len(rows) < len(scores)):
            found[name] = rank(rows)
    order = np.argsort(found["all"].mean_ranks)
    body = [[atlas.selectors[k], *(f"{r.mean_ranks[k]:.1f}" for r in found.values())] for k in order]
    body.append(["critical difference", *(f"{r.critical_difference:.1f}" for r in found.values())])
    body.append(["Friedman's p", *(f"{r.p:.2g}" for r in found.values())])
    return _table(["selector", *(f"{name} ({r.settings})" for name, r in found.items())], body)


def effects(atlas: Atlas, factor: int) -> str:
    """Return main effects by least squares: gain = partition + mode, both sum to their means."""
    gains, levels = atlas.gains(), [list(dict.fromkeys(s[f] for s in atlas.settings)) for f in (0, 1)]
    columns = [[float(s[f] == name) for s in atlas.settings] for f in (0, 1) for name in levels[f]]
    design = np.array(columns).T
    solution = np.linalg.lstsq(design, gains, rcond=None)[0]
    first = solution[: len(levels[0])]
    second = solution[len(levels[0]) :]
    own, other = (first, second) if factor == 0 else (second, first)
    adjusted = own + other.mean(axis=0)
    freedom = len(atlas.settings) - np.linalg.matrix_rank(design)
    rest = np.sqrt(((gains - design @ solution) ** 2).sum(axis=0) / max(freedom, 1))
    order = [k for k in np.argsort(-gains.mean(axis=0)) if atlas.selectors[k] != BASE]
    body = [
        [atlas.selectors[k], *(f"{value:+.1f}" for value in adjusted[:, k]), f"{rest[k]:.1f}"] for k in order
    ]
    return _table(["selector", *levels[factor], "not explained"], body)


def cells(atlas: Atlas) -> str:
    """Return the gain of every selector in every setting."""
    gains = atlas.gains()
    others = [k for k in np.argsort(-gains.mean(axis=0)) if atlas.selectors[k] != BASE]
    base = 100 * np.nanmean(atlas.values["accuracy"][..., atlas.selectors.index(BASE)], axis=1)
    body = [
        [f"{partition}, {mode}", str(len(seeds)), f"{level:.1f}", *(f"{row[k]:+.1f}" for k in others)]
        for (partition, mode), seeds, level, row in zip(atlas.settings, atlas.seeds, base, gains, strict=True)
    ]
    return _table(["setting", "seeds", BASE, *(atlas.selectors[k] for k in others)], body)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * (lines[0].count("|") - 1) + "|", *lines[1:]])


def agreement(ours: Atlas, other: Atlas) -> str:
    """Return each selector's gain in two atlases, and in how many shared settings the sides are the same."""
    rng = np.random.default_rng(0)
    shared = [s for s in ours.settings if s in other.settings]
    pairs = [
        atlas.gains()[[atlas.settings.index(s) for s in shared]][:, [atlas.selectors.index(k) for k in names]]
        for names in [[k for k in ours.selectors if k in other.selectors and k != BASE]]
        for atlas in (ours, other)
    ]
    names = [k for k in ours.selectors if k in other.selectors and k != BASE]
    draws = rng.integers(0, len(shared), (DRAWS, len(shared)))
    body = []
    for k in np.argsort(-pairs[0].mean(axis=0)):
        same = int((np.sign(pairs[0][:, k]) == np.sign(pairs[1][:, k])).sum())
        body.append([names[k], *(_interval(p[:, k], draws, "{:+.1f}") for p in pairs), str(same)])
    rho = stats.spearmanr(pairs[0].mean(axis=0), pairs[1].mean(axis=0))
    body.append(["Spearman's correlation of the means", f"{rho.statistic:.2f}", "", ""])
    return _table(["selector", "here", "Synthetic(0.5, 0.5)", f"same side, of {len(shared)}"], body)


def tuning(atlas: Atlas, path: Path) -> str:
    """Return the gains of defaults and of tuned selectors over Uniform, in points, in the settings tuned."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    places = list(dict.fromkeys((row["partition"], row["availability"]) for row in rows))
    body = []
    for selector in dict.fromkeys(row["selector"] for row in rows):
        cells, changes = [], []
        for place in places:
            tuned = [
                r for r in rows if (r["partition"], r["availability"], r["selector"]) == (*place, selector)
            ]
            found = atlas.values["accuracy"][atlas.settings.index(place)]
            seeds = [atlas.all_seeds.index(int(row["seed"])) for row in tuned]
            base, plain = (found[seeds, atlas.selectors.index(name)] for name in (BASE, selector))
            ours = np.array([float(row["accuracy"]) for row in tuned])
            cells.append(f"{100 * (plain - base).mean():+.1f} / {100 * (ours - base).mean():+.1f}")
            changes.append(100 * (ours - plain))
        means = np.concatenate(changes)
        half = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
        body.append([selector, *cells, f"{means.mean():+.1f} ± {half:.1f}"])
    return _table(["selector", *(", ".join(place) for place in places), "tuned minus default"], body)


def draw(atlas: Atlas, path: Path) -> None:
    """Draw the gains as a heat map."""
    from matplotlib.figure import Figure

    from flsel.report.style import save_figure

    gains = atlas.gains()
    others = [k for k in np.argsort(-gains.mean(axis=0)) if atlas.selectors[k] != BASE]
    shown = gains[:, others].T
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    limit = float(np.quantile(np.abs(shown), 0.95))
    image = axes.imshow(shown, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(
        range(len(atlas.settings)), [", ".join(s) for s in atlas.settings], rotation=60, ha="right"
    )
    axes.set_yticks(range(len(others)), [atlas.selectors[k] for k in others])
    axes.tick_params(labelsize=8)
    for (row, column), value in np.ndenumerate(shown):
        colour = "white" if abs(value) > 0.6 * limit else "black"
        text = f"{value:+.0f}" if round(value) else "0"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, label="points above Uniform")
    save_figure(figure, path)


def shown(source: Source) -> str:
    """Return what a page shows."""
    atlas, first = read(source.data), ATLASES["atlas_synthetic"]
    text = tables(atlas)
    if source.tuned.exists():
        text += f"\n\n### Tuned selectors\n\n{tuning(read(source.data, merged=False), source.tuned)}"
    if source != first and set(atlas.settings) & set(read(first.data).settings):
        text += f"\n\n### Beside the other atlas\n\n{agreement(atlas, read(first.data))}"
    return text


def written(source: Source) -> str:
    """Return an atlas's page with its tables put in."""
    before, _, rest = source.page.read_text().partition("<!-- tables -->\n")
    after = rest.partition("<!-- end -->")[2]
    return f"{before}<!-- tables -->\n\n{shown(source)}\n\n<!-- end -->{after}"


def main() -> None:
    """Collect, or write the page's tables and the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collect", type=Path, help="folder of the comparison")
    chosen = parser.parse_args()
    if chosen.collect:
        collect(chosen.collect, ATLASES[chosen.collect.name].data)
        return
    for source in ATLASES.values():
        if source.data.exists():
            source.page.write_text(written(source))
            draw(read(source.data), source.picture)


if __name__ == "__main__":
    main()
