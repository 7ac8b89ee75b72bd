"""Errors and runs of ``flsel choose``, simulated with its functions on the spreads of committed atlases.

    python benchmarks/choosing.py [--repetitions 2000]   # table of races, Markdown
    python benchmarks/choosing.py --calibrate             # quantiles of the bounds

A scenario's variants have their committed means, and normal noise with their committed standard deviations
around the noise that all variants of a seed share. The share of runs is of 30 seeds for every variant.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pages import markdown, options

from flsel.choosing.race import DEFAULT_MAX_SEEDS, Race, half_width, looks, pairs_of, pooled_spread

DATA = Path(__file__).resolve().parents[1] / "docs/results/data"
ATLASES = {
    "Synthetic(0.5, 0.5)": ("atlas_synthetic", "catalogue_synthetic"),
    "Fashion-MNIST": ("atlas_fashion", "catalogue_fashion"),
}
REFERENCE = 30
"""Seeds for every variant, of whose runs a race takes a share."""
AT_ONCE = 500
Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw normal noise with sd one."""
    return rng.standard_normal(shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw noise of Student's t with 3 degrees of freedom, with sd one."""
    return rng.standard_t(3, shape) / np.sqrt(3)


@dataclass(frozen=True)
class Scenario:
    """One scenario of an atlas: points of accuracy of its variants.

    Attributes:
        means: Of each variant, ``[k]``.
        spreads: Standard deviation of each without what a seed's variants share, ``[k]``.
        shared: Standard deviation of what they share.
    """

    means: np.ndarray
    spreads: np.ndarray
    shared: float

    def draw(self, rng: np.random.Generator, races: int, seeds: int, noise: Noise) -> np.ndarray:
        """Draw values ``[races, k, seeds]``."""
        own = self.spreads[:, None] * noise(rng, (races, len(self.means), seeds))
        return self.means[:, None] + own + self.shared * rng.standard_normal((races, 1, seeds))


def scenarios(names: tuple[str, ...]) -> Iterator[Scenario]:
    """Estimate the scenarios of two atlases that have different selectors; Uniform is the first one's."""
    cells = dict[tuple[str, str], dict[str, dict[str, float]]]()
    for at, name in enumerate(names):
        with (DATA / f"{name}.csv").open() as file:
            for row in csv.DictReader(file):
                if at == 0 or row["selector"] != "Uniform":
                    runs = cells.setdefault((row["partition"], row["availability"]), {})
                    runs.setdefault(row["selector"], {})[row["seed"]] = 100 * float(row["accuracy"])
    for runs in cells.values():
        seeds = sorted({seed for values in runs.values() for seed in values})
        values = np.array([[found.get(seed, np.nan) for seed in seeds] for found in runs.values()])
        means = np.nanmean(values, axis=1)
        rest = values - means[:, None]
        shared = np.nanmean(rest, axis=0)
        count = (~np.isnan(values)).sum(axis=1)
        spreads = np.sqrt(np.nansum((rest - shared) ** 2, axis=1) / (count - 1))
        yield Scenario(means, spreads, float(shared.std(ddof=1)))


def collapsing(scenario: Scenario, rng: np.random.Generator, values: np.ndarray) -> Scenario:
    """Let the best variant lose ten standard deviations in a tenth of the seeds; return the new means."""
    best = int(scenario.means.argmax())
    depth = 10 * scenario.spreads[best]
    values[:, best] -= depth * (rng.random((len(values), values.shape[2])) < 0.1)
    means = scenario.means.copy()
    means[best] -= 0.1 * depth
    return Scenario(means, scenario.spreads, scenario.shared)


@dataclass(frozen=True)
class Outcome:
    """What became of races, each ``[races]``: shares and truths."""

    share: np.ndarray
    good: np.ndarray
    decided: np.ndarray
    false_set: np.ndarray
    covered: np.ndarray


def judge(means: np.ndarray, values: np.ndarray, margin: float) -> Outcome:
    """Run races on values, and compare what they say with the truth."""
    race = Race(values.shape[:2], margin)
    for n in looks(values.shape[2]):
        race.look(n, values)
        if race.over.all():
            break
    good = means >= means.max() - margin
    found = race.against_leader(values)
    truth = means[None] - means[race.leader][:, None]
    covered = ((found[1] - 1e-9 <= truth) & (truth <= found[2] + 1e-9)).all(axis=1)
    return Outcome(
        race.seeds.sum(axis=1) / (REFERENCE * len(means)),
        good[race.leader],
        race.decided,
        (race.equivalent & ~good).any(axis=1),
        covered,
    )


def simulate(
    scenario: Scenario, margin: float, noise: Noise, repetitions: int, *, collapse: bool = False
) -> Outcome:
    """Run many races in a scenario."""
    rng, parts = np.random.default_rng(1), list[Outcome]()
    for start in range(0, repetitions, AT_ONCE):
        races = min(AT_ONCE, repetitions - start)
        values = scenario.draw(rng, races, DEFAULT_MAX_SEEDS, noise)
        truth = collapsing(scenario, rng, values) if collapse else scenario
        parts.append(judge(truth.means, values, margin))
    return Outcome(
        *(np.concatenate(column) for column in zip(*(vars(p).values() for p in parts), strict=True))
    )


LAWS: dict[str, tuple[Noise, bool, bool]] = {
    "normal": (normal, False, False),
    "normal, equal spreads": (normal, True, False),
    "t with 3 degrees of freedom": (heavy, False, False),
    "the best collapses in 10 % of seeds": (normal, False, True),
}


def table(repetitions: int) -> str:
    """Return the table of races."""
    body = []
    for atlas, names in ATLASES.items():
        found = list(scenarios(names))
        for law, (noise, equal, collapse) in LAWS.items():
            for margin in (1.0, 2.0):
                outcomes = []
                for one in found:
                    spread = np.full_like(one.spreads, np.sqrt((one.spreads**2).mean()))
                    drawn = Scenario(one.means, spread, one.shared) if equal else one
                    outcomes.append(simulate(drawn, margin, noise, repetitions, collapse=collapse))
                wrong = max(float((o.decided & ~o.good).mean()) for o in outcomes)
                body.append([
                    atlas, law, f"{margin:g}",
                    f"{np.mean([o.share.mean() for o in outcomes]):.2f}",
                    f"{100 * min(o.good.mean() for o in outcomes):.1f}",
                    f"{100 * np.mean([o.decided.mean() for o in outcomes]):.0f}",
                    f"{100 * wrong:.1f}",
                    f"{100 * max(o.false_set.mean() for o in outcomes):.1f}",
                    f"{100 * min(o.covered.mean() for o in outcomes):.1f}",
                ])  # fmt: skip
                print(body[-1], flush=True)
    head = ["atlas", "noise", "margin", "share of runs", "good choice, %, worst", "decided, %",
            "decided and wrong, %, worst", "false equivalent, %, worst", "bounds true, %, worst"]  # fmt: skip
    return markdown(head, body)


def passed_best(spreads: np.ndarray, repetitions: int) -> float:
    """Return the normal quantile that the best is passed at in 5 % of races with equal means.

    Args:
        spreads: Standard deviations, ``[repetitions or 1, k, 1]``; the first variant is the best.
        repetitions: Races.
    """
    rng, worst = np.random.default_rng(3), list[np.ndarray]()
    k = spreads.shape[1]
    for start in range(0, repetitions, AT_ONCE):
        part = spreads if len(spreads) == 1 else spreads[start : start + AT_ONCE]
        values = part * rng.standard_normal((AT_ONCE, k, DEFAULT_MAX_SEEDS))
        found = np.full(AT_ONCE, -np.inf)
        spread = None
        for n in looks(DEFAULT_MAX_SEEDS):
            pairs = pairs_of(values[:, :, :n])
            spread = spread or pooled_spread(pairs.variance, np.ones((AT_ONCE, k), bool), n)
            found = np.maximum(found, _reached(pairs, spread))
        worst.append(found)
    return float(np.quantile(np.concatenate(worst), 0.95))


def _reached(pairs, spread) -> np.ndarray:
    """Return the largest normal quantile of a difference to the first variant, by its Student's t."""
    from scipy import special

    weight = spread.weight[:, None]
    unit = half_width(pairs, spread, 1.0)[:, 0]
    freedom = weight + pairs.count[:, 0] - 1  # [races, 1]
    student = -special.stdtrit(freedom, special.ndtr(-1.0)) * pairs.mean[:, 0]
    with np.errstate(invalid="ignore"):
        normal_ = -special.ndtri(special.stdtr(freedom, -student / unit))
    normal_[:, 0] = -np.inf
    return normal_.max(axis=1)


def calibrate(repetitions: int) -> str:
    """Return the quantiles for some numbers of variants, whatever their spreads."""
    body = []
    for k in (2, 3, 5, 8, 12, 23, 40, 80):
        factors = {"equal": 1.0, "best half": 0.5, "best twice": 2.0, "best three times": 3.0}
        laws = {name: np.ones((1, k, 1)) for name in factors}
        for name, factor in factors.items():
            laws[name][0, 0] = factor
        laws["log-normal, 0.5"] = np.exp(np.random.default_rng(k).normal(0, 0.5, (repetitions, k, 1)))
        cells = {name: passed_best(spreads, repetitions) for name, spreads in laws.items()}
        used = max(cell for name, cell in cells.items() if name != "best three times")
        body.append([str(k), *(f"{cell:.2f}" for cell in cells.values()), f"{used:.2f}"])
        print(body[-1], flush=True)
    return markdown(["variants", *laws, "without three times: used"], body)


def main() -> None:
    """Print a table."""
    parser = options(__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--calibrate", action="store_true")
    given = parser.parse_args()
    print((calibrate if given.calibrate else table)(given.repetitions))


if __name__ == "__main__":
    main()
