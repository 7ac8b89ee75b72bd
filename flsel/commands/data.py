"""``flsel data``: show how a run's examples are dealt to its clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from flsel.availability import Trace
from flsel.commands.argv import parse, words
from flsel.commands.device_tables import MOST_ROWS, print_devices
from flsel.commands.set_up_logging import set_up_logging
from flsel.data.heterogeneity import label_entropy, summarise
from flsel.data.population import FederatedData
from flsel.data.trees import described
from flsel.files import home
from flsel.report.style import save_figure
from flsel.runner.build import make_trace
from flsel.runner.load_data import load_data
from flsel.runner.pictures import partition_of
from flsel.runner.terminal import open_console, print_lines


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    set_up_logging()
    given = words(arguments)
    picture = home(dict(given).get("picture") or "partition.png")
    settings = [(key, value) for key, value in given if key != "picture"]
    config = parse(settings, "data")
    data = load_data(config.data, config.partition, config.clients, seed=config.seed)
    trace = make_trace(config.availability, data, config.seed)
    _print(data)
    _print_empty_rounds(trace, config.rounds)
    if config.devices is not None:
        print_devices(config, data)
    picture.parent.mkdir(parents=True, exist_ok=True)
    save_figure(partition_of(data.population, data.name), picture)
    print_lines(f"wrote {picture}")
    return 0


def _print_empty_rounds(trace: Trace, rounds: int) -> None:
    if trace.in_seconds:
        nobody, length = trace.nobody()
        print_lines(
            f"no client is available for {nobody:g} of the {length:g} simulated seconds of the record, in "
            "which the server waits"
        )
    empty = trace.empty(rounds)
    if len(empty):
        some = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
        print_lines(
            f"no client is available in {len(empty)} of {rounds} rounds ({some}), which pass without training"
        )


def _print(data: FederatedData) -> None:
    count = len(data.population)
    counts = data.population.label_counts(range(min(count, MOST_ROWS))).numpy()
    labelled = data.population.examples.labels is not None
    head = ("client", "examples", "labels", "entropy (nats)", "most frequent labels")[: 5 if labelled else 2]
    table = Table(*head)
    entropies = label_entropy(counts)
    for client, row in enumerate(counts):
        top = [label for label in np.argsort(-row, kind="stable")[:3] if row[label]]
        mix = ", ".join(f"{label} ({row[label] / row.sum():.0%})" for label in top)
        cells = (str(client), str(row.sum()), str((row > 0).sum()), f"{entropies[client]:.3f}", mix)
        table.add_row(*cells[: len(head)])
    console = open_console()
    console.print(table)
    if count > MOST_ROWS:
        print_lines(f"... and {count - MOST_ROWS} more clients")
    spread = summarise(table.numpy() for table in data.population.label_tables())
    summary = Table("over clients", "min", "median", "max")
    rows = (("examples", spread.size), ("labels", spread.labels), ("entropy", spread.entropy))
    for name, values in rows if labelled else rows[:1]:
        summary.add_row(name, *(f"{value:.3f}" if name == "entropy" else f"{value:g}" for value in values))
    console.print(summary)
    sets = (("server holdout", data.server), ("validation", data.validation), ("test", data.test))
    held = ", ".join(f"{name} {len(examples)}" for name, examples in sets if examples is not None)
    print_lines(f"{data.name}: {spread.examples} examples at {spread.clients} clients; {held}")
    if not data.population.classifies:
        targets = "nothing" if data.population.y is None else described(data.population.y)
        print_lines(
            f"targets ({targets}) are no class labels: these are one whole number (int64) per example"
        )
