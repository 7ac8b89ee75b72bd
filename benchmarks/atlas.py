"""Which selector where? The atlas's tables and picture from its comparison's runs.

    python benchmarks/atlas.py --collect comparisons/atlas_synthetic   # runs -> docs/results/data
    python benchmarks/atlas.py                                         # docs/results/data -> atlas.md

The tables are made of the committed file alone; a test compares them with the page.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flsel.comparison.judging.arrival import first_at
from flsel.comparison.judging.ranking import rank

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs/results/data/atlas_synthetic.csv"
PAGE = ROOT / "docs/results/atlas.md"
PICTURE = ROOT / "docs/results/images/atlas.png"
MEASURES = ("accuracy", "cheap", "worst", "rounds", "bytes", "passes")
"""Test accuracy: at the end, after half of Uniform's bytes, of the worst tenth; then costs to the target."""
LAST = 5
CHANCE = 0.1
BASE = "Uniform"
SKEWED = ("Dirichlet 0.1", "2SPC", "1SPC", "HiCS mix")
DRAWS = 2000


def collect(folder: Path, path: Path) -> None:
    """Write the file of measurements: a row a run, of every setting and seed that all selectors played."""
    from flsel.comparison.drive import read_declaration

    grid, judging, _ = read_declaration(folder)
    assert judging.target is not None
    runs = {(c.setting, c.seed, c.variant): folder / c.folder for c in grid.cells()}
    done = {cell: place for cell, place in runs.items() if (place / "summary.json").exists()}
    whole = [
        (setting.name, seed)
        for setting in grid.settings
        for seed in grid.seeds
        if all((setting.name, seed, variant.name) in done for variant in grid.variants)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["partition", "availability", "seed", "selector", *MEASURES])
        for setting, seed in whole:
            budget = _metrics(done[setting, seed, BASE])["bytes"][-1] / 2
            for variant in grid.variants:
                metrics = _metrics(done[setting, seed, variant.name])
                numbers = [f"{value:.6g}" for value in _measured(metrics, judging.target, budget)]
                table.writerow([*setting.split(", "), seed, variant.name, *numbers])


def _metrics(folder: Path) -> dict[str, np.ndarray]:
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    return {**columns, "bytes": columns["ledger/bytes_down"] + columns["ledger/bytes_up"]}


def _measured(metrics: dict[str, np.ndarray], target: float, budget: float) -> list[float]:
    """Return what :data:`MEASURES` names; what asks for more than the budget at once counts as 0.1."""
    accuracy = metrics["test/accuracy"]
    within = accuracy[metrics["bytes"] <= budget][-LAST:]
    costs = [
        first_at(target, metrics[name], accuracy, LAST).at for name in ("round", "bytes", "ledger/passes")
    ]
    cheap = float(within.mean()) if len(within) else CHANCE
    return [float(accuracy[-LAST:].mean()), cheap, _last(metrics["client/accuracy_worst10"]), *costs]


def _last(values: np.ndarray) -> float:
    return float(values[-LAST:].mean())


@dataclass(frozen=True)
class Atlas:
    """The measurements.

    Attributes:
        selectors: Their names.
        settings: Partition and mode of each.
        seeds: Of each setting.
        values: By measure, ``[settings, seeds, selectors]``; NaN where a seed is missing.
    """

    selectors: list[str]
    settings: list[tuple[str, str]]
    seeds: list[list[int]]
    values: dict[str, np.ndarray]

    def gains(self, measure: str = "accuracy") -> np.ndarray:
        """Return the difference to the baseline in points, mean over seeds, ``[settings, selectors]``."""
        values = self.values[measure]
        base = values[..., self.selectors.index(BASE), None]
        means: np.ndarray = 100 * np.nanmean(values - base, axis=1)
        return means


def read(path: Path = DATA) -> Atlas:
    """Read the file of measurements."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    selectors = list(dict.fromkeys(row["selector"] for row in rows))
    settings = list(dict.fromkeys((row["partition"], row["availability"]) for row in rows))
    seeds = sorted({int(row["seed"]) for row in rows})
    values = {name: np.full((len(settings), len(seeds), len(selectors)), np.nan) for name in MEASURES}
    for row in rows:
        setting = settings.index((row["partition"], row["availability"]))
        place = setting, seeds.index(int(row["seed"])), selectors.index(row["selector"])
        for name in MEASURES:
            values[name][place] = float(row[name])
    had = [
        sorted({int(r["seed"]) for r in rows if (r["partition"], r["availability"]) == s}) for s in settings
    ]
    return Atlas(selectors, settings, had, values)


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
        if len(rows) > 1:
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


def draw(atlas: Atlas, path: Path = PICTURE) -> None:
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
        axes.text(column, row, f"{value:+.0f}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, label="points above Uniform")
    save_figure(figure, path)


def main() -> None:
    """Collect, or write the page's tables and the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collect", type=Path, help="folder of the comparison")
    parser.add_argument("--data", type=Path, default=DATA)
    chosen = parser.parse_args()
    if chosen.collect:
        collect(chosen.collect, chosen.data)
        return
    atlas = read(chosen.data)
    before, _, rest = PAGE.read_text().partition("<!-- tables -->\n")
    after = rest.partition("<!-- end -->")[2]
    PAGE.write_text(f"{before}<!-- tables -->\n\n{tables(atlas)}\n\n<!-- end -->{after}")
    draw(atlas)


if __name__ == "__main__":
    main()
