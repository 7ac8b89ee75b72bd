"""What the self-check and the verification of gradients cost in a run of 100 rounds."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure import add_options, table, verdict
from settings import image_data, image_run, start
from trainers import CASES, Case

from flsel.config.groups import OutputConfig
from flsel.data.data_config import DataConfig
from flsel.engine.evaluation import Evaluator
from flsel.local.compiled.engine import Engine
from flsel.local.judge import CheckedTrainer
from flsel.local.sequential import SequentialTrainer
from flsel.partition import Natural
from flsel.runner.build import build
from flsel.runner.session import Session

MOST = 2.0  # per cent of a run, in W1, W2 and W4


@dataclass
class Watch:
    """Processor time of some functions; of one within another only the outer one counts."""

    seconds: float = 0.0
    calls: int = 0
    visits: int = 0
    inside: bool = False

    def over(self, function: Callable[..., Any], counts: bool = False) -> Callable[..., Any]:
        """Return a function that does the same and is timed."""

        def timed(*values: Any, **named: Any) -> Any:
            self.visits += len(values[1]) if counts else 0
            if self.inside:
                return function(*values, **named)
            self.inside, began = True, time.process_time()
            try:
                return function(*values, **named)
            finally:
                self.inside = False
                self.seconds += time.process_time() - began

        return timed


def measure(case: Case, data: DataConfig, chosen: argparse.Namespace, folder: Path) -> list[str]:
    """Execute a run of 100 rounds with an evaluation after each, and return the row of the table."""
    config = image_run(case.model, data, case.local, clients=case.clients, accelerator=chosen.accelerator)
    config = replace(config, clients_per_round=case.cohort, rounds=4 if chosen.quick else 100, threads=1)
    if case.synthetic:
        config = replace(config, data=DataConfig(name="synthetic"), partition=Natural())
    config = replace(config, output=OutputConfig(dir=str(folder)))
    watch, answers, gradients = Watch(), Watch(), Watch()
    verified = Engine._agrees
    Engine._agrees = gradients.over(verified)  # type: ignore[method-assign]
    kept = SequentialTrainer.train, CheckedTrainer._compare, CheckedTrainer._chosen, Evaluator._measure
    SequentialTrainer.train = watch.over(kept[0], counts=True)  # type: ignore[method-assign]
    CheckedTrainer._compare = watch.over(kept[1])  # type: ignore[method-assign]
    CheckedTrainer._chosen = watch.over(kept[2])  # type: ignore[method-assign]

    def evaluated(self: Evaluator, *values: Any, plain: bool = False, **named: Any) -> Any:
        return (answers.over(kept[3]) if plain else kept[3])(self, *values, plain=plain, **named)

    Evaluator._measure = evaluated  # type: ignore[method-assign]
    try:
        began = time.process_time()
        with Session.start(config, build(config)) as session:
            while not session.over:
                session.step()
            session.end()
        whole = time.process_time() - began
    finally:
        SequentialTrainer.train, CheckedTrainer._compare = kept[0], kept[1]  # type: ignore[method-assign]
        CheckedTrainer._chosen, Evaluator._measure = kept[2], kept[3]  # type: ignore[method-assign]
        Engine._agrees = verified  # type: ignore[method-assign]
    assert session.built.program.agreement.found_ == {}, "nothing is wrong with these models"
    spent = watch.seconds + answers.seconds + gradients.seconds
    share = 100 * spent / (whole - spent)
    limit = [] if case.synthetic else [f"<= {MOST:g} %", verdict(share, MOST)]
    rounds = config.rounds * case.cohort
    times = (f"{1000 * each.seconds:.0f} ms" for each in (watch, answers, gradients))
    row = [case.name, f"{whole:.1f} s", f"{watch.visits} of {rounds}", *times, f"{share:.2f} %"]
    return [*row, *(limit or ["", ""])]


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="workloads (all)")
    chosen = parser.parse_args()
    start(chosen)
    with tempfile.TemporaryDirectory() as folder:
        data = image_data(chosen.data_root, Path(folder))
        rows = [measure(CASES[name], data, chosen, Path(folder)) for name in chosen.only]
    print(f"Data: {data.name}, W3 synthetic. Runs of 100 rounds, an evaluation after each; processor time.\n")
    times = ("training", "evaluation", "gradients")
    head = ("workload", "run", "clients compared", *times, "share of the run", "limit", "")
    print(table(head, rows))


if __name__ == "__main__":
    main()
