"""What every selector adds to the rounds of the Fashion-MNIST run, beyond the client passes it asks for."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from contenders import CONTENDERS
from full_run import CONFIG
from measure import options, table, verdict
from settings import image_data, start, wait
from timed import Timed

from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.runner.build import build
from flsel.selector import Need, Selector

MOST = 10.0
# By then everybody has been met: HiCS has asked all 100 clients, five a round, and FedCor's warm-up is over.
START, AFTER = 21, 30
HOLDOUT = 0.05


@dataclass(frozen=True)
class Rounds:
    """Seconds of each round.

    Attributes:
        own: The selector's own.
        asked: What clients and server took to answer it.
        rest: All else: local training, average, evaluation.
    """

    own: list[float]
    asked: list[float]
    rest: list[float]


def measure(make: Callable[[], Selector], config: RunConfig, rounds: int) -> Rounds:
    """Run the first rounds of the run."""
    selector = make()
    server = HOLDOUT if Need.SERVER_LOSS in selector.needs else 0.0
    config = replace(config, selector=Timed(selector), data=replace(config.data, server=server))
    built = build(config)
    timed, device = built.server.selector, built.program.task.device
    assert isinstance(timed, Timed)
    measured = Rounds([], [], [])
    while len(measured.own) < rounds:
        began = time.perf_counter()
        built.server.step()
        wait(device)
        total = time.perf_counter() - began
        own, asked = timed.lap()
        measured.own.append(own)
        measured.asked.append(asked)
        measured.rest.append(total - own - asked)
    return measured


def row(name: str, measured: Rounds, first: int, rounds: int) -> list[str]:
    """Write a row of the table.

    Args:
        name: Of the selector.
        measured: The seconds of its rounds.
        first: Rounds of the start, fewer than were measured.
        rounds: Rounds of the whole run: the start, and others like those measured after it.
    """
    rest = median(measured.rest)
    early, late = measured.own[:first], measured.own[first:]
    whole = (first * mean(early) + (rounds - first) * mean(late)) / rounds
    share = 100 * whole / rest
    return [
        name,
        *_milliseconds([mean(early), median(late), mean(late), max(late), mean(measured.asked), rest]),
        f"{100 * median(late) / rest:.1f} %",
        f"{share:.1f} %",
        verdict(share, MOST),
    ]


def _milliseconds(seconds: Sequence[float]) -> list[str]:
    return [f"{1000 * value:.2f}" for value in seconds]


def main() -> None:
    chosen = options(__doc__)
    start(chosen)
    first, after = (2, 2) if chosen.quick else (START, AFTER)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.from_file(CONFIG)
        data = image_data(chosen.data_root, Path(folder))
        config = replace(config, data=data, accelerator=chosen.accelerator, quiet=True)
        for name, make in CONTENDERS.items():
            try:
                rows.append(row(name, measure(make, config, first + after), first, config.rounds))
            except UserError as error:
                rows.append([name, str(error), *[""] * 8])
            print(*rows[-1], file=sys.stderr, flush=True)
    _show(rows, config, first, after)


def _show(rows: list[list[str]], config: RunConfig, first: int, after: int) -> None:
    print(
        f"`{CONFIG.name}` with N = {config.clients}, K = {config.clients_per_round}, evaluated every round. "
        f"*First {first}*, *later*, *mean* and *worst* are milliseconds of select, weigh and observe, "
        "without the answers of clients and server (*asked*). *Rest* is the median of everything else in a "
        f"round (training, average, evaluation). The first {first} rounds are those in which all clients "
        f"take part for the first time; {after} more rounds follow. The last two columns are shares of "
        f"*rest*: the median of the later rounds, and the mean of all {config.rounds} rounds if they "
        f"continue like these. The target is a mean of at most {MOST:g} %. FedCat's round is a plan of "
        f"{config.clients_per_round}.\n"
    )
    columns = ("selector", f"first {first}, mean", "later, median", "mean", "worst", "asked, mean", "rest")
    print(table((*columns, "median share", "share of the run", ""), rows))


if __name__ == "__main__":
    main()
