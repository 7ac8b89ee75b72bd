"""How long selection, weighing and learning take per round, and in how much memory, without training."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from math import prod
from multiprocessing import get_context
from statistics import mean

import torch
from contenders import CONTENDERS, prepare
from measure import add_options, table, verdict
from synthetic import CLASSES, LOGISTIC, MLP, Synthetic
from timed import Timed

from flsel.errors import UserError
from flsel.selector import Selector
from flsel.selectors.fedcor import FedCor

CLIENTS = (100, 1_000, 10_000, 100_000)
BUDGETS = (10, 100)
QUICKSTART = (30, 6)  # N and K of the README's first run
ROUNDS, QUICKSTART_ROUNDS = 12, 60
RUN = 500  # Rounds that selectors which anneal are told of.
# A cell ends early when its rounds have taken this long; it has two rounds at least.
PATIENCE = 6.0
LARGE, SECONDS, GIGABYTES = 10_000, 1.0, 2.0
LINEAR, LINEAR_SECONDS = 100_000, 0.2
_WARMUP = 3
SIZES = {name: sum(map(prod, shapes.values())) for name, shapes in (("MLP", MLP), ("logistic", LOGISTIC))}
ABOUT = f"""\
Each cell is one process with at most {ROUNDS} rounds. The time of a round is that of select, weigh and
observe, without the answers of clients and server. All clients are available and have taken part before.
Updates have {SIZES["MLP"]:,} numbers (MLP 784-64-30-10), for DivFL with {LARGE:,} and more clients
{SIZES["logistic"]} (logistic regression).

- *First* includes what a selector does once: FedGS builds its graph (above 2,000 clients it gets one, of
  random points), DivFL measures all clients.
- *Mean* and *worst* are over the later rounds. FedCor has {_WARMUP} rounds of warm-up, so that both kinds of
  its update occur, more often than in a run. FedCat's plan is divided by its K rounds.
- *Memory* is the rise of the process's peak, including the updates of a round.
- Targets: at N = {LARGE:,} at most {SECONDS:g} s and {GIGABYTES:g} GB in every round, except FedGS's graph;
  at N = {LINEAR:,} at most {LINEAR_SECONDS:g} s in every round, for selectors in O(N).
"""


@dataclass(frozen=True)
class Cell:
    """One selector at one size; ``rounds`` and ``patience`` bound how long it is measured."""

    name: str
    clients: int
    clients_per_round: int
    rounds: int
    patience: float
    threads: int
    cpu: bool


@dataclass(frozen=True)
class Measured:
    """Seconds of the first round, the mean and the worst of the others, and gigabytes."""

    first: float
    mean: float
    worst: float
    memory: float


def run_cell(cell: Cell) -> Measured | str:
    """Measure one cell in a process of its own; the selector's own error message where it refuses."""
    torch.set_num_threads(cell.threads)
    # A plan of FedCat takes K rounds.
    federation = Synthetic(cell.clients, _shapes(cell), cell.clients_per_round, RUN * cell.clients_per_round)
    before = _peak()
    timed = Timed(_contender(cell.name), time.process_time if cell.cpu else time.perf_counter)
    try:
        timed.reset(federation.sizes, CLASSES)
        prepare(timed.selector, federation)
        return _rounds(timed, federation, cell, before)
    except UserError as error:
        return str(error)


def _rounds(timed: Timed, federation: Synthetic, cell: Cell, before: float) -> Measured:
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < cell.rounds and sum(seconds) < cell.patience):
        view = federation.view(timed.needs)
        plan = timed.select(view)
        updates = federation.updates(plan, timed.needs)
        timed.observe(view, updates, timed.weigh(view, updates))
        seconds.append(timed.lap()[0] / plan.hops)
        federation.round += plan.hops
    later = seconds[1:]
    return Measured(seconds[0], mean(later), max(later), _peak() - before)


def _contender(name: str) -> Selector:
    # The default's 15 rounds of warm-up are longer than what is measured here.
    return FedCor(warmup=_WARMUP) if name == "FedCor" else CONTENDERS[name]()


def _shapes(cell: Cell) -> dict[str, tuple[int, ...]]:
    small = cell.clients == QUICKSTART[0] or (cell.name.startswith("DivFL") and cell.clients >= LARGE)
    return LOGISTIC if small else MLP


def _peak() -> float:
    """Return the most memory this process has had, in GB (10^9 bytes)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9


def cells(chosen: argparse.Namespace) -> list[Cell]:
    """List what is measured; complete participation has K = N."""
    rounds, patience = (2, 1.0) if chosen.quick else (ROUNDS, PATIENCE)
    return [
        # FedCor's updates are slow, and its other rounds come after them.
        Cell(
            name,
            clients,
            clients_per_round,
            rounds,
            patience * (10 if name == "FedCor" else 1),
            chosen.threads,
            chosen.clock == "cpu",
        )
        for name in chosen.only
        for clients in CLIENTS
        for clients_per_round in ([clients] if name == "Complete" else BUDGETS)
    ]


def quickstart_cells(chosen: argparse.Namespace) -> list[Cell]:
    """List every selector at the quickstart's size, Uniform first."""
    clients, budget = QUICKSTART
    names = ["Uniform", *(name for name in chosen.only if name != "Uniform")]
    rounds = 4 if chosen.quick else QUICKSTART_ROUNDS
    return [
        Cell(
            name,
            clients,
            clients if name == "Complete" else budget,
            rounds,
            PATIENCE,
            chosen.threads,
            chosen.clock == "cpu",
        )
        for name in names
    ]


def quickstart_rows(chosen: argparse.Namespace) -> list[list[str]]:
    """Measure the selectors' own work at the quickstart's size, in milliseconds and in Uniform's."""
    found = {cell.name: alone(cell) for cell in quickstart_cells(chosen)}
    usual = found["Uniform"]
    assert isinstance(usual, Measured)
    return [
        [name, measured, "", "", ""]
        if isinstance(measured, str)
        else [
            name,
            *(f"{1000 * seconds:.2f}" for seconds in (measured.first, measured.mean, measured.worst)),
            f"{measured.mean / usual.mean:.1f}",
        ]
        for name, measured in found.items()
    ]


def alone(cell: Cell) -> Measured | str:
    """Measure a cell in a process of its own, which starts with the libraries loaded and nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        try:
            return pool.submit(run_cell, cell).result()
        except BrokenProcessPool:
            return "the process was ended from outside, most likely because memory ran out"


def row(cell: Cell, found: Measured | str) -> list[str]:
    """Write one row of the table."""
    about = [cell.name, f"{cell.clients_per_round:,}"]
    if isinstance(found, str):
        return [*about, found, "", "", "", ""]
    times = [f"{1000 * seconds:.1f}" for seconds in (found.first, found.mean, found.worst)]
    return [*about, *times, f"{found.memory:.2f}", _judged(cell, found)]


def _judged(cell: Cell, found: Measured) -> str:
    """Say whether the targets of this size are met by the worst round, FedGS's graph left out."""
    worst = found.worst if cell.name == "FedGS" else max(found.first, found.worst)
    if cell.clients == LARGE:
        return verdict(max(worst / SECONDS, found.memory / GIGABYTES), 1)
    if cell.clients == LINEAR:
        return verdict(worst, LINEAR_SECONDS)
    return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time of the process"
    )
    parser.add_argument(
        "--only", nargs="*", choices=CONTENDERS, default=list(CONTENDERS), help="selectors (all)"
    )
    return parser.parse_args()


def main() -> None:
    chosen = _options()
    columns = ("selector", "first, ms", "mean, ms", "worst, ms", "of Uniform's")
    clients, budget = QUICKSTART
    about = table(columns, quickstart_rows(chosen))
    print(f"**The quickstart's size, N = {clients}, K = {budget}**\n\n{about}\n")
    rows: dict[int, list[list[str]]] = {clients: [] for clients in CLIENTS}
    for cell in cells(chosen):
        rows[cell.clients].append(row(cell, alone(cell)))
        print(cell.clients, *rows[cell.clients][-1], file=sys.stderr, flush=True)
    print(ABOUT)
    columns = ("selector", "K", "first, ms", "mean, ms", "worst, ms", "memory, GB", "target")
    for clients in CLIENTS:
        print(f"**N = {clients:,}**\n\n{table(columns, rows[clients])}\n")


if __name__ == "__main__":
    main()
