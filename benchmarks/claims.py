"""Measure the claims of the papers: from the runs of a comparison to the tables of docs/results.

    python benchmarks/claims.py --collect hics_temperature --folder comparisons   # runs -> docs/results/data
    python benchmarks/claims.py                                                   # docs/results/data -> pages

The tables are made of the committed files alone; a test compares them with the pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pages import markdown, options, put, read_rows, update_rows
from scipy import stats

from flsel.comparison.comparison_file import read_declaration
from flsel.comparison.judging.time_to_target import first_at
from flsel.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"


@dataclass(frozen=True)
class Claim:
    """What a comparison is measured by.

    Attributes:
        page: Page of docs/results that shows it.
        baseline: Variant that the others are compared with.
        rounds: Where accuracy is the mean of the last evaluations up to there.
        window: How many evaluations.
        target: Accuracy whose first evaluation and whose running mean's first are counted in rounds; None
            counts none.
        paper: By scenario, the paper's difference: in points at the last of ``rounds``, of the logarithm of
            rounds, or of the lowest loss.
        challenger: Variant that the claim is about.
        judged: Measure that the claim is about.
        rival: Variant that the challenger is compared with in a table of its own; None makes none.
        loss: Measure the lowest test loss of all rounds too.
    """

    page: str
    baseline: str
    rounds: tuple[int, ...]
    window: int
    target: float | None
    paper: dict[str, float]
    challenger: str
    judged: str
    rival: str | None = None
    loss: bool = False

    @property
    def measures(self) -> list[str]:
        """Names of the measures, in the order of the table."""
        costs = [] if self.target is None else ["first", "steady"]
        return [*["best loss"] * self.loss, *costs, *(f"round {at}" for at in self.rounds)]


CLAIMS = {
    "hics_temperature": Claim(
        "hics-temperature.md", "Uniform", (50, 100, 150), 10, 0.75, {}, "temperature per client", "round 50",
        "one temperature",
    ),
    "hics_tau": Claim(
        "hics-temperature.md", "tau 0.25", (50, 100, 150), 10, 0.75, {}, "fade 0.5", "round 150"
    ),
    "hics_adam": Claim(
        "hics-temperature.md", "Uniform", (20, 40, 60), 10, 0.75, {}, "temperature per client", "round 20",
        "one temperature",
    ),
    "hics_away": Claim(
        "hics-temperature.md", "Uniform", (30, 60, 100), 5, None, {}, "temperature per client", "round 60",
        "one temperature",
    ),
    "hics_network": Claim(
        "replications.md", "Uniform", (50, 100, 150), 3, 0.75, {"all": math.log(60 / 149)}, "HiCS", "steady"
    ),
    "hics_published": Claim(
        "replications.md", "Weighted", (16, 32), 3, 0.75, {"all": math.log(60 / 149)}, "HiCS", "steady"
    ),
    # In scenarios (1) and (3) the paper has curves only.
    "hics_written_1_3": Claim("replications.md", "Uniform", (30, 60), 3, None, {}, "HiCS", "round 60"),
    "hics_written_2": Claim(
        "replications.md", "Uniform", (50, 100, 200), 3, 0.75, {"all": math.log(60 / 149)}, "HiCS", "steady"
    ),
    "hics_published_start_1": Claim("replications.md", "Weighted", (8, 16), 3, None, {}, "HiCS", "round 16"),
    "hics_published_start_3": Claim("replications.md", "Weighted", (8, 16), 3, None, {}, "HiCS", "round 16"),
    # The paper's numbers are those of hundreds of rounds.
    "hics_cifar10": Claim("replications.md", "Uniform", (12, 24), 3, None, {}, "HiCS", "round 24"),
    "hics_cifar10_more": Claim("replications.md", "Uniform", (50, 100, 150), 3, 0.6, {}, "HiCS", "round 150"),
    "fedcat_cnn": Claim("replications.md", "FedAvg", (8,), 1, None, {}, "FedCat", "round 8"),
    "fedcat_cnn_others": Claim("replications.md", "FedAvg", (4,), 1, None, {}, "FedCat", "round 4"),
    # A plan of FedCat's is ten rounds long.
    "fedcat_cnn_reasons": Claim("replications.md", "FedAvg", (10, 20), 1, None, {}, "FedCat", "round 20"),
    "fedgs_table2": Claim(
        "replications.md", "Uniform", (500, 1000), 10, None,
        {"LN": -0.014, "SLN": -0.006, "LDF": -0.022, "MDF": -0.051}, "FedGS 1", "best loss", loss=True,
    ),
    "fedgs_fashion": Claim(
        "replications.md", "Uniform", (250, 500), 5, None,
        {"IDL": -0.015, "YMF": -0.023, "YC": -0.023}, "FedGS", "best loss", loss=True,
    ),
    # The paper's is the lowest loss of 1000 rounds.
    "fedgs_cifar10": Claim(
        "replications.md", "Uniform", (50, 100, 150), 3, None, {"MDF": -0.036, "LDF": -0.078},
        "FedGS", "best loss", loss=True,
    ),
    "fedcor_ablations": Claim(
        "replications.md", "Uniform", (50, 100, 150), 15, 0.69, {"all": math.log(94.8 / 295.8)}, "FedCor",
        "steady",
    ),
    "fedgen_paper": Claim(
        "replications.md", "FedAvg", (50, 100, 200), 5, None, {"all": 2.87}, "FedGen", "round 200"
    ),
    "fedgen_code": Claim(
        "replications.md", "FedAvg", (50, 100, 200), 5, None, {"all": 2.87}, "FedGen", "round 200"
    ),
    "fedgen_reasons": Claim(
        "replications.md", "FedAvg", (50, 100, 200), 5, None, {}, "FedGen", "round 200"
    ),
    # The digitised figure at round 60.
    "fedpns_cnn": Claim(
        "replications.md", "FedAvg", (30, 60), 5, None, {"sigma 0.3, rho 1": 10.2, "sigma 0.5, rho 1": 2.6},
        "FedPNS", "round 60",
    ),
    # The same; with sigma 0.2 and rho 1 FedAvg is below the figure until round 70, where this is read.
    "fedpns_cnn_others": Claim(
        "replications.md", "FedAvg", (30, 60), 5, None,
        {"sigma 0.2, rho 1": 6.0, "sigma 0.2, rho 2": 6.3, "sigma 0.3, rho 2": 1.3, "sigma 0.5, rho 2": 1.7},
        "FedPNS", "round 60",
    ),
    # Means of the figure's last ten rounds.
    "fedpns_cnn_more": Claim(
        "replications.md", "FedAvg", (60, 100, 150, 200), 5, None,
        {
            "sigma 0.2, rho 1": 6.3, "sigma 0.2, rho 2": 2.9, "sigma 0.3, rho 1": 4.4,
            "sigma 0.3, rho 2": 1.7, "sigma 0.5, rho 1": 1.3, "sigma 0.5, rho 2": 0.2,
        },
        "FedPNS", "round 200",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """The measurements of a comparison.

    Attributes:
        scenarios: Their names.
        variants: Their names.
        seeds: The seeds.
        values: By measure, ``[scenarios, variants, seeds]``; costs of runs that never arrive are infinite,
            NaN is a run that is not there.
    """

    scenarios: list[str]
    variants: list[str]
    seeds: list[int]
    values: dict[str, np.ndarray]


def collect(name: str, folders: Sequence[Path]) -> None:
    """Add a comparison's measurements to its file, a row a run; several folders may have run its seeds."""
    claim = CLAIMS[name]
    for folder in folders:
        runs = ((cell, folder / cell.folder) for cell in read_declaration(folder)[0].cells())
        rows = (
            [cell.scenario, cell.variant, cell.seed, *(f"{value:.6g}" for value in _measure(claim, run))]
            for cell, run in runs
            if (run / "summary.json").exists()
        )
        update_rows(data(name), ["scenario", "variant", "seed", *claim.measures], rows, key=3)


def data(name: str) -> Path:
    """Return where a comparison's measurements are."""
    return RESULTS / "data" / f"{name}.csv"


def _measure(claim: Claim, run: Path) -> list[float]:
    rows = read_rows(run / "metrics.csv")
    at = np.array([float(row["round"]) for row in rows])
    accuracy = np.array([float(row["test/accuracy"]) for row in rows])
    costs = [min(float(row["test/loss"]) for row in rows)] if claim.loss else []
    if claim.target is not None:
        for window in (1, claim.window):
            arrival = first_at(claim.target, at, accuracy, window)
            costs.append(arrival.at if arrival.reached else math.inf)
    means = [float(accuracy[at <= end][-claim.window :].mean()) for end in claim.rounds]
    return [*costs, *means]


def read(name: str) -> Measured:
    """Read the file of a comparison's measurements."""
    rows = read_rows(data(name))
    scenarios, variants = ([*dict.fromkeys(row[key] for row in rows)] for key in ("scenario", "variant"))
    seeds = sorted({int(row["seed"]) for row in rows})
    values = {}
    for measure in CLAIMS[name].measures:
        values[measure] = np.full((len(scenarios), len(variants), len(seeds)), np.nan)
        for row in rows:
            place = (
                scenarios.index(row["scenario"]),
                variants.index(row["variant"]),
                seeds.index(int(row["seed"])),
            )
            values[measure][place] = float(row[measure])
    return Measured(scenarios, variants, seeds, values)


def difference(
    claim: Claim, measured: Measured, scenario: int, variant: int, measure: str, rival: str | None = None
) -> np.ndarray:
    """Return the paired differences to the baseline or a rival: points, losses, logarithms of rounds' ratios.

    A run that never arrives counts as its end, so a ratio is too close to one where there are such.
    """
    values = measured.values[measure][scenario]
    ours, base = values[variant], values[measured.variants.index(rival or claim.baseline)]
    both = ~(np.isnan(ours) | np.isnan(base))
    if measure.startswith("round"):
        return np.asarray(100 * (ours - base)[both])
    if measure == "best loss":
        return np.asarray((ours - base)[both])
    end = float(claim.rounds[-1])
    return np.asarray(np.log(np.minimum(ours[both], end) / np.minimum(base[both], end)))


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return a mean and half its 95 % interval by Student's t."""
    n = len(values)
    half = float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return float(values.mean()), half


def word(name: str, scenario: str) -> str:
    """Return the word that the rule of replications.md gives a claim in one scenario."""
    claim, measured = CLAIMS[name], read(name)
    place, variant = measured.scenarios.index(scenario), measured.variants.index(claim.challenger)
    values = difference(claim, measured, place, variant, claim.judged)
    if np.isinf(measured.values[claim.judged][place]).all():
        return "not testable here"
    mean, half = interval(values)
    side = 1 if claim.judged.startswith("round") else -1
    if side * mean <= 0:
        return "does not replicate"
    enough = abs(mean) >= abs(claim.paper[scenario]) / 2
    return "replicates" if enough and half < abs(mean) else "ordering only"


def table(name: str) -> str:
    """Return a comparison's table in Markdown."""
    claim, measured = CLAIMS[name], read(name)
    target = "" if claim.target is None else f"{100 * claim.target:.0f} %"
    titles = {"first": f"rounds to {target}", "steady": f"rounds to {target}, mean of {claim.window}"}
    several = len(measured.scenarios) > 1
    head = ["scenario"] * several + ["", "seeds", *(titles.get(m, m) for m in claim.measures)]
    lines = []
    for s, scenario in enumerate(measured.scenarios):
        for v, variant in enumerate(measured.variants):
            if np.isnan(measured.values[claim.measures[-1]][s, v]).all():
                continue
            cells = [_cell(claim, measured, s, v, measure) for measure in claim.measures]
            n = int((~np.isnan(measured.values[claim.measures[-1]][s, v])).sum())
            lines.append([scenario] * several + [variant, str(n), *cells])
    return markdown(head, lines)


def duel(name: str) -> str:
    """Return the challenger's differences to its rival, by scenario."""
    claim, measured = CLAIMS[name], read(name)
    variant = measured.variants.index(claim.challenger)
    measures = [f"round {at}" for at in claim.rounds]
    lines = []
    for place, scenario in enumerate(measured.scenarios):
        cells = []
        for measure in measures:
            values = difference(claim, measured, place, variant, measure, claim.rival)
            mean, half = interval(values)
            cells.append(f"{mean:+.1f} ± {half:.1f}, {int((values > 0).sum())} of {len(values)}")
        lines.append([scenario, *cells])
    return markdown(["scenario", *measures], lines)


def shown(name: str) -> str:
    """Return what a page shows of a comparison."""
    claim = CLAIMS[name]
    parts = [table(name)]
    if claim.rival is not None:
        parts.append(f"{claim.challenger.capitalize()} minus {claim.rival}, paired by seed:\n\n{duel(name)}")
    for scenario, paper in claim.paper.items():
        theirs = f"{paper:+.3f}" if claim.judged == "best loss" else f"{math.exp(paper):.2f} x"
        if claim.judged.startswith("round"):
            theirs = f"{paper:+g} points"
        where = "" if scenario == "all" else f" ({scenario})"
        parts.append(f"{claim.challenger}{where}: *{word(name, scenario)}*; the paper has {theirs}.")
    return "\n\n".join(parts)


def _cell(claim: Claim, measured: Measured, scenario: int, variant: int, measure: str) -> str:
    values = measured.values[measure][scenario, variant]
    values = values[~np.isnan(values)]
    if measure.startswith("round"):
        shown = f"{100 * values.mean():.1f}"
    elif measure == "best loss":
        shown = f"{values.mean():.3f}"
    else:
        reached = np.isfinite(values)
        shown = f"{np.minimum(values, claim.rounds[-1]).mean():.0f}"
        if not reached.all():
            shown = f"≥ {shown}, {reached.sum()} of {len(values)} reach it"
    if measured.variants[variant] == claim.baseline:
        return shown
    differences = difference(claim, measured, scenario, variant, measure)
    mean, half = interval(differences)
    if measure.startswith("round"):
        ahead = f"{int((differences > 0).sum())}/{len(differences)}"
        margin = "" if math.isnan(half) else f" ± {half:.1f}"  # of one seed
        return f"{shown} ({mean:+.1f}{margin}; {ahead})"
    if measure == "best loss":
        return f"{shown} ({mean:+.3f} ± {half:.3f}; {int((differences < 0).sum())}/{len(differences)})"
    ratio, low, high = math.exp(mean), math.exp(mean - half), math.exp(mean + half)
    return f"{shown} ({ratio:.2f} x [{low:.2f}, {high:.2f}])"


def written(text: str, name: str) -> str:
    """Return a page with a comparison's table put in."""
    return put(text, name, shown(name))


def main() -> None:
    """Collect, or write the tables into the pages."""
    parser = options(__doc__)
    parser.add_argument("--collect", choices=CLAIMS, nargs="+", default=[])
    parser.add_argument("--folder", type=Path, nargs="+", default=[Path("comparisons")])
    chosen = parser.parse_args()
    try:
        for name in chosen.collect:
            collect(name, [folder / name for folder in chosen.folder])
    except UserError as error:
        parser.exit(2, f"{error}\n")
    for name, claim in CLAIMS.items():
        page = RESULTS / claim.page
        if not chosen.collect and data(name).exists():
            page.write_text(written(page.read_text(), name))


if __name__ == "__main__":
    main()
