"""Experiments as tables of cells: which config, with which settings, measured how."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from evidence_measures import (
    Measure,
    accuracy_until,
    last_accuracy,
    mean_of,
    rounds_to_stay,
    rounds_to_target,
)

EQUAL = ("--selector", "Uniform", "--selector.weights", "equal")
WHOLE_RUN = ("--evaluation.stop_at_target", "false")


@dataclass(frozen=True)
class Cell:
    """One number of a table: a config with settings, measured over seeds."""

    row: str
    column: str
    config: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """Tables of one experiment of a paper, and what its figure shows.

    Attributes:
        title: Heading.
        cells: All cells, each with a row and a column.
        measures: One table each.
        metric: Column of ``metrics.csv`` whose curve is drawn.
        window: Evaluations in the running mean of a drawn curve.
        target: Line across the curves, by column.
        limits: Limits of the drawn values; None shows all.
        drawn: Rows whose curves are drawn; None draws all.
    """

    title: str
    cells: tuple[Cell, ...]
    measures: tuple[Measure, ...]
    metric: str
    window: int = 1
    target: dict[str, float] = field(default_factory=dict)
    limits: tuple[float, float] | None = None
    drawn: tuple[str, ...] | None = None

    def draws(self, cell: Cell) -> bool:
        """Tell whether a cell's curve is drawn."""
        return self.drawn is None or cell.row in self.drawn


def to_target(paper: dict[tuple[str, str], str], rounds: tuple[int, ...], warmup: int) -> tuple[Measure, ...]:
    """Rounds to the target, accuracy after some rounds, and the variety of labels in the cohorts."""
    last = max(rounds)
    return (
        Measure("Rounds to the first evaluation at the target (the paper's).", rounds_to_target, 0, paper),
        Measure("Rounds until the mean of the last 15 evaluations is at the target.", rounds_to_stay, 0),
        *(
            Measure(
                f"Test accuracy in %, mean of ten evaluations up to round {round}.",
                partial(accuracy_until, round=round),
                1,
            )
            for round in rounds
        ),
        Measure(
            f"Entropy of the cohort's pooled labels in nats, mean of rounds {warmup + 1} to {last}.",
            partial(mean_of, column="cohort/entropy", first=warmup + 1, last=last),
            2,
        ),
    )


def beside_fedavg(early: str, *, round: int) -> tuple[Measure, Measure]:
    """Differences to FedAvg with the same seed: the end's accuracy, and ten evaluations' up to a round."""
    gap = "minus FedAvg's with the same seed."
    return (
        Measure(f"The same, {gap}", last_accuracy, 2, baseline="FedAvg"),
        Measure(f"{early}, {gap}", partial(accuracy_until, round=round), 2, baseline="FedAvg"),
    )


def grid(columns: tuple[str, ...], rows: dict[str, tuple[str, ...]]) -> dict[tuple[str, str], str]:
    """Name the cells of a table of the paper by (row, column)."""
    return {(row, c): cell for row, cells in rows.items() for c, cell in zip(columns, cells, strict=True)}
