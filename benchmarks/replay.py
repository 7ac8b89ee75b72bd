"""How many runs would have been enough? Replay committed comparisons with ``--until-decided``.

    python benchmarks/replay.py --collect comparisons/atlas_seeds   # runs -> docs/results/data
    python benchmarks/replay.py                                     # docs/results/data -> page

The tables are made of the committed files alone; a test compares them with the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from atlas import ATLASES
from atlas_runs import collect
from claims import CLAIMS, data
from pages import markdown, options, put, read_rows

from flsel.comparison.judging.decisions import decide
from flsel.comparison.judging.designs import ALPHA, FIRST_LOOK, Design
from flsel.comparison.judging.estimates import holm, mean_p_value

RESULTS = Path(__file__).resolve().parents[1] / "docs/results"
PAGE = RESULTS / "how-many-runs.md"
SEEDS = RESULTS / "data/atlas_seeds.csv"
EIGHT = ("hics_temperature", "hics_tau", "hics_adam", "hics_away", "fedgs_table2")
"""Comparisons with eight seeds: two looks before the last."""
MARGIN = 1.0
BASE = "Uniform"
DIRECTIONS = ("better", "worse")
Words = dict[str, str]


@dataclass(frozen=True)
class Family:
    """One scenario: the claims that are corrected together.

    Attributes:
        name: The scenario.
        differences: By variant the differences to the baseline in points, ``[n]``, in the order of the seeds.
    """

    name: str
    differences: Mapping[str, np.ndarray]

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(next(iter(self.differences.values())))

    def fixed(self, seeds: int) -> tuple[Words, int]:
        """Return the verdicts of a fixed number of seeds (Holm), and its runs."""
        values = {name: x[:seeds] for name, x in self.differences.items()}
        p = holm([mean_p_value(x) for x in values.values()])
        words = {
            name: ("better" if x.mean() > 0 else "worse") if level <= ALPHA else "open"
            for (name, x), level in zip(values.items(), p, strict=True)
        }
        return words, seeds * (len(values) + 1)

    def decided(self, margin: float | None) -> tuple[Words, int]:
        """Return the verdicts of the sequential procedure with all seeds as its maximum, and its runs."""
        design = Design(len(self.differences), self.seeds, margin)
        found = {name: decide(x, design) for name, x in self.differences.items()}
        stops = [decision.n for decision in found.values()]
        return {name: decision.claim for name, decision in found.items()}, sum(stops) + max(stops)


def families(rows: Sequence[Mapping[str, str]], baseline: str, measure: str) -> list[Family]:
    """Return the scenarios of a committed file, with the differences of the seeds that all variants have."""
    table: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        where = row.get("scenario") or f"{row['partition']}, {row['availability']}"
        who = row.get("variant") or row["selector"]
        table.setdefault(where, {}).setdefault(who, {})[int(row["seed"])] = 100 * float(row[measure])
    found = []
    for where, variants in table.items():
        seeds = sorted(set.intersection(*(set(values) for values in variants.values())))
        base = np.array([variants[baseline][seed] for seed in seeds])
        others = {
            name: np.array([values[seed] for seed in seeds]) - base
            for name, values in variants.items()
            if name != baseline
        }
        found.append(Family(where, others))
    return found


def agreement(ours: Words, theirs: Words) -> tuple[int, int, int, int]:
    """Count the verdicts that are the same, directions of theirs alone, of ours alone, and contrary ones."""
    pairs = [(ours[name], theirs[name]) for name in ours]
    same = sum(a == b or not {a, b} & set(DIRECTIONS) for a, b in pairs)
    lost = sum(b in DIRECTIONS and a not in DIRECTIONS for a, b in pairs)
    more = sum(a in DIRECTIONS and b not in DIRECTIONS for a, b in pairs)
    return same, lost, more, len(pairs) - same - lost - more


def eight() -> str:
    """Return the table of the comparisons with eight seeds."""
    rows = []
    for name in EIGHT:
        claim = CLAIMS[name]
        found = families(read_rows(data(name)), claim.baseline, f"round {claim.rounds[-1]}")
        for margin in (None, MARGIN):
            rows.append([name, *_row(found, margin)])
    head = ["comparison", "claims", "margin", "fixed runs", "runs used", *_WORDS]
    return markdown(head, rows)


_WORDS = ("same verdict", "only fixed", "only until decided", "contrary", "equivalent")


def _row(found: Sequence[Family], margin: float | None) -> list[str]:
    counts, fixed, used, equal, claims = np.zeros(4, dtype=int), 0, 0, 0, 0
    for family in found:
        theirs, runs = family.fixed(family.seeds)
        ours, spent = family.decided(margin)
        counts += np.array(agreement(ours, theirs))
        fixed, used, claims = fixed + runs, used + spent, claims + len(ours)
        equal += sum(word == "equivalent" for word in ours.values())
    shown = "none" if margin is None else f"{margin:g}"
    return [
        str(claims),
        shown,
        str(fixed),
        str(used),
        *map(str, counts),
        "-" if margin is None else str(equal),
    ]


def atlas() -> str:
    """Return the table of the atlas's scenarios with more seeds: fixed designs and the sequential one."""
    found = families(read_rows(SEEDS), BASE, "accuracy")
    most = min(family.seeds for family in found)
    rows = []
    for seeds in (5, 10, most):
        made = [(family.fixed(seeds), family.fixed(most)[0]) for family in found]
        rows.append([f"{seeds} seeds", *_design([(w, n, last) for (w, n), last in made])])
    for margin in (None, MARGIN):
        made = [(family.decided(margin), family.fixed(most)[0]) for family in found]
        name = "until decided" + ("" if margin is None else f", margin {margin:g}")
        rows.append([name, *_design([(w, n, last) for (w, n), last in made])])
    last = f"of {most} seeds"
    head = [
        "design",
        "runs",
        "directions claimed",
        f"same verdict as {most} seeds",
        f"only {last}",
        f"not {last}",
    ]
    return markdown([*head, "contrary", "equivalent"], rows)


def _design(made: Sequence[tuple[Words, int, Words]]) -> list[str]:
    counts = np.sum([agreement(words, last) for words, _, last in made], axis=0)
    claimed = sum(word in DIRECTIONS for words, _, _ in made for word in words.values())
    equal = sum(word == "equivalent" for words, _, _ in made for word in words.values())
    return [str(sum(runs for _, runs, _ in made)), str(claimed), *map(str, counts), str(equal)]


def five() -> str:
    """Return the table of the atlases, whose five seeds end before the first look."""
    rows = []
    for source in ATLASES.values():
        if not source.data.exists():
            continue
        found = families(read_rows(source.data), BASE, "accuracy")
        if found[0].seeds < 2:
            continue
        words = [word for family in found for word in family.fixed(family.seeds)[0].values()]
        runs = sum(family.fixed(family.seeds)[1] for family in found)
        first = sum(FIRST_LOOK * (len(family.differences) + 1) for family in found)
        claimed = sum(word in DIRECTIONS for word in words)
        rows.append([source.title, str(len(found)), str(len(words)), str(claimed), str(runs), str(first)])
    return markdown(
        ["atlas", "scenarios", "claims", "directions claimed", "runs", "runs at the first look"], rows
    )


def written() -> str:
    """Return the page with new tables."""
    text = PAGE.read_text()
    for name, table in (("five", five()), ("eight", eight()), ("atlas", atlas())):
        text = put(text, name, table)
    return text


def main() -> None:
    """Collect, or write the page's tables."""
    parser = options(__doc__)
    parser.add_argument("--collect", type=Path, help="folder of the comparison")
    chosen = parser.parse_args()
    if chosen.collect:
        collect(chosen.collect, SEEDS)
        return
    PAGE.write_text(written())


if __name__ == "__main__":
    main()
