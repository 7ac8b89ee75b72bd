"""Which branch does HiCS-FL's published code take? The variance of its entropies after the warm-up decides.

    python benchmarks/branches.py --data-root ../shared/data --seeds 1 2 3

In scenarios (1) and (2) it keeps the updates of the warm-up, so that the decision of the first round after
it is that of all later ones: five rounds of warm-up and one more are executed. Writes docs/results/data.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from pages import markdown, options, put, read_rows
from scipy.stats import pearsonr, spearmanr

from flsel.config import RunConfig
from flsel.runner.build import build
from flsel.selectors._hics import entropy, label_entropy
from flsel.selectors.hics import HiCS

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs/results/data/hics_branches.csv"
PAGE = ROOT / "docs/results/replications.md"
HEAD = ("scenario", "seed", "variance", "limit", "spearman", "pearson", "rounds_clustered", "rounds_after")


def measure(scenario: int, seed: int, data_root: str | None) -> list[str]:
    """Execute the warm-up and one round more; return a row of the file."""
    config = RunConfig.from_file(ROOT / f"configs/papers/hics/fashion_mnist_published_{scenario}.yaml")
    warm_up = math.ceil((config.clients or 1) / config.clients_per_round)
    data = config.data if data_root is None else replace(config.data, root=data_root)
    # Rounds without an evaluation: the last one, which has one, is not executed.
    config = replace(
        config, seed=seed, data=data, rounds=warm_up + 2, threads=1, quiet=True, accelerator="cpu",
        evaluation=replace(config.evaluation, every=warm_up + 2),
    )  # fmt: skip
    server = build(config).server
    for _ in range(warm_up):
        server.step()
    selector = server.selector
    assert isinstance(selector, HiCS)
    assert isinstance(selector.temperature, float)
    assert selector.clustered_from_variance is not None
    estimated = entropy(selector.signal_.numpy(), selector.temperature)
    true = label_entropy(server.federation.labels.numpy())
    server.step()
    numbers = (
        float(np.var(estimated)), selector.clustered_from_variance,
        float(spearmanr(estimated, true).statistic), float(pearsonr(estimated, true).statistic),
    )  # fmt: skip
    return [
        str(scenario),
        str(seed),
        *(f"{number:.4g}" for number in numbers),
        str(int(selector.clustered_)),
        "1",
    ]


def table() -> str:
    """Return the file as a table in Markdown."""
    head = (
        "scenario", "seed", "variance of the entropies", "Spearman / Pearson", "round after the warm-up",
    )  # fmt: skip
    lines = []
    for row in read_rows(DATA):
        branch = "Clustered Sampling" if row["rounds_clustered"] == row["rounds_after"] else "HiCS-FL"
        shown = f"{float(row['spearman']):.2f} / {float(row['pearson']):.2f}"
        lines.append([f"({row['scenario']})", row["seed"], f"{float(row['variance']):.2f}", shown, branch])
    return markdown(head, lines)


def written(text: str) -> str:
    """Return the page with the table put in."""
    return put(text, "hics_branches", table())


def main() -> None:
    """Measure what is asked for, row by row, and write the table."""
    parser = options(__doc__)
    parser.add_argument("--scenarios", nargs="+", type=int, default=[2, 1], choices=[1, 2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--data-root", default=os.environ.get("FLSEL_DATA"))
    chosen = parser.parse_args()
    if not DATA.exists():
        DATA.write_text(",".join(HEAD) + "\n")
    done = {(row["scenario"], row["seed"]) for row in read_rows(DATA)}
    for scenario, seed in product(chosen.scenarios, chosen.seeds):
        if (str(scenario), str(seed)) not in done:
            row = measure(scenario, seed, chosen.data_root)
            with DATA.open("a") as file:
                file.write(",".join(row) + "\n")
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    main()
