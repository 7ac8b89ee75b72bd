"""Measure what steps of updates and aggregates add to a round of W3 (benchmarks/trainers.py), processor time.

python benchmarks/update_steps.py

One process, one thread. The cases take turns of 20 rounds, and the fastest turn of each counts.
"""

from __future__ import annotations

import time
from typing import Any

from flsel.config import RunConfig
from flsel.execution.executor import Sources
from flsel.runner.build import build

TURNS, ROUNDS = 24, 20
NOISE = {"class_path": "GaussianNoise", "init_args": {"multiplier": 0.1, "delta": None}}
SIGN = {"class_path": "Corrupt", "init_args": {"kind": "sign"}}
CASES: dict[str, dict[str, Any]] = {
    "no steps": {},
    "an empty list": {"updates": []},
    "Clip": {"updates": ["Clip"]},
    "Clip, GaussianNoise": {"updates": ["Clip", NOISE]},
    "TopK": {"updates": ["TopK"]},
    "Quantise": {"updates": ["Quantise"]},
    "Corrupt (sign)": {"updates": [SIGN]},
    "Corrupt (flipped)": {"updates": ["Corrupt"]},
    "Median": {"aggregate": "Median"},
    "TrimmedMean": {"aggregate": "TrimmedMean"},
    "Krum": {"aggregate": "Krum"},
    "MultiKrum": {"aggregate": "MultiKrum"},
}
W3: dict[str, Any] = {
    "rounds": TURNS * ROUNDS + 1, "clients": 30, "clients_per_round": 6, "threads": 1,
    "data": {"name": "synthetic"}, "local": {"batch_size": 10, "steps": 10},
    "evaluation": {"every": TURNS * ROUNDS + 1},
}  # fmt: skip


def main() -> None:
    """Print a table in Markdown."""
    configs = {name: RunConfig.from_dict(RunConfig().to_dict(), W3 | own) for name, own in CASES.items()}
    sources = Sources()
    servers = {name: build(config, sources.get(config)).server for name, config in configs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(TURNS):
        for name, server in servers.items():
            began = time.process_time()
            for _ in range(ROUNDS):
                server.step()
            seconds[name].append(time.process_time() - began)
    print("| case | ms a round | times no steps |\n|---|---|---|")
    fastest = {name: 1e3 * min(found) / ROUNDS for name, found in seconds.items()}
    for name, own in fastest.items():
        print(f"| {name} | {own:.2f} | {own / fastest['no steps']:.2f} |")


if __name__ == "__main__":
    main()
