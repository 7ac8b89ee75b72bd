"""Does FedGS's graph make cohorts more diverse, and does that help? Label mixes and accuracies, by partition.

    python benchmarks/fedgs_graph.py --data-root DIR    # runs what is missing
    python benchmarks/fedgs_graph.py --show --document docs/results/fedgs-graph.md

The distance of a cohort is the total variation between the mix of its pooled labels and everybody's, the mean
of a run's rounds: 0 is the same mix, 1 no common label.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import markdown, options

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig
from flsel.models import LogisticRegression
from flsel.partition import (
    IID,
    BySize,
    Dirichlet,
    DirichletPerClass,
    FedCorDirichlet,
    FedGSLogNormal,
    FedPNSMix,
    HicsDirichlet,
    LabelLimited,
    Partition,
    Shards,
)
from flsel.runner.build import build
from flsel.selectors.fedgs import FedGS

ROUNDS, CLIENTS, BUDGET, SEEDS = 60, 100, 10, (1, 2, 3)
PARTITIONS: dict[str, Partition] = {
    "i.i.d.": IID(),
    "log-normal sizes": BySize(),
    "2 shards a client": Shards(2),
    "1 shard a client": Shards(1),
    "Dirichlet 0.1": Dirichlet(0.1),
    "Dirichlet 0.5": Dirichlet(0.5),
    "Dirichlet per class 0.1": DirichletPerClass(0.1, min_size=1),
    "Dirichlet per class 0.5": DirichletPerClass(0.5),
    "HiCS-FL (2), 50 clients": HicsDirichlet((0.001, 0.002, 0.005, 0.01, 0.2)),
    "FedCor's Dirichlet 0.2": FedCorDirichlet(0.2),
    "FedGS's log-normal": FedGSLogNormal(),
    "FedGS's 2 labels": LabelLimited(2),
    "FedPNS's mix": FedPNSMix(),
}
GRAPHS: dict[str, dict[str, Any]] = {
    "none (alpha 0)": {"alpha": 0.0},
    "paper's numbers": {"variant": "normalised"},
    "reference code": {"variant": "reference"},
    "scaled": {},
}


@dataclass(frozen=True)
class Case:
    """One run."""

    partition: str
    graph: str
    seed: int

    @property
    def file(self) -> str:
        """Name of the file that keeps what the run told."""
        return f"{self.partition}-{self.graph}-{self.seed}.json".replace(" ", "_")


def run_case(case: Case, data_root: str | None) -> dict[str, float]:
    """Execute a run; return the mean distance of its cohorts and the accuracy at its end, in %."""
    config = RunConfig(
        seed=case.seed,
        rounds=ROUNDS,
        clients=50 if "50 clients" in case.partition else CLIENTS,
        clients_per_round=BUDGET,
        data=DataConfig(name="fashion_mnist", root=data_root or "data", validation=0.0, server=0.0),
        partition=PARTITIONS[case.partition],
        model=LogisticRegression,
        local=LocalConfig(batch_size=32, steps=10, optimizer=partial(torch.optim.SGD, lr=0.05)),
        selector=FedGS(**GRAPHS[case.graph]),
        evaluation=EvaluationConfig(every=5),
        quiet=True,
    )
    server = build(config).server
    counts = server.federation.labels.numpy()
    everybody = counts.sum(0) / counts.sum()
    apart, accuracies = [], []
    while not server.finished:
        record = server.step()
        pooled = counts[[path[0] for path in record.outcome.plan.paths]].sum(0)
        apart.append(np.abs(pooled / pooled.sum() - everybody).sum() / 2)
        if record.metrics:
            accuracies.append(record.metrics["test/accuracy"])
    return {"apart": float(np.mean(apart)), "accuracy": 100 * float(np.mean(accuracies[-4:]))}


def tables(found: dict[Case, dict[str, float]]) -> str:
    """Lay out a table of distances and one of accuracies."""
    text = []
    for key, title, digits in (
        ("apart", "Distance of a cohort's label mix from everybody's", 3),
        ("accuracy", f"Test accuracy in %, mean of rounds {ROUNDS - 15} to {ROUNDS}", 1),
    ):
        rows = [row for name in PARTITIONS if (row := _row(found, name, key, digits))]
        text.append(f"{title}.\n\n{markdown(['', *GRAPHS], rows)}")
    return "\n\n".join(text)


def _row(found: dict[Case, dict[str, float]], partition: str, key: str, digits: int) -> list[str]:
    cells = []
    for graph in GRAPHS:
        cases = [Case(partition, graph, seed) for seed in SEEDS]
        values = [found[case][key] for case in cases if case in found]
        if len(values) < len(SEEDS):
            return []
        cells.append(f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}")
    return [partition, *cells]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data-root", default=os.environ.get("FLSEL_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs/fedgs_graph"))
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--document", type=Path, help="put the tables between its <!-- tables --> marks")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for seed, name, graph in product(SEEDS, PARTITIONS, GRAPHS):
        case = Case(name, graph, seed)
        path = chosen.out / case.file
        if not path.exists() and not chosen.show:
            path.write_text(json.dumps(run_case(case, chosen.data_root)))
        if path.exists():
            found[case] = json.loads(path.read_text())
    if chosen.document is None:
        print(tables(found))
        return
    before, _, rest = chosen.document.read_text().partition("<!-- tables -->\n")
    after = rest.partition("<!-- end -->\n")[2]
    chosen.document.write_text(f"{before}<!-- tables -->\n\n{tables(found)}\n\n<!-- end -->\n{after}")


if __name__ == "__main__":
    main()
