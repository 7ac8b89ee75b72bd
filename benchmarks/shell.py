"""What a round costs besides local training and evaluation: selection, average, files, callbacks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

from lightning.pytorch import Callback
from measure import options, spread, table, verdict
from settings import FASHION_MLP, image_data, image_run, start
from stopwatch import timed_run
from torch import nn

from flsel.availability import IDL, LN, Availability
from flsel.config.groups import LocalConfig
from flsel.models import LogisticRegression


@dataclass(frozen=True)
class Case:
    """A population, how many of it train in a round, and how many milliseconds that may cost."""

    model: Callable[[], nn.Module]
    clients: int
    clients_per_round: int
    availability: Availability
    most: float


SMALL = partial(LogisticRegression)
CASES = (
    Case(SMALL, 100, 10, IDL(), most=10),
    Case(FASHION_MLP, 100, 10, IDL(), most=10),
    Case(SMALL, 10_000, 10, IDL(), most=50),
    Case(FASHION_MLP, 10_000, 10, IDL(), most=50),
    Case(FASHION_MLP, 10_000, 10, LN(), most=50),
    Case(FASHION_MLP, 10_000, 100, IDL(), most=50),
)


def main() -> None:
    chosen = options(__doc__)
    start(chosen)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = image_data(chosen.data_root, Path(folder))
        for case in CASES:
            config = image_run(
                case.model,
                data,
                LocalConfig(batch_size=5, steps=1),
                clients=case.clients,
                accelerator=chosen.accelerator,
            )
            config = replace(
                config,
                clients_per_round=case.clients_per_round,
                availability=case.availability,
                rounds=31 if chosen.quick else 301,
                callbacks=(Callback,),
                quiet=False,
            )
            rows.append(_row(case, timed_run(config, Path(folder), work=False).between()))
    print("Every round has an evaluation, and every tenth a checkpoint. The target is for the mean.\n")
    print(table(("model", "N", "K", "availability", "mean", "median", "target", ""), rows))


def _row(case: Case, times: list[float]) -> list[str]:
    cost = 1000 * mean(times)
    model = case.model.func.__name__  # type: ignore[attr-defined]
    sizes = [f"{case.clients:,}", str(case.clients_per_round), type(case.availability).__name__]
    judged = [f"<= {case.most:g} ms", verdict(cost, case.most)]
    return [model, *sizes, f"{cost:.2f} ms", spread(times, " ms", 1000), *judged]


if __name__ == "__main__":
    main()
