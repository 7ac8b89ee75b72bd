"""What the self-check costs in a run: clients that sequential trains, too, and one that trains twice."""

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
from trainers import CASES

from flsel.config import RunConfig
from flsel.config.groups import OutputConfig
from flsel.data.data_config import DataConfig
from flsel.engine.evaluation import Evaluator
from flsel.local.judge import CheckedTrainer
from flsel.local.sequential import SequentialTrainer
from flsel.partition import Natural
from flsel.runner.build import build
from flsel.runner.session import Session

ROOT = Path(__file__).parents[1]
QUICKSTART = "quickstart"
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


def config_of(name: str, data: DataConfig, chosen: argparse.Namespace) -> RunConfig:
    """Return the settings of a workload's run, with an evaluation after each round."""
    if name == QUICKSTART:
        return RunConfig.from_file(ROOT / "configs" / "runs" / "quickstart.yaml")
    case = CASES[name]
    config = image_run(case.model, data, case.local, clients=case.clients, accelerator=chosen.accelerator)
    if case.synthetic:
        config = replace(config, data=DataConfig(name="synthetic"), partition=Natural())
    return replace(config, clients_per_round=case.cohort, rounds=chosen.rounds)


def measure(name: str, config: RunConfig, folder: Path) -> list[str]:
    """Execute a run, and return the row of the table."""
    config = replace(config, threads=1, quiet=True, output=OutputConfig(dir=str(folder)))
    watch, answers = Watch(), Watch()
    kept = SequentialTrainer.train, CheckedTrainer._compare, CheckedTrainer._choose, Evaluator._measure
    SequentialTrainer.train = watch.over(kept[0], counts=True)  # type: ignore[method-assign]
    CheckedTrainer._compare = watch.over(kept[1])  # type: ignore[method-assign]
    CheckedTrainer._choose = watch.over(kept[2])  # type: ignore[method-assign]

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
        CheckedTrainer._choose, Evaluator._measure = kept[2], kept[3]  # type: ignore[method-assign]
    assert session.built.program.agreement.found_ == {}, "nothing is wrong with these models"
    spent = watch.seconds + answers.seconds
    share = 100 * spent / (whole - spent)
    limit = [f"<= {MOST:g} %", verdict(share, MOST)] if name in ("W1", "W2", "W4") else ["", ""]
    trained = config.rounds * config.clients_per_round
    times = (f"{1000 * each.seconds:.0f} ms" for each in (watch, answers))
    row = [name, str(config.rounds), f"{whole:.1f} s", f"{watch.visits} of {trained}"]
    return [*row, *times, f"{share:.2f} %", *limit]


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    names = [QUICKSTART, *CASES]
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="workloads (all)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of a run (100)")
    chosen = parser.parse_args()
    start(chosen)
    with tempfile.TemporaryDirectory() as folder:
        data = image_data(chosen.data_root, Path(folder))
        rows = [measure(name, config_of(name, data, chosen), Path(folder)) for name in chosen.only]
    print(f"Data: {data.name}, quickstart and W3 synthetic; processor time.\n")
    times = ("training", "evaluation")
    head = ("workload", "rounds", "run", "visits trained for it", *times, "share of the run", "limit", "")
    print(table(head, rows))


if __name__ == "__main__":
    main()
