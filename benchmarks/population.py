"""A hundred thousand clients of the synthetic generator: set-up, memory, time of a round."""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

from measure import STARTED, options, spread, table, verdict
from settings import start
from stopwatch import timed_run

from flsel.config import RunConfig
from flsel.data.data_config import DataConfig, SyntheticConfig

CLIENTS = 100_000
# The paper's sizes, LogNormal(4, 2) + 50, are 450 examples a client on average: 11 GB of inputs at this N.
# These have the generator's long tail (10 + LogNormal(2, 1), 22 on average) at a twentieth of that.
SIZES = SyntheticConfig(size_mean=2.0, size_std=1.0, size_min=10)
HELD_OUT = {"validation": 0.01, "server": 0.0, "test": 0.01}


def main() -> None:
    chosen = options(__doc__)
    start(chosen)
    clients = CLIENTS // 10 if chosen.quick else CLIENTS
    config = RunConfig(
        rounds=11,
        clients=clients,
        clients_per_round=10,
        data=DataConfig(synthetic=SIZES, **HELD_OUT),
        accelerator=chosen.accelerator,
    )
    with tempfile.TemporaryDirectory() as folder:
        watch = timed_run(config, Path(folder), work=True)
    setup = watch.began[0] - STARTED
    rounds = [b - a for a, b in zip(watch.began, watch.began[1:], strict=False)]
    peak = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    )
    rows = [
        ["from start to the first local step", f"{setup:.1f} s", "<= 60 s", verdict(setup, 60)],
        ["peak memory", f"{peak:.2f} GB", "<= 4 GB", verdict(peak, 4)],
        ["a round, training and evaluation included", spread(rounds, " s", digits=3), "", ""],
    ]
    print(
        f"{clients:,} clients, Uniform, 10 a round, logistic regression. Clients have 10 + LogNormal(2, 1) "
        "examples, 22 on average. (The paper's 50 + LogNormal(4, 2) has 450 on average, of which the raw "
        "inputs alone need 11 GB.)\n"
    )
    print(table(("quantity", "measured", "target", ""), rows))


if __name__ == "__main__":
    main()
