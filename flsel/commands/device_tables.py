"""Print the tables of ``flsel data`` about the clients' simulated devices."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from flsel.config import RunConfig
from flsel.data.population import FederatedData
from flsel.engine.clock import Clock
from flsel.engine.update_steps import sent_message
from flsel.params import model_bytes
from flsel.runner.build import make_program
from flsel.runner.make_clock import make_clock
from flsel.runner.terminal import open_console, print_lines

# Beyond this many clients the picture says more than a table, which is cut.
MOST_ROWS = 100
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_COHORTS = (1, 10, 100)


def print_devices(config: RunConfig, data: FederatedData) -> None:
    """Print the table of devices, its quantiles and what rounds would last.

    Raises:
        UserError: If the table is wrong, or no client meets the deadline.
    """
    program, data = make_program(config, data)
    params, objective = program.shared(), program.objective
    sizes = data.population.sizes.numpy()
    update = sent_message(config.updates, params, params.keys() & program.trainable()).bytes
    clock = make_clock(config, sizes, model_bytes(params), objective.cost(params), update)
    assert clock is not None
    columns = _columns(clock)
    head = list(columns)
    table = Table("client", *head, title="simulated devices")
    for client in range(min(len(clock.sizes), MOST_ROWS)):
        table.add_row(str(client), *(f"{values[client]:.4g}" for values in columns.values()))
    console = open_console()
    console.print(table)
    if len(clock.sizes) > MOST_ROWS:
        print_lines(f"... and {len(clock.sizes) - MOST_ROWS} more clients")
    quantiles = Table("quantile", *head)
    for share in _QUANTILES:
        found = (np.quantile(values, share) for values in columns.values())
        quantiles.add_row(f"{share:.0%}", *(f"{value:.4g}" for value in found))
    console.print(quantiles)
    seconds, over = clock.profile(np.flatnonzero(clock.sizes > 0)), config.time.over_selection
    for wanted in dict.fromkeys((*(k for k in _COHORTS if k <= len(seconds)), config.clients_per_round)):
        asked = config.time.asked(wanted, len(seconds))
        first = "" if over == 1 else f", the first of {asked} asked"
        mean = expected_round(seconds, min(wanted, len(seconds)), asked)
        print_lines(
            f"a round of {wanted} clients{first}: {mean:.4g} simulated seconds on average, if clients are "
            "drawn uniformly, all are available and the selector asks no questions"
        )


def expected_round(seconds: np.ndarray, wanted: int, asked: int) -> float:
    """Return the mean time until the first clients of a cohort are done.

    Args:
        seconds: What each client takes, float64 ``[N]``.
        wanted: Clients that are waited for.
        asked: Distinct clients in the cohort, drawn uniformly.
    """
    from scipy.stats import hypergeom

    ordered = np.sort(seconds)
    faster = np.arange(len(ordered) + 1)
    # The chance that at least so many of the cohort are among the j fastest clients.
    done = hypergeom.sf(wanted - 1, len(ordered), faster, asked)
    return float(ordered @ np.diff(done))


def _columns(clock: Clock) -> dict[str, np.ndarray]:
    table = clock.table
    return {
        "forward pass (ms/example)": 1000 * np.asarray(table.seconds),
        "down (MB/s)": np.asarray(table.down) / 1e6,
        "up (MB/s)": np.asarray(table.up) / 1e6,
        "delay (s)": np.asarray(table.delay),
        "training (simulated s)": clock.profile(np.arange(len(clock.sizes))),
    }
