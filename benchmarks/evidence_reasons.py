"""Small experiments that look for reasons, where a paper's claim does not show or its numbers are far off."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from evidence_cells import EQUAL, WHOLE_RUN, Cell, Experiment, grid, to_target
from evidence_measures import WINDOW, Measure, mean_of


def fedcor_dropout() -> Experiment:
    """FedCor's 2SPC experiment with the dropout of its published code."""
    rows = {
        "Uniform": EQUAL,
        "PowD": ("--selector", "PowD", "--selector.d", "10"),
        "FedCor": (),
    }
    file = "fedcor/fashion_mnist_2spc_dropout.yaml"
    cells = [Cell(row, "2spc", file, (*settings, *WHOLE_RUN)) for row, settings in rows.items()]
    return Experiment(
        "FedCor, 2SPC, with the dropout of the published code: rounds to 69 %",
        tuple(cells),
        to_target(
            grid(
                ("2spc",),
                {"Uniform": ("295.8 ± 92.0",), "PowD": ("126.6 ± 78.2",), "FedCor": ("94.8 ± 18.4",)},
            ),
            rounds=(300,),
            warmup=15,
        ),
        "test/accuracy",
        window=WINDOW,
        limits=(0.3, 0.8),
        target={"2spc": 0.69},
    )


def fedcat_reasons() -> Experiment:
    """FedCat and FedAvg where the small network may not die: 50 rounds."""
    rows = {"FedAvg": ("--selector", "Uniform"), "FedCat": ()}
    columns = {
        "as configured": (),
        "Dir(1)": ("--partition.alpha", "1"),
        "momentum 0": ("--local.optimizer.momentum", "0"),
        "one epoch": ("--local.epochs", "1"),
        "logistic regression": ("--model", "LogisticRegression"),
    }
    cells = [
        Cell(row, column, "fedcat/mnist_small.yaml", (*selector, *changes))
        for column, changes in columns.items()
        for row, selector in rows.items()
    ]
    return Experiment(
        "FedCat, MNIST, small network: what keeps it from learning?",
        tuple(cells),
        tuple(
            Measure(
                f"Test accuracy in % after round {round}.",
                partial(percent_after, round=round),
                1,
            )
            for round in (10, 50)
        ),
        "test/accuracy",
        limits=(0.0, 1.0),
    )


def percent_after(run: Path, round: int) -> float:
    """Test accuracy in per cent after a round."""
    return 100 * mean_of(run, "test/accuracy", round, round)
