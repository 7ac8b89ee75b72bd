"""What the simulated clock adds to a round, and what a table of a million devices takes."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from measure import alternate, drift, options, ratios, table, verdict
from settings import image_data, image_run, start
from trainers import CASES, Case

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig
from flsel.data.data_config import DataConfig
from flsel.devices import Devices, LogNormal, Phones, Tiers
from flsel.partition import Natural
from flsel.runner.build import build

MOST, MILLION, SECONDS, MEGABYTES = 1.02, 1_000_000, 1.0, 100.0
SIDES: dict[str, Devices | None] = {"without": None, "LogNormal": LogNormal(), "Phones": Phones()}


def config_of(case: Case, data: DataConfig, accelerator: str) -> RunConfig:
    """Return the settings of a workload, without evaluations."""
    config = image_run(case.model, data, case.local, clients=case.clients, accelerator=accelerator)
    config = replace(config, clients_per_round=case.cohort, rounds=10**6)
    config = replace(config, evaluation=EvaluationConfig(every=10**6))
    return (
        replace(config, data=DataConfig(name="synthetic"), partition=Natural()) if case.synthetic else config
    )


def measure(name: str, data: DataConfig, *, quick: bool, accelerator: str) -> list[list[str]]:
    """Run rounds with and without devices in turn, and return the rows of the table."""
    case = CASES[name]
    config = config_of(case, data, accelerator)
    servers = {side: build(replace(config, devices=devices)).server for side, devices in SIDES.items()}
    sides = {side: lambda server=server: [server.step(), None][1] for side, server in servers.items()}  # type: ignore[misc]
    for side in sides.values():
        side()
    calls = 20 if case.synthetic else 2
    found = alternate(sides, 5 if quick else 60, time.process_time, calls)
    warned = drift(found["without"])
    if warned:
        print(warned)
    rows = []
    for side in list(SIDES)[1:]:
        share = median(ratios(found[side], found["without"]))
        rows.append(
            [name, side, f"{1e3 * median(found['without']):.2f} ms", f"{100 * (share - 1):+.1f} %",
             f"<= {100 * (MOST - 1):.0f} %", verdict(share, MOST)]
        )  # fmt: skip
    return rows


def measure_table(devices: Devices, clients: int) -> list[str]:
    """Draw a table, and return its row."""
    sizes = np.random.default_rng(0).integers(10, 1000, clients)
    began = time.process_time()
    devices.table(sizes, 1)
    seconds = time.process_time() - began
    tracemalloc.start()
    devices.table(sizes, 1)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    fits = seconds <= SECONDS and peak <= MEGABYTES
    return [repr(devices), f"{seconds:.2f} s", f"{peak:.0f} MB", "met" if fits else "**missed**"]


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
    print("CPU time of a round without evaluation. The sides take turns in one process.\n")
    print(table(("workload", "devices", "a round without", "with devices", "target", ""), rows))
    clients = MILLION // 100 if chosen.quick else MILLION
    print(f"\nTables of {clients:,} devices. The target is {SECONDS:g} s and a peak of {MEGABYTES:g} MB.\n")
    drawn: list[Devices] = [LogNormal(), LogNormal(correlation=0.5), Tiers(), Phones()]
    listed = [measure_table(devices, clients) for devices in drawn]
    print(table(("devices", "CPU seconds", "peak memory", ""), listed))


if __name__ == "__main__":
    main()
