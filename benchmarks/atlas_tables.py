"""An atlas's tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from atlas_runs import BASE, Atlas
from pages import markdown, read_rows
from scipy import stats

from flsel.comparison.judging.estimates import holm
from flsel.comparison.judging.ranks import rank

SKEWED = ("Dirichlet 0.1", "2SPC", "1SPC", "HiCS mix")
DRAWS = 2000


def tables(atlas: Atlas) -> str:
    """Return all tables in Markdown."""
    families: dict[str, Callable[[tuple[str, str]], bool]] = {
        "all": lambda s: True,
        "skewed labels": lambda s: s[0] in SKEWED,
        "mild partitions": lambda s: s[0] not in SKEWED,
        "all clients available": lambda s: s[1] == "IDL",
        "clients unavailable": lambda s: s[1] != "IDL",
    }
    parts = [
        ("Difference to Uniform over all scenarios", overall(atlas)),
        ("Mean ranks by family of scenarios, 1 is best", ranks(atlas, families)),
        ("Gain over Uniform by partition", effects(atlas, 0)),
        ("Gain over Uniform by availability", effects(atlas, 1)),
        ("Gain over Uniform in every scenario", cells(atlas)),
    ]
    return "\n\n".join(f"### {title}\n\n{table}" for title, table in parts)


def overall(atlas: Atlas) -> str:
    """Return differences with bootstrap intervals over scenarios, and the chance to be ahead of Uniform."""
    draws = _resampled(atlas)
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
    return markdown(head, rows)


def _resampled(atlas: Atlas) -> np.ndarray:
    """Draw scenarios with replacement, ``[draws, scenarios]``: the same for every table."""
    return np.random.default_rng(0).integers(0, len(atlas.scenarios), (DRAWS, len(atlas.scenarios)))


def _bounds(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    bounds: np.ndarray = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return bounds


def _interval(values: np.ndarray, draws: np.ndarray, form: str) -> str:
    low, high = _bounds(values, draws)
    return f"{form} [{form}, {form}]".format(values.mean(), low, high)


def _ratio(atlas: Atlas, name: str, k: int, draws: np.ndarray) -> str:
    """Return the geometric mean of the ratios to the baseline; runs that never arrive count as their end."""
    values = atlas.values[name]
    base = values[..., atlas.selectors.index(BASE)]
    logs = np.nanmean(np.log(values[..., k] / base), axis=1)
    low, high = np.quantile(logs[draws].mean(axis=1), [0.025, 0.975])
    return f"{np.exp(logs.mean()):.2f} [{np.exp(low):.2f}, {np.exp(high):.2f}]"


def ranks(atlas: Atlas, families: dict[str, Callable[[tuple[str, str]], bool]]) -> str:
    """Return mean ranks over the seeds that all runs have, and the critical difference of each family."""
    scores = atlas.values["accuracy"]
    found = {}
    for name, inside in families.items():
        rows = scores[[inside(scenario) for scenario in atlas.scenarios]]
        if len(rows) > 1 and (name == "all" or len(rows) < len(scores)):
            whole = ~np.isnan(rows).any(axis=(0, 2))
            found[name] = rank(rows[:, whole].transpose(1, 0, 2))
    order = np.argsort(found["all"].mean_ranks)
    body = [[atlas.selectors[k], *(f"{r.mean_ranks[k]:.1f}" for r in found.values())] for k in order]
    body.append(["critical difference", *(f"{r.critical_difference:.1f}" for r in found.values())])
    body.append(["p", *(f"{r.p:.2g}" for r in found.values())])
    return markdown(["selector", *(f"{name} ({r.scenarios})" for name, r in found.items())], body)


def effects(atlas: Atlas, factor: int) -> str:
    """Return main effects by least squares: gain = partition + mode, both sum to their means."""
    gains, levels = atlas.gains(), [list(dict.fromkeys(s[f] for s in atlas.scenarios)) for f in (0, 1)]
    columns = [[float(s[f] == name) for s in atlas.scenarios] for f in (0, 1) for name in levels[f]]
    design = np.array(columns).T
    solution = np.linalg.lstsq(design, gains, rcond=None)[0]
    first = solution[: len(levels[0])]
    second = solution[len(levels[0]) :]
    own, other = (first, second) if factor == 0 else (second, first)
    adjusted = own + other.mean(axis=0)
    freedom = len(atlas.scenarios) - np.linalg.matrix_rank(design)
    rest = np.sqrt(((gains - design @ solution) ** 2).sum(axis=0) / max(freedom, 1))
    order = [k for k in np.argsort(-gains.mean(axis=0)) if atlas.selectors[k] != BASE]
    body = [
        [atlas.selectors[k], *(f"{value:+.1f}" for value in adjusted[:, k]), f"{rest[k]:.1f}"] for k in order
    ]
    return markdown(["selector", *levels[factor], "not explained"], body)


def cells(atlas: Atlas) -> str:
    """Return the gain of every selector in every scenario."""
    gains = atlas.gains()
    others = [k for k in np.argsort(-gains.mean(axis=0)) if atlas.selectors[k] != BASE]
    base = 100 * np.nanmean(atlas.values["accuracy"][..., atlas.selectors.index(BASE)], axis=1)
    body = [
        [f"{partition}, {mode}", str(len(seeds)), f"{level:.1f}", *(f"{row[k]:+.1f}" for k in others)]
        for (partition, mode), seeds, level, row in zip(
            atlas.scenarios, atlas.seeds, base, gains, strict=True
        )
    ]
    return markdown(["scenario", "seeds", BASE, *(atlas.selectors[k] for k in others)], body)


def agreement(ours: Atlas, other: Atlas) -> str:
    """Return each selector's gain in two atlases, and in how many shared scenarios the sides are the same."""
    rng = np.random.default_rng(0)
    shared = [s for s in ours.scenarios if s in other.scenarios]
    pairs = [
        atlas.gains()[[atlas.scenarios.index(s) for s in shared]][
            :, [atlas.selectors.index(k) for k in names]
        ]
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
    return markdown(["selector", "here", "Synthetic(0.5, 0.5)", f"same sign, of {len(shared)}"], body)


def together(atlases: Sequence[tuple[str, Atlas]]) -> str:
    """Return each selector's gain in every atlas, by title, and how many intervals are above zero."""
    body = []
    for selector in atlases[0][1].selectors:
        gains = [atlas.gains()[:, atlas.selectors.index(selector)] for _, atlas in atlases]
        draws = [_resampled(atlas) for _, atlas in atlases]
        shown = [_interval(g, d, "{:+.1f}") for g, d in zip(gains, draws, strict=True)]
        above = sum(_bounds(g, d)[0] > 0 for g, d in zip(gains, draws, strict=True))
        mean = float(np.mean([g.mean() for g in gains]))
        body.append((mean, [selector, *shown, f"{above} of {len(atlases)}"]))
    body.sort(key=lambda row: -row[0])
    head = ["selector", *(title for title, _ in atlases), "intervals above zero"]
    return markdown(head, [row for _, row in body if row[0] != BASE])


def named(atlas: Atlas) -> str:
    """Return each selector's difference to Uniform over the scenarios, and who is ahead after correction."""
    gains, others = atlas.gains(), [k for k in range(len(atlas.selectors)) if atlas.selectors[k] != BASE]
    found = {k: stats.ttest_1samp(gains[:, k], 0.0) for k in others}
    corrected = dict(zip(others, holm([float(found[k].pvalue) for k in others]), strict=True))
    rows = []
    for k in sorted(others, key=lambda k: -gains[:, k].mean()):
        mean, (low, high) = gains[:, k].mean(), found[k].confidence_interval(0.95)
        ahead = "yes" if mean > 0 and corrected[k] < 0.05 else "no"
        shown = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
        rows.append([atlas.selectors[k], shown, f"{corrected[k]:.2g}", ahead])
    return markdown(["selector", "difference to Uniform", "corrected p", "named"], rows)


def tuning(atlas: Atlas, path: Path) -> str:
    """Return the gains of defaults and of tuned selectors over Uniform, in points, in the scenarios tuned."""
    rows = read_rows(path)
    places = list(dict.fromkeys((row["partition"], row["availability"]) for row in rows))
    body = []
    for selector in dict.fromkeys(row["selector"] for row in rows):
        cells, changes = [], []
        for place in places:
            tuned = [
                r for r in rows if (r["partition"], r["availability"], r["selector"]) == (*place, selector)
            ]
            found = atlas.values["accuracy"][atlas.scenarios.index(place)]
            seeds = [atlas.all_seeds.index(int(row["seed"])) for row in tuned]
            base, plain = (found[seeds, atlas.selectors.index(name)] for name in (BASE, selector))
            ours = np.array([float(row["accuracy"]) for row in tuned])
            cells.append(f"{100 * (plain - base).mean():+.1f} / {100 * (ours - base).mean():+.1f}")
            changes.append(100 * (ours - plain))
        means = np.concatenate(changes)
        half = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
        body.append([selector, *cells, f"{means.mean():+.1f} ± {half:.1f}"])
    return markdown(["selector", *(", ".join(place) for place in places), "tuned minus default"], body)
