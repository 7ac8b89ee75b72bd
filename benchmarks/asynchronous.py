"""What asynchronous rounds take beside synchronous ones with as many local trainings."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from clock import config_of
from measure import alternate, drift, options, ratios, table, verdict
from settings import image_data, start
from trainers import CASES

from flsel.config.simulated_time import AsyncConfig
from flsel.data.data_config import DataConfig
from flsel.devices import LogNormal
from flsel.runner.build import build

MOST, WARM = 1.3, 400
"""Largest ratio of CPU seconds, and trainings before the clock starts, in which stacks are compiled."""


def rounds(rules: AsyncConfig, name: str, data: DataConfig, accelerator: str) -> Callable[[], None]:
    """Return a call that takes as many trainings as a synchronous round of the workload."""
    case = CASES[name]
    config = replace(config_of(case, data, accelerator), devices=LogNormal(), asynchronous=rules)
    server, steps = build(config).server, case.cohort // rules.updates(case.cohort)
    while server.ledger["trainings"] < WARM:
        server.step()

    def run_rounds() -> None:
        for _ in range(steps):
            server.step()

    return run_rounds


def measure(name: str, data: DataConfig, *, quick: bool, accelerator: str) -> list[list[str]]:
    """Run synchronous and asynchronous rounds in turn, and return the rows of the table."""
    case = CASES[name]
    slots = min(4 * case.cohort, case.clients)
    kinds = {
        "synchronous": AsyncConfig(),
        f"FedBuff, {slots} slots, buffer {case.cohort}": AsyncConfig(slots),
        f"FedAsync, {slots} slots, buffer 1": AsyncConfig(slots, buffer=1, mixing="models"),
    }
    sides = {kind: rounds(rules, name, data, accelerator) for kind, rules in kinds.items()}
    found = alternate(sides, 5 if quick else 60, time.process_time, 20 if case.synthetic else 2)
    warned = drift(found["synchronous"])
    if warned:
        print(warned)
    rows = []
    for kind in list(kinds)[1:]:
        share = median(ratios(found[kind], found["synchronous"]))
        each = 1e3 * median(found["synchronous"]) / case.cohort
        rows.append([name, kind, f"{each:.2f} ms", f"{share:.2f} x", f"<= {MOST} x", verdict(share, MOST)])
    return rows


def main() -> None:
    chosen = options(__doc__)
    start(chosen)
    with tempfile.TemporaryDirectory() as folder:
        data = image_data(chosen.data_root, Path(folder))
        rows = [
            row
            for name in ("W1", "W3")
            for row in measure(name, data, quick=chosen.quick, accelerator=chosen.accelerator)
        ]
    print(
        "CPU time of the same number of local trainings, without evaluation. The sides take turns in one "
        "process.\n"
    )
    print(table(("workload", "asynchronous", "a synchronous training", "ratio", "target", ""), rows))


if __name__ == "__main__":
    main()
