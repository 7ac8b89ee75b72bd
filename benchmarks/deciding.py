"""Errors, coverage and power of ``flsel compare``, simulated with the functions that judge.

    python benchmarks/deciding.py [--repetitions 5000] [--parts laws,costs,divergence,coverage,power]
    python benchmarks/deciding.py --quick      # a cell of each table, in a minute

Prints Markdown tables: false claims of a family for laws whose mean is zero; claims about costs to a target
that some runs never reach; claims where runs diverge; coverage of the intervals beside verdicts; how true the
sentences about power are; ranks under noise that scenarios share; and expected seeds.
``benchmarks/run.py deciding`` keeps them in ``results.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from measure import add_options

from flsel.comparison.judging.claims import Evidence, mcnemar
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.decisions import Withheld, judge_looks
from flsel.comparison.judging.designs import ACCURACY, Design
from flsel.comparison.judging.estimates import moments, p_values
from flsel.comparison.judging.families import level_of_counts, step_down
from flsel.comparison.judging.power import expected, fixed_seeds, resolvable, seeds_needed
from flsel.comparison.judging.ranks import rank

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
MAXIMUM = 30
FIXED = (5, 10)
EXAMPLES = 3.0  # test examples in one standard deviation of discrete differences


def normal(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw normal results that share a baseline."""
    return _against(rng.standard_normal((runs, variants + 1, MAXIMUM)))


def heavy(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw results of Student's t with 3 degrees of freedom."""
    return _against(rng.standard_t(3, (runs, variants + 1, MAXIMUM)) / np.sqrt(3))


def unequal(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw variants whose spread is three times the baseline's."""
    draws = rng.standard_normal((runs, variants + 1, MAXIMUM))
    draws[:, :-1] *= 3
    return _against(draws)


def correlated(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw results of which seeds share 90 %."""
    common = rng.standard_normal((runs, 1, MAXIMUM))
    return _against(np.sqrt(0.9) * common + np.sqrt(0.1) * rng.standard_normal((runs, variants + 1, MAXIMUM)))


def discrete(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw accuracies on few test examples."""
    return np.asarray(np.round(normal(rng, runs, variants) * EXAMPLES) / EXAMPLES)


def skewed(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
    """Draw differences that are log-normal themselves, sigma 0.8."""
    tail = rng.lognormal(0.0, 0.8, (runs, variants, MAXIMUM))
    return -np.asarray((tail - np.exp(0.32)) / np.sqrt((np.exp(0.64) - 1) * np.exp(0.64)))


def collapsing(share: float, depth: float, *, both: bool = False) -> Draw:
    """Draw variants that collapse in a share of seeds by so many standard deviations, with mean zero.

    Args:
        share: Share of seeds.
        depth: Standard deviations.
        both: Whether the baseline does likewise.
    """

    def draw(rng: np.random.Generator, runs: int, variants: int) -> np.ndarray:
        results = rng.standard_normal((runs, variants + 1, MAXIMUM))
        fallen = depth * (share - (rng.random(results.shape) < share))
        fallen[:, -1] *= both
        return _against(results + fallen)

    return draw


def _against(results: np.ndarray) -> np.ndarray:
    """Return differences to the last row, which is the baseline of all others."""
    return np.asarray(results[:, :-1] - results[:, -1:])


LAWS: dict[str, tuple[Draw, float, bool]] = {
    "normal": (normal, 0.0, True),
    "t with 3 degrees of freedom": (heavy, 0.0, True),
    "variants with 3 x the spread": (unequal, 0.0, True),
    "results that share 90 % of their noise": (correlated, 0.0, True),
    "accuracies on few test examples": (discrete, 1 / EXAMPLES, True),
    "the same collapse in both, 10 % of seeds by 10 sd": (collapsing(0.1, 10.0, both=True), 0.0, True),
    "log-normal differences": (skewed, 0.0, False),
    "variants collapse in 10 % of seeds by 10 sd": (collapsing(0.1, 10.0), 0.0, False),
    "variants collapse in 5 % of seeds by 10 sd": (collapsing(0.05, 10.0), 0.0, False),
    "variants collapse in 10 % of seeds by 20 sd": (collapsing(0.1, 20.0), 0.0, False),
    "variants collapse in 5 % of seeds by 20 sd": (collapsing(0.05, 20.0), 0.0, False),
}
"""By name the law, its resolution, and whether the condition of the guarantee holds."""


def fixed_errors(draw: Draw, resolution: float, variants: int, seeds: int, runs: int) -> float:
    """Return families in per cent with a false claim by one look, where nothing differs."""
    sample = draw(np.random.default_rng(variants), runs, variants)[:, :, :seeds].reshape(-1, seeds)
    p = p_values(*moments(sample, resolution), seeds).reshape(runs, variants)
    # Where all claims are false, Holm's first step decides whether any is made.
    return 100 * float((p.min(axis=1) <= 0.05 / variants).mean())


def looked_errors(draw: Draw, resolution: float, variants: int, runs: int, margin: float | None) -> float:
    """Return families in per cent with a false claim at any look: nothing differs, or all are at the "
    "margin."""
    sample, false = draw(np.random.default_rng(variants), runs, variants), np.zeros(runs, dtype=bool)
    for at in range(variants):
        judged = judge_looks(
            (margin or 0.0) + sample[:, at], Design(variants, MAXIMUM, margin), resolution=resolution
        )
        claims = judged.claim[np.arange(runs), judged.stops()]
        false |= np.isin(claims, (0, 1) if margin is None else (1, 2))
    return 100 * float(false.mean())


def laws(runs: int, *, quick: bool) -> Iterator[str]:
    """Write the table of false claims by law."""
    columns = [(m, n) for n in FIXED for m in (1, 3, 5)]
    looked = (1, 4, 10)
    yield (
        "False claims in %, where nothing differs in the mean: fixed numbers of seeds, and until decided "
        "(30 at most)."
    )
    yield (
        "In the last column all variants are at a margin of one sd of a result, and are called worse or "
        "equivalent.\n"
    )
    yield _head(
        "differences", *(f"{n} seeds, {m} variants" for m, n in columns),
        *(f"until decided, {m}" for m in looked), "at the margin, 4", "condition holds",
    )  # fmt: skip
    for name, (draw, resolution, holds) in list(LAWS.items())[: 1 if quick else None]:
        cells = [fixed_errors(draw, resolution, m, n, runs) for m, n in columns]
        cells += [looked_errors(draw, resolution, m, runs, None) for m in looked]
        cells.append(looked_errors(draw, resolution, 4, runs, 1.0))
        yield _row(name, *(f"{cell:.1f}" for cell in cells), "yes" if holds else "no")


def cost_claims(
    late: str, share: float, ratio: float, dearer: float, spread: float, seeds: int, runs: int
) -> tuple[float, float]:
    """Return claims about a cost to a target in per cent: better, and worse.

    A run arrives after a log-normal number of rounds (standard deviation 0.3, of the variant ``spread`` times
    that; correlation 0.5), or never, if that is beyond the rounds that it has.

    Args:
        late: Whose runs the share is of, if all runs have the same number of rounds; or ``own ends`` where
            each side has rounds of its own, by which the same share is late.
        share: Share of these runs that never arrive.
        ratio: True ratio of the costs, as a geometric mean.
        dearer: What a round of the variant costs, in multiples of the baseline's.
        spread: Standard deviation of the variant's logarithms, in multiples of the baseline's.
        seeds: Pairs of one look; 0 is until decided.
        runs: Repetitions.
    """
    rng, n = np.random.default_rng(1), seeds or MAXIMUM
    common = rng.standard_normal((runs, n))
    theirs, ours = (0.3 * (common + rng.standard_normal((runs, n))) / np.sqrt(2) for _ in range(2))
    ours = spread * ours + np.log(ratio / dearer)  # logarithms of rounds
    own = [np.quantile(x, 1 - share) if share else np.inf for x in (ours, theirs)]
    ends = {"the variant's": own[:1] * 2, "the baseline's": own[1:] * 2, "own ends": own}[late]
    arrived = [x <= end for x, end in zip((ours, theirs), ends, strict=True)]
    spent = [np.minimum(x, end) for x, end in zip((ours, theirs), ends, strict=True)]
    difference = spent[1] - spent[0] - np.log(dearer)
    low, high = np.where(arrived[0], difference, -np.inf), np.where(arrived[1], difference, np.inf)
    counts = arrived[0] | arrived[1]
    claims = np.full(runs, 3)
    silent = np.cumsum(~counts, axis=1)
    order = np.argsort(~counts, axis=1, kind="stable")  # pairs that say nothing are left out
    low, high, silent = (np.take_along_axis(x, order, axis=1) for x in (low, high, silent))
    for many in np.unique(counts.sum(axis=1)):
        rows = np.flatnonzero(counts.sum(axis=1) == many)
        if many < (5 if seeds else 6):
            continue
        design = Design.fixed(int(many), 1) if seeds else Design(1, MAXIMUM)
        judged = judge_looks(low[rows, :many], design, upper=high[rows, :many])
        looks = np.array(judged.looks)
        out = (np.full((len(rows), 1), n - many) if seeds else silent[rows][:, looks - 1]).astype(int)
        # From the first look on at which more than a third of the pairs say nothing, no direction is claimed.
        quiet = np.maximum.accumulate(3 * out > looks + out, axis=1)
        judged = replace(judged, claim=np.where(quiet & (judged.claim < 2), 4, judged.claim))
        claims[rows] = judged.claim[np.arange(len(rows)), judged.stops()]
    return 100 * float((claims == 0).mean()), 100 * float((claims == 1).mean())


def costs(runs: int, *, quick: bool) -> Iterator[str]:
    """Write the tables of claims about costs to a target."""
    shares = (0.0, 0.2, 0.4, 0.6, 0.8)
    yield (
        "Costs to a target, one variant, no margin: claims in % (better / worse) by the share of runs that "
        "never arrive."
    )
    yield (
        "At a ratio of 1 both are false, at 1.2 better is false. The last column is the largest share of "
        "false claims.\n"
    )
    yield _head(
        "ratio, cost of a round, spread", "seeds", "late", *(f"{100 * s:.0f} %" for s in shares), "most false"
    )
    cells = [(r, d, s, n) for r in (1.0, 1.2) for d in (1.0, 2.0) for s in (1.0, 2.0) for n in (6, 10, 20, 0)]
    for ratio, dearer, spread, seeds in cells[: 2 if quick else None]:
        for late in ("the variant's", "the baseline's", "own ends"):
            found = [cost_claims(late, share, ratio, dearer, spread, seeds, runs) for share in shares]
            false = [better + worse if ratio == 1 else better for better, worse in found]
            yield _row(
                f"{ratio:g} x, {dearer:g} : 1, {spread:g} : 1", str(seeds or "until decided"), late,
                *(f"{better:.1f} / {worse:.1f}" for better, worse in found), f"{max(false):.1f}",
            )  # fmt: skip


def _member(values: np.ndarray, margin: float | None = None) -> Evidence:
    ends, seeds = np.asarray(values), tuple(range(len(values)))
    return Evidence(
        variant="v", scenario="all", deciding=Deciding(ACCURACY, 1), seeds=seeds, lower=ends, upper=ends,
        margin=margin,
    )  # fmt: skip


def diverging(
    rates: tuple[float, float], effect: float, margin: float | None, runs: int
) -> tuple[float, float, float]:
    """Return false claims in per cent until decided: about the mean, about divergence, and any.

    Args:
        rates: Chances that a run of the variant, and of the baseline, diverges; runs do so independently.
        effect: True difference in standard deviations of a difference.
        margin: Half-width of practical equivalence, likewise; None claims none.
        runs: Repetitions.
    """
    rng, design = np.random.default_rng(2), Design(1, MAXIMUM, margin)
    values = effect + rng.standard_normal((runs, MAXIMUM))
    lost = rng.random((2, runs, MAXIMUM)) < np.array(rates)[:, None, None]
    whole = np.asarray(~lost.any(axis=0))
    order = np.argsort(~whole, axis=1, kind="stable")  # pairs of which a run diverged are left out
    values = np.take_along_axis(values, order, axis=1)
    mean, more, going = np.full(runs, 3), np.full(runs, 3), np.ones(runs, dtype=bool)
    for n in design.looks:
        ours, theirs = ((one & ~other)[:, :n].sum(axis=1) for one, other in (lost, lost[::-1]))
        kept = whole[:, :n].sum(axis=1)
        kinds = np.stack([kept, ours > 0, theirs > 0, kept < n], axis=1)
        for kind in np.unique(kinds[going], axis=0):
            rows = np.flatnonzero(going & (kinds == kind).all(axis=1))
            judged = judge_looks(values[rows, : kind[0]], design, withheld=Withheld(*kind[1:].tolist()))
            last = judged.stops() if judged.looks else np.zeros(len(rows), dtype=int)
            claims = judged.claim[np.arange(len(rows)), last] if judged.looks else np.full(len(rows), 4)
            ended = (claims != 4) | (n == MAXIMUM)
            for row, claim, at in zip(rows[ended], claims[ended], last[ended], strict=True):
                level = level_of_counts(design, judged.looks[at] if judged.looks else 0)
                mean[row] = claim
                if mcnemar(int(ours[row]), int(theirs[row])) <= level:
                    more[row] = 0 if ours[row] < theirs[row] else 1
            going[rows[ended]] = False
    true = [
        kind for kind, holds in enumerate((effect > 0, effect < 0, abs(effect) < (margin or 0.0))) if holds
    ]
    false = ~np.isin(mean, (*true, 3, 4))
    wrong = ~np.isin(more, (3, 0 if rates[0] < rates[1] else 3, 1 if rates[0] > rates[1] else 3))
    return tuple(100 * float(x.mean()) for x in (false, wrong, false | wrong))  # type: ignore[return-value]


def divergence(runs: int, *, quick: bool) -> Iterator[str]:
    """Write how often claims are false where runs of both sides diverge equally often."""
    yield (
        "Until decided (30 at most), one variant, normal differences, runs of both sides diverge equally "
        "often: false claims in %"
    )
    yield "about the mean, about which side diverges more often, and of either kind.\n"
    yield _head(
        "share of runs that diverge", "true difference, sd", "margin, sd", "mean", "divergence", "any"
    )
    cells = [(p, d, m) for p in (0.03, 0.1, 0.3) for d, m in ((0.0, None), (2.0, None), (1.0, 1.0))]
    for share, effect, margin in cells[: 1 if quick else None]:
        found = diverging((share, share), effect, margin, runs)
        yield _row(
            f"{100 * share:.0f} %", f"{effect:g}", "-" if margin is None else f"{margin:g}",
            *(f"{x:.1f}" for x in found),
        )  # fmt: skip


def coverage(runs: int, *, quick: bool) -> Iterator[str]:
    """Write how often the intervals beside the verdicts of a family cover all true differences together."""
    yield (
        "Intervals beside verdicts of a family of three, normal differences: all true differences covered, "
        "%, and"
    )
    yield "families with a false claim, %.\n"
    yield _head("true differences, sd", "seeds", "margin", "covered", "false claims")
    for effects in ((0.0, 0.0, 0.0), (0.0, 1.0, 2.0), (0.0, 0.0, 5.0), (1.0, 1.0, 1.0))[
        : 1 if quick else None
    ]:
        for n, margin in ((5, None), (10, None), (10, 1.0)):
            rng, covered, false = np.random.default_rng(n), 0, 0
            for _ in range(runs):
                sample = _against(rng.standard_normal((1, 4, n)))[0] / np.sqrt(2) + np.array(effects)[:, None]
                decided = step_down([_member(x, margin) for x in sample], 3)
                ends = [(d.looks[-1], d.claim, effect) for d, effect in zip(decided, effects, strict=True)]
                covered += all(
                    (e.inner_low <= x <= e.inner_high) if claim == "equivalent" else e.low <= x <= e.high
                    for e, claim, x in ends
                )
                false += any(
                    (claim == "better" and x <= 0) or (claim == "worse" and x >= 0)
                    or (claim == "equivalent" and abs(x) >= (margin or 0.0))
                    for _, claim, x in ends
                )  # fmt: skip
            yield _row(
                ", ".join(f"{x:g}" for x in effects), str(n), "-" if margin is None else f"{margin:g}",
                f"{100 * covered / runs:.1f}", f"{100 * false / runs:.1f}",
            )  # fmt: skip


def power(runs: int, *, quick: bool) -> Iterator[str]:
    """Write how often claims are made where the report promises 80 %."""
    yield (
        "Power in % where the report says 80 %, normal differences: 'n seeds give 80 % power for this "
        "difference', as the"
    )
    yield "pairs show it, found by as many new pairs; and 'takes about N seeds' for a true effect.\n"
    yield _head("comparisons", "5 seeds", "10 seeds", "20 seeds", "1 sd", "0.5 sd")
    for m in (1, 3, 6)[: 1 if quick else None]:
        cells, rng = [], np.random.default_rng(m)
        for n in (5, 10, 20):
            old, new = rng.standard_normal((2, runs, n))
            shift = np.array([resolvable(sample, m) for sample in old])
            cells.append((p_values(*moments(new + shift[:, None]), n) <= 0.05 / m).mean())
        for effect in (1.0, 0.5):
            needed = seeds_needed(effect + np.array([-1.0, 1.0]) / np.sqrt(2), m)
            n = (needed.value if needed is not None else None) or 1000
            sample = effect + rng.standard_normal((runs, n))
            cells.append((p_values(*moments(sample), n) <= 0.05 / m).mean())
        yield _row(str(m), *(f"{100 * float(cell):.1f}" for cell in cells))


def ranks(runs: int, *, quick: bool) -> Iterator[str]:
    """Write how often ranks over nine scenarios call a variant best though none differs."""
    yield (
        "Ranks over nine scenarios, five seeds, no variant differs: the best variant is called "
        "significantly best, %, by"
    )
    yield "the share of noise that the scenarios of a seed have in common.\n"
    shares = (0.0, 0.25, 0.75)
    yield _head("variants", *(f"{100 * share:.0f} %" for share in shares))
    for k in (3, 6, 12)[: 1 if quick else None]:
        cells = []
        for share in shares:
            rng, best = np.random.default_rng(k), 0
            for _ in range(runs // 10):
                common = np.sqrt(share) * rng.standard_normal((5, 1, k))
                found = rank(common + np.sqrt(1 - share) * rng.standard_normal((5, 9, k)))
                first, second = np.sort(found.mean_ranks)[:2]
                best += bool(second - first > found.critical_difference and found.p <= 0.05)
            cells.append(f"{100 * best / (runs // 10):.1f}")
        yield _row(str(k), *cells)


def seeds(runs: int, *, quick: bool) -> Iterator[str]:
    """Write the seeds that claims take."""
    families = (1, 3, 6, 11)[: 1 if quick else None]
    yield (
        "One variant, normal differences, margin 1 sd, at most 30 seeds: expected seeds (better / "
        "equivalent / open, %), and"
    )
    yield "the fixed design with 80 % power.\n"
    yield _head("effect, sd", *(f"{m} comparisons" for m in families))
    for effect in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0):
        texts = []
        for m in families:
            design = Design(m, MAXIMUM, 1.0)
            e = expected(effect, 1.0, design, runs)
            shares = "/".join(f"{100 * share:.0f}" for share in (e.better, e.equivalent, e.open))
            texts.append(f"{e.seeds:.1f} ({shares}), {fixed_seeds(effect, design, 1.0)}")
        yield _row(f"{effect:g}", *texts)


def _head(*cells: str) -> str:
    return f"{_row(*cells)}\n{'|---' * len(cells)}|"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


PARTS: dict[str, Callable[..., Iterator[str]]] = {
    "laws": laws, "costs": costs, "divergence": divergence, "coverage": coverage, "power": power,
    "ranks": ranks, "seeds": seeds,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5000)
    parser.add_argument("--parts", default=",".join(PARTS))
    add_options(parser)
    given = parser.parse_args(arguments)
    runs = min(given.repetitions, 1000) if given.quick else given.repetitions
    print(
        f"{runs:,} repetitions; one standard error of 5 % is {100 * (0.05 * 0.95 / runs) ** 0.5:.1f} points."
    )
    for name in given.parts.split(","):
        print()
        for line in PARTS[name](runs, quick=given.quick):
            print(line, flush=True)


if __name__ == "__main__":
    main()
