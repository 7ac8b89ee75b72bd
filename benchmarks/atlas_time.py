"""The atlas in simulated seconds: its tables from its comparison's runs, by the rules in its declaration.

    python benchmarks/atlas_time.py --collect comparisons/atlas_time*   # runs -> docs/results/data
    python benchmarks/atlas_time.py                                     # docs/results/data -> page

The tables are made of the committed file alone; a test compares them with the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pages import markdown, options, put, read_rows, update_rows, whole_blocks
from scipy import stats

from flsel.comparison.comparison_file import read_declaration
from flsel.comparison.judging.estimates import holm
from flsel.metrics import first_hit
from flsel.runner.result import Result

RESULTS = Path(__file__).resolve().parents[1] / "docs/results"
DATA, PAGE = RESULTS / "data/atlas_time.csv", RESULTS / "atlas-time.md"
MEASURES = ("reached", "rounds", "seconds", "free", "accuracy", "at_equal_seconds")
"""Whether the target was reached; rounds and simulated seconds to it, and those without waiting for answers;
test accuracy in per cent at the end, and when half of Uniform's simulated seconds had passed."""
BASE, KINDS, LEVEL = "Uniform", ("K", "1.3 K"), 0.05
FLAT = (0.9, 1.1)


def collect(folders: list[Path], path: Path) -> None:
    """Add a row for each run of the scenarios and seeds that all selectors were run with."""
    head = ["devices", "partition", "availability", "asked", "seed", "selector", *MEASURES]
    for folder in folders:
        update_rows(path, head, _rows(folder), key=6)


def _rows(folder: Path) -> Iterator[list[str]]:
    _, judging, _ = read_declaration(folder)
    assert judging.target is not None
    assert judging.last is not None
    for scenario, seed, block in whole_blocks(folder):
        limit = float(Result.load(block[BASE]).history["clock/seconds"][-1]) / 2
        for name, run in block.items():
            numbers = _measured(Result.load(run), judging.target, judging.last, limit)
            yield [*scenario.split(", "), str(seed), name, *(f"{number:.6g}" for number in numbers)]


def _measured(result: Result, target: float, last: int, limit: float) -> list[float]:
    accuracy, seconds = result.history["test/accuracy"], result.history["clock/seconds"]
    hit = first_hit(accuracy, target, window=last)
    at = len(accuracy) - 1 if hit is None else hit
    rounds = float(result.history["round"][at])
    asked = sum(step.questions or 0.0 for step in result.rounds if step.round < rounds)
    within = accuracy[seconds <= limit][-last:]
    ends = [100 * float(part.mean()) if len(part) else np.nan for part in (accuracy[-last:], within)]
    return [float(hit is not None), rounds, float(seconds[at]), float(seconds[at]) - asked, *ends]


@dataclass(frozen=True)
class Ratio:
    """A geometric mean over scenarios of ratios to Uniform, by seed.

    Attributes:
        logs: Its logarithm for each seed, ``[seeds]``.
    """

    logs: np.ndarray

    @property
    def interval(self) -> tuple[float, float, float]:
        """The ratio and its 95 % interval, by Student's t over seeds."""
        mean, n = float(self.logs.mean()), len(self.logs)
        half = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * float(self.logs.std(ddof=1)) / n**0.5
        return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))

    @property
    def p(self) -> float:
        """The p-value of a ratio of 1, by the t test."""
        return float(stats.ttest_1samp(self.logs, 0.0).pvalue)

    def __str__(self) -> str:
        return "{:.2f} [{:.2f}, {:.2f}]".format(*self.interval)


class Runs:
    """The committed rows of one kind of over-selection.

    Attributes:
        values: By measure, ``[scenarios, seeds, selectors]``.
    """

    def __init__(self, rows: list[dict[str, str]], kind: str) -> None:
        rows = [row for row in rows if row["asked"] == kind]
        key = lambda row: (row["devices"], row["partition"], row["availability"])  # noqa: E731
        self.scenarios = list(dict.fromkeys(key(row) for row in rows))
        self.selectors = list(dict.fromkeys(row["selector"] for row in rows))
        # Pairs over scenarios are one seed's, so that only seeds that all scenarios have count.
        every = [{row["seed"] for row in rows if key(row) == scenario} for scenario in self.scenarios]
        self.seeds = sorted(set.intersection(*every), key=int)
        shape = len(self.scenarios), len(self.seeds), len(self.selectors)
        self.values = {name: np.full(shape, np.nan) for name in MEASURES}
        for row in rows:
            if row["seed"] in self.seeds:
                place = (
                    self.scenarios.index(key(row)),
                    self.seeds.index(row["seed"]),
                    self.selectors.index(row["selector"]),
                )
                for name in MEASURES:
                    self.values[name][place] = float(row[name])

    def ratio(self, name: str, selector: str, chosen: np.ndarray | None = None) -> Ratio:
        """Return a selector's costs over Uniform's; runs that do not reach the target enter as a bound."""
        values = self.values[name]
        own, base = (values[..., self.selectors.index(which)] for which in (selector, BASE))
        logs = np.log(own / base)
        return Ratio((logs if chosen is None else logs[chosen]).mean(axis=0))

    @property
    def size(self) -> int:
        """Runs of each selector."""
        return len(self.scenarios) * len(self.seeds)

    def reached(self, selector: str) -> tuple[int, int]:
        """Return how many runs reach the target, and how many miss it where Uniform's reaches it."""
        own, base = (
            self.values["reached"][..., self.selectors.index(which)] == 1 for which in (selector, BASE)
        )
        return int(own.sum()), int((base & ~own).sum())

    def points(self, name: str, selector: str) -> float:
        """Return a selector's mean difference to Uniform in points of accuracy."""
        values = self.values[name]
        own, base = (values[..., self.selectors.index(which)] for which in (selector, BASE))
        return float(np.nanmean(own - base))


def words(rounds: Ratio, seconds: Ratio, corrected: tuple[float, float]) -> tuple[str, str]:
    """Return what the declaration's rules say of the seconds, and of the atlas's advice in rounds.

    Args:
        rounds: Ratio of rounds.
        seconds: Ratio of simulated seconds.
        corrected: Their p-values after Holm's correction over the selectors.
    """
    ratio, low, high = seconds.interval
    significant = corrected[1] < LEVEL
    said = ("sooner" if ratio < 1 else "later") if significant else "no significant difference"
    side = np.sign(np.log(rounds.interval[0]))
    if significant and np.sign(np.log(ratio)) == side:
        return said, "stands"
    flat = FLAT[0] <= low and high <= FLAT[1]
    return said, "falls" if significant or flat else "open"


def verdicts(runs: Runs) -> str:
    """Return the ratios, words and differences at equal seconds of all selectors."""
    others = [name for name in runs.selectors if name != BASE]
    ratios = {name: (runs.ratio("rounds", name), runs.ratio("seconds", name)) for name in others}
    corrected = [holm([ratios[name][k].p for name in others]) for k in (0, 1)]
    rows = []
    for at, name in enumerate(others):
        rounds, seconds = ratios[name]
        p = corrected[0][at], corrected[1][at]
        said, advice = words(rounds, seconds, p)
        reached, missed = runs.reached(name)
        bound = f" (bound: {reached} reached, {missed} missed)" if missed or reached < runs.size else ""
        each = seconds.interval[0] / rounds.interval[0]
        rows.append(
            [name, str(rounds), f"{each:.2f}", f"{seconds}{bound}", f"{p[1]:.2g}", said, advice,
             f"{runs.points('at_equal_seconds', name):+.1f}", f"{runs.points('accuracy', name):+.1f}"]
        )  # fmt: skip
    rows.sort(key=lambda row: float(row[3].split()[0]))
    return markdown(
        ["selector", "rounds", "seconds a round", "simulated seconds", "p (Holm)", "seconds",
         "advice of the rounds", "points at equal seconds", "points after all rounds"],
        rows,
    )  # fmt: skip


def devices(runs: Runs) -> str:
    """Return the ratio of simulated seconds for each law of devices, with its interval."""
    laws = list(dict.fromkeys(scenario[0] for scenario in runs.scenarios))
    chosen = [np.array([scenario[0] == law for scenario in runs.scenarios]) for law in laws]
    others = [name for name in runs.selectors if name != BASE]
    return markdown(
        ["selector", *laws],
        [[name, *(str(runs.ratio("seconds", name, part)) for part in chosen)] for name in others],
    )


def scenarios(runs: Runs) -> str:
    """Return the ratio of simulated seconds in every scenario."""
    others = [name for name in runs.selectors if name != BASE]
    rows = []
    for at, scenario in enumerate(runs.scenarios):
        base = runs.values["seconds"][at, :, runs.selectors.index(BASE)]
        chosen = np.arange(len(runs.scenarios)) == at
        cells = [f"{runs.ratio('seconds', name, chosen).interval[0]:.2f}" for name in others]
        rows.append([", ".join(scenario), f"{float(np.exp(np.log(base).mean())):,.0f} s", *cells])
    return markdown(["scenario", BASE, *others], rows)


def questions(runs: Runs) -> str:
    """Return the seconds of selectors that ask clients, with the questions charged and with them free."""
    free = {name: runs.ratio("free", name) for name in runs.selectors}
    charged = {name: runs.ratio("seconds", name) for name in runs.selectors}
    asking = [name for name in runs.selectors if str(free[name]) != str(charged[name])]
    return markdown(
        ["selector", "questions charged", "questions free"],
        [[name, str(charged[name]), str(free[name])] for name in asking],
    )


def written() -> str:
    """Return the page with its tables."""
    rows, text = read_rows(DATA), PAGE.read_text()
    for kind in KINDS:
        runs = Runs(rows, kind)
        for table in (verdicts, devices, questions, scenarios):
            text = put(text, f"{table.__name__}, {kind}", table(runs))
    return text


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--collect", type=Path, nargs="+", metavar="COMPARISON", help="read comparisons' runs"
    )
    chosen = parser.parse_args()
    if chosen.collect is not None:
        collect(chosen.collect, DATA)
    else:
        PAGE.write_text(written())


if __name__ == "__main__":
    main()
