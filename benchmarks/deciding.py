"""Errors and seeds of ``flsel compare``, until decided and by fixed designs, simulated with its functions.

    python benchmarks/deciding.py [--repetitions 10000] [--comparisons 1,3,6,11]

Prints a table of false claims of the whole family, for differences that are normal, heavy-tailed,
discrete and skewed, a table of expected seeds, one of false and of wrongly directed claims after a fixed
number of seeds, and one of costs to a target that some runs never reach. It takes minutes. With
``--comparisons ""`` it prints the last one alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from flsel.comparison.judging.decisions import decide, judge_looks
from flsel.comparison.judging.designs import Design
from flsel.comparison.judging.estimates import holm, mean_p_value
from flsel.comparison.judging.power import expected, fixed_seeds

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
MAXIMUM = 30
FIXED = (5, 8, 12)
EXAMPLES = 3.0  # test examples in one standard deviation of discrete differences


def shared(values: np.ndarray) -> np.ndarray:
    """Return differences to the last row, which is the baseline of all others, with sd one."""
    return np.asarray((values[:, :-1] - values[:, -1:]) / np.sqrt(2))


def normal(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw normal results."""
    return shared(rng.standard_normal((runs, variants + 1, MAXIMUM)))


def heavy(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw results of Student's t with 3 degrees of freedom."""
    return shared(rng.standard_t(3, (runs, variants + 1, MAXIMUM)) / np.sqrt(3))


def discrete(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw accuracies on few test examples."""
    return np.asarray(np.round(normal(rng, runs, variants) * EXAMPLES) / EXAMPLES)


def skewed_variant(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw variants that collapse in some seeds, and a normal baseline."""
    tails = -_lognormal(rng, (runs, variants, MAXIMUM))
    return np.asarray((tails - rng.standard_normal((runs, 1, MAXIMUM))) / np.sqrt(2))


def skewed(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw differences that are log-normal themselves."""
    return -_lognormal(rng, (runs, variants, MAXIMUM))


def _lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    tail = rng.lognormal(0.0, 0.8, shape)
    return np.asarray((tail - np.exp(0.32)) / np.sqrt((np.exp(0.64) - 1) * np.exp(0.64)))


LAWS: dict[str, tuple[Draw, float]] = {
    "normal": (normal, 0.0),
    "t with 3 degrees of freedom": (heavy, 0.0),
    "accuracies on few test examples": (discrete, 1 / EXAMPLES),
    "variants that collapse in some seeds": (skewed_variant, 0.0),
    "log-normal differences": (skewed, 0.0),
}


def errors(draw: Draw, resolution: float, variants: int, runs: int) -> list[float]:
    """Return false claims of a family in per cent: no margin, margin 1 with effect 0, and with effect 1."""
    sample = draw(np.random.default_rng(variants), runs, variants)
    found = []
    for effect, margin in ((0.0, None), (0.0, 1.0), (1.0, 1.0)):
        design, false = Design(variants, MAXIMUM, margin), np.zeros(runs, dtype=bool)
        for at in range(variants):
            judged = judge_looks(effect + sample[:, at], design, resolution=resolution)
            claims = judged.claim[np.arange(runs), judged.stops()]
            false |= np.isin(claims, (0, 1) if effect == 0 else (1, 2))
        found.append(100 * float(false.mean()))
    return found


def fixed_errors(draw: Draw, variants: int, seeds: int, runs: int) -> list[float]:
    """Return families in per cent with a false claim, and with a wrong direction where effects are 1 sd."""
    sample = draw(np.random.default_rng(variants), runs, variants)[:, :, :seeds]
    false = [min(holm([mean_p_value(x) for x in family])) <= 0.05 for family in sample]
    wrong = []
    for family in sample + 1.0:
        corrected = holm([mean_p_value(x) for x in family])
        wrong.append(any(p <= 0.05 and x.mean() < 0 for p, x in zip(corrected, family, strict=True)))
    return [100 * float(np.mean(found)) for found in (false, wrong)]


def late_costs(share: float, factor: float, runs: int) -> tuple[list[float], float]:
    """Return what is decided about costs to a target where runs are late, one comparison without a margin.

    Logarithms of costs are normal, with a standard deviation of 0.3 and a correlation of 0.5 in a pair.

    Args:
        share: Share of the variant's runs that never arrive.
        factor: Cost of the variant, in multiples of the baseline's.
        runs: Repetitions.

    Returns:
        Claims in per cent (better, worse), and the mean number of seeds.
    """
    rng = np.random.default_rng(1)
    common = rng.standard_normal((runs, MAXIMUM))
    theirs, ours = (0.3 * (common + rng.standard_normal((runs, MAXIMUM))) / np.sqrt(2) for _ in range(2))
    ours = ours + np.log(factor)
    end = np.quantile(ours, 1 - share) if share else np.inf
    found = []
    for mine, yours in zip(ours, theirs, strict=True):
        counts = (mine <= end) | (yours <= end)
        low = np.where(mine <= end, np.minimum(yours, end) - mine, -np.inf)[counts]
        high = np.where(yours <= end, yours - np.minimum(mine, end), np.inf)[counts]
        found.append(decide(low, Design(1, MAXIMUM), upper=high))
    shares = [
        100 * float(np.mean([decision.claim == kind for decision in found])) for kind in ("better", "worse")
    ]
    return shares, float(np.mean([decision.n for decision in found]))


def print_late(runs: int) -> None:
    """Print the table of costs to a target."""
    shares = (0.0, 0.2, 0.4, 0.6, 0.8)
    print("\nCosts to a target, m = 1, no margin, by the share of the variant's runs that never arrive\n")
    print("| | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |")
    print("|---" * (len(shares) + 1) + "|")
    same = [sum(late_costs(share, 1.0, runs)[0]) for share in shares]
    print("| same law: false claims, % | " + " | ".join(f"{x:.1f}" for x in same) + " |")
    slower = [late_costs(share, 1.5, runs) for share in shares]
    cells = [f"{worse:.1f} / {better:.1f}, {seeds:.1f}" for (better, worse), seeds in slower]
    print("| 1.5 x: worse / better, %, seeds | " + " | ".join(cells) + " |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=10_000)
    parser.add_argument("--comparisons", default="1,3,6,11")
    given = parser.parse_args()
    families = [int(number) for number in given.comparisons.split(",") if number]
    print_late(given.repetitions)
    if not families:
        return
    print("\nAny false claim, %: nothing differs, no margin / margin 1 sd / all variants at the margin\n")
    print("| differences | " + " | ".join(f"m = {m}" for m in families) + " |")
    print("|---" * (len(families) + 1) + "|")
    for name, (draw, resolution) in LAWS.items():
        cells = [errors(draw, resolution, m, given.repetitions) for m in families]
        print(f"| {name} | " + " | ".join(" / ".join(f"{x:.1f}" for x in cell) for cell in cells) + " |")
    print("\nOne variant, normal, margin 1 sd: seeds (better / equivalent / open, %), fixed design\n")
    print("| effect, sd | " + " | ".join(f"m = {m}" for m in families) + " |")
    print("|---" * (len(families) + 1) + "|")
    for effect in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0):
        texts = []
        for m in families:
            design = Design(m, MAXIMUM, 1.0)
            e = expected(effect, 1.0, design, given.repetitions)
            shares = "/".join(f"{100 * share:.0f}" for share in (e.better, e.equivalent, e.open))
            texts.append(f"{e.seeds:.1f} ({shares}), {fixed_seeds(effect, design, 1.0)}")
        print(f"| {effect:g} | " + " | ".join(texts) + " |")
    print("\nFixed designs, Holm: any false claim / any wrong direction at effects of 1 sd, %\n")
    columns = [(m, n) for m in families for n in FIXED]
    print("| differences | " + " | ".join(f"m = {m}, n = {n}" for m, n in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, (draw, _) in LAWS.items():
        cells = [fixed_errors(draw, m, n, given.repetitions // 10) for m, n in columns]
        print(f"| {name} | " + " | ".join(" / ".join(f"{x:.1f}" for x in cell) for cell in cells) + " |")


if __name__ == "__main__":
    main()
