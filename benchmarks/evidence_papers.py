"""The five papers' experiments that a CPU can run."""

from __future__ import annotations

from functools import partial

from evidence_cells import EQUAL, WHOLE_RUN, Cell, Experiment, beside_fedavg, grid, to_target
from evidence_measures import WINDOW, Measure, best_loss, last_accuracy, share_of


def fedcor() -> Experiment:
    """FedCor, Table 1: rounds to 69 / 62 / 64 % on Fashion-MNIST."""
    cells = []
    for column, budget in (("2spc", 5), ("1spc", 10), ("dir", 5)):
        rows = {
            "Uniform": EQUAL,
            "AFL": ("--selector", "AFL"),
            "PowD": ("--selector", "PowD", "--selector.d", str(2 * budget)),
            "FedCor": (),
        }
        file = f"fedcor/fashion_mnist_{column}.yaml"
        cells += [Cell(row, column, file, (*settings, *WHOLE_RUN)) for row, settings in rows.items()]
    return Experiment(
        "FedCor, Table 1: rounds to 69 / 62 / 64 % on Fashion-MNIST",
        tuple(cells),
        to_target(
            grid(
                ("2spc", "1spc", "dir"),
                {
                    "Uniform": ("295.8 ± 92.0", "not always", "141.0 ± 73.0"),
                    "AFL": ("218.6 ± 117.3", "not always", "169.0 ± 166.1"),
                    "PowD": ("126.6 ± 78.2", "167.2 ± 72.3", "123.0 ± 101.0"),
                    "FedCor": ("94.8 ± 18.4", "84.0 ± 53.1", "68.8 ± 27.5"),
                },
            ),
            rounds=(300,),
            warmup=15,
        ),
        "test/accuracy",
        window=WINDOW,
        limits=(0.3, 0.8),
        target={"2spc": 0.69, "1spc": 0.62, "dir": 0.64},
    )


def fedgs() -> Experiment:
    """FedGS, Table 2, Synthetic(0.5, 0.5): best test loss under five availability modes."""
    rows = {
        "Uniform": ("--selector", "Uniform"),
        "MD": ("--selector", "MD"),
        "PowD": ("--selector", "PowD", "--selector.d", "30"),
    }
    for alpha in ("0", "0.5", "1", "2", "5"):
        rows[f"FedGS {alpha}"] = ("--selector.alpha", alpha)
    modes = ("IDL", "LN", "SLN", "LDF", "MDF")
    cells = [
        Cell(row, mode, "fedgs/synthetic.yaml", (*settings, "--availability", mode))
        for mode in modes
        for row, settings in rows.items()
    ]
    paper = grid(
        modes,
        {
            "Uniform": (".302", ".320", ".324", ".330", ".362"),
            "MD": (".302", ".322", ".328", ".328", ".326"),
            "PowD": (".691", ".362", ".352", ".557", ".301"),
            "FedGS 0": (".307", ".305", ".320", ".309", ".310"),
            "FedGS 0.5": (".311", ".306", ".319", ".308", ".311"),
            "FedGS 1": (".328", ".306", ".318", ".308", ".311"),
            "FedGS 2": (".306", ".307", ".320", ".308", ".311"),
            "FedGS 5": (".317", ".307", ".321", ".309", ".311"),
        },
    )
    return Experiment(
        "FedGS, Table 2, Synthetic(0.5, 0.5): best test loss",
        tuple(cells),
        (
            Measure("Best test loss over all rounds (the paper's in brackets).", best_loss, 3, paper),
            Measure("The same, minus Uniform's with the same seed.", best_loss, 3, baseline="Uniform"),
        ),
        "test/loss",
        window=20,
        limits=(0.25, 1.0),
        drawn=("Uniform", "MD", "PowD", "FedGS 0", "FedGS 1", "FedGS 5"),
    )


def fedpns() -> Experiment:
    """FedPNS on MNIST with logistic regression: accuracy of the last ten rounds."""
    columns = {f"σ {share} ρ {labels}": (share, labels) for labels in "12" for share in ("0.2", "0.3", "0.5")}
    cells = [
        Cell(
            row,
            column,
            "fedpns/mnist_mlr.yaml",
            (*settings, "--partition.iid_share", share, "--partition.labels_per_client", labels),
        )
        for column, (share, labels) in columns.items()
        for row, settings in (("FedAvg", EQUAL), ("FedPNS", ()))
    ]
    paper = grid(
        tuple(columns),
        {
            "FedAvg": ("87.8", "88.8", "89.7", "88.8", "89.3", "89.4"),
            "FedPNS": ("88.6", "89.5", "89.9", "89.1", "89.8", "89.8"),
        },
    )
    return Experiment(
        "FedPNS, MNIST, logistic regression: test accuracy in %",
        tuple(cells),
        (
            Measure("Mean of the last ten rounds (the paper's in brackets).", last_accuracy, 1, paper),
            *beside_fedavg("Mean of rounds 21 to 30", round=30),
        ),
        "test/accuracy",
        limits=(0.7, 0.92),
    )


def hics() -> Experiment:
    """HiCS-FL, Fashion-MNIST, setting (2), the paper's kind of network: rounds to 75 %."""
    return _hics("HiCS-FL, Fashion-MNIST: rounds to 75 %", "hics/fashion_mnist.yaml")


def hics_small() -> Experiment:
    """HiCS-FL, Fashion-MNIST, setting (2), with a small network: rounds to 75 %."""
    return _hics("HiCS-FL, Fashion-MNIST, small network: rounds to 75 %", "hics/fashion_mnist_small.yaml")


def _hics(title: str, file: str) -> Experiment:
    rows = {
        "Uniform": EQUAL,
        "PowD": ("--selector", "PowD", "--selector.d", "50"),
        "PowD d 10": ("--selector", "PowD", "--selector.d", "10"),
        "ClusteredSampling": ("--selector", "ClusteredSampling"),
        "DivFL": ("--selector", "DivFL"),
        "HiCS": (),
        "HiCS auto": ("--selector.temperature", "auto"),
        "HiCS weights": ("--selector.temperature", "auto", "--selector.signal", "weight_mean"),
        "HiCS oracle": ("--selector", "HiCSOracle"),
    }
    column = "setting (2)"
    cells = [Cell(row, column, file, settings) for row, settings in rows.items()]
    paper = {"Uniform": "149", "PowD": "79", "ClusteredSampling": "114", "DivFL": "478", "HiCS": "60"}
    return Experiment(
        title,
        tuple(cells),
        (
            *to_target(
                {(row, column): number for row, number in paper.items()}, rounds=(50, 100, 200), warmup=10
            ),
            *(
                Measure(
                    f"Trainings of rounds {first} to {last} by the ten clients of Dirichlet 0.2, in %.",
                    partial(share_of, clients=range(40, 50), first=first, last=last),
                    0,
                )
                for first, last in ((11, 50), (51, 100), (101, 200))
            ),
        ),
        "test/accuracy",
        window=13,
        limits=(0.2, 0.85),
        drawn=tuple(row for row in rows if row != "PowD d 10"),
        target={column: 0.75},
    )


def fedcat() -> Experiment:
    """FedCat on MNIST with a small network: accuracy of the last ten evaluations."""
    rows = {
        "FedAvg": ("--selector", "Uniform"),
        "grouping only": ("--selector.concatenation", "false"),
        "concatenation only": ("--selector.grouping", "false"),
        "FedCat": (),
    }
    cells = [Cell(row, "Dir(0.1)", "fedcat/mnist_small.yaml", settings) for row, settings in rows.items()]
    paper = {("FedAvg", "Dir(0.1)"): "99.04", ("FedCat", "Dir(0.1)"): "99.21"}
    return Experiment(
        "FedCat, MNIST, small network: test accuracy in %",
        tuple(cells),
        (
            Measure("Mean of the last ten evaluations (the paper's, with its CNN).", last_accuracy, 2, paper),
            *beside_fedavg("Mean of the ten evaluations up to round 100", round=100),
        ),
        "test/accuracy",
        limits=(0.0, 1.0),
    )
