"""Local training against a plain hand-written PyTorch loop: whole rounds, the same arithmetic."""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import add_options, alternate, drift, ratios, spread, table, verdict
from settings import FASHION_MLP, image_data, image_run, start, wait
from torch import nn

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig
from flsel.execution.on_ray.workers import Workers, workers
from flsel.local.schedule import batch_table
from flsel.models import HiCSFashionCNN, LogisticRegression, McMahanCNN
from flsel.partition import Natural
from flsel.rng import generator
from flsel.runner.build import Built, build

# In float64 only the order of sums differs; a wrong batch, weight or learning rate is off by 1e-3.
TOLERANCE = 1e-12
PLAIN = "plain loop"
# A side's backend and its number of workers.
SIDES = {
    "compiled": ("compiled", 1),
    "compiled, two workers": ("compiled", 2),
    "sequential": ("sequential", 1),
}
SGD = torch.optim.SGD


@dataclass(frozen=True)
class Case:
    """A workload, and how many times the two-threaded plain loop's time the compiled step may take.

    Attributes:
        rounds: Turns of each side.
        in_a_turn: Rounds of a turn; those of a millisecond take many, as a run does.
    """

    name: str
    model: Callable[..., nn.Module]
    clients: int
    cohort: int
    local: LocalConfig
    rounds: int
    best: float
    two_workers: float
    synthetic: bool = False
    in_a_turn: int = 1


CASES = {
    "W1": Case(
        name="W1: MLP 784-64-30-10, 10 of 100 clients, 20 steps of 64",
        model=FASHION_MLP,
        clients=100,
        cohort=10,
        local=LocalConfig(batch_size=64, steps=20, optimizer=partial(SGD, lr=0.05)),
        rounds=40,
        best=0.30,
        two_workers=0.18,
    ),
    "W2": Case(
        name="W2: McMahan CNN, 10 clients, 10 steps of 32",
        model=McMahanCNN,
        clients=10,
        cohort=10,
        local=LocalConfig(batch_size=32, steps=10, optimizer=partial(SGD, lr=0.05)),
        rounds=8,
        best=0.82,
        two_workers=0.45,
    ),
    "W3": Case(
        name="W3: logistic regression 60-10, 6 of 30 clients, 10 steps of 10",
        model=LogisticRegression,
        clients=30,
        cohort=6,
        local=LocalConfig(batch_size=10, steps=10, optimizer=partial(SGD, lr=0.1)),
        rounds=100,
        best=0.12,
        two_workers=0.08,
        synthetic=True,
        in_a_turn=20,
    ),
    "W4": Case(
        name="W4: HiCS-FL's Fashion-MNIST CNN, 5 of 50 clients, 2 epochs of 1,200 in 64s, momentum",
        model=HiCSFashionCNN,
        clients=50,
        cohort=5,
        local=LocalConfig(
            batch_size=64, epochs=2, optimizer=partial(SGD, lr=0.01, momentum=0.9, weight_decay=5e-4)
        ),
        rounds=8,
        best=0.66,
        two_workers=0.36,
    ),
}


class PlainLoop:
    """FedAvg as one writes it by hand, on the data and from the start model of a built run."""

    def __init__(self, built: Built, config: RunConfig) -> None:
        assert config.local.optimizer is not None
        self.data = built.data.population
        self.spec = built.program.spec
        self.model = copy.deepcopy(built.program.model)
        self.make, self.cohort = config.local.optimizer, config.clients_per_round
        self.params = {name: p.detach().clone() for name, p in built.server.params.items()}
        self.round = 0

    def run_round(self) -> None:
        """Run one round: the uniform draw, the batches and the weights are flsel's."""
        draw = generator(1, "select", self.round)
        clients = draw.choice(len(self.data.shards), self.cohort, replace=False)
        examples = sum(len(self.data.shards[c]) for c in clients)
        total = {name: torch.zeros_like(p) for name, p in self.params.items()}
        for client in clients:
            self._train(int(client))
            for name, p in self.model.named_parameters():
                total[name].add_(p.detach(), alpha=len(self.data.shards[client]) / examples)
        self.params = total
        self.round += 1

    def _train(self, client: int) -> None:
        shard = self.data.shards[client]
        self.model.load_state_dict(self.params)
        optimizer = self.make(self.model.parameters())
        for row in batch_table(self.spec, shard.numpy(), seed=1, round=self.round, client=client):
            positions = torch.from_numpy(row[row >= 0]).to(self.data.x.device)
            x, y = self.data.normalize(self.data.x[positions]), self.data.y[positions]
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            optimizer.step()


def measure(case: Case, data: DataConfig, chosen: argparse.Namespace) -> list[list[str]]:
    """Check that all sides end in the same model, time them, and return the rows of the table."""
    config = image_run(case.model, data, case.local, clients=case.clients, accelerator=chosen.accelerator)
    config = replace(config, clients_per_round=case.cohort)
    if case.synthetic:
        config = replace(config, data=DataConfig(name="synthetic"), partition=Natural())
    few = replace(case.local, steps=2, epochs=None)
    exact = replace(config, precision="64-true", local=few)
    with workers() as processes:
        if chosen.accelerator != "mps":  # which has no float64
            _check_equal(case, exact, chosen.sides, processes)
        return _measure(case, config, chosen, processes)


def _measure(
    case: Case, config: RunConfig, chosen: argparse.Namespace, processes: Workers
) -> list[list[str]]:
    plain, built = _sides(config, chosen.sides, processes)
    device = plain.data.x.device
    rounds = {PLAIN: plain.run_round} | {side: run.server.step for side, run in built.items()}
    sides = {name: partial(_timed, run_round, device) for name, run_round in rounds.items()}
    clock = time.process_time if chosen.clock == "cpu" else time.perf_counter
    first = {name: times[0] for name, times in alternate(sides, 1, clock).items()}
    seconds = alternate(sides, 3 if chosen.quick else case.rounds, clock, case.in_a_turn)
    if warning := drift(seconds[PLAIN]):
        print(f"**{case.name}: {warning}**\n")
    most = {"compiled": case.best, "compiled, two workers": case.two_workers} if chosen.threads == 2 else {}
    return [[case.name, *_row(side, seconds, first, most)] for side in seconds]


def _sides(config: RunConfig, names: Sequence[str], processes: Workers) -> tuple[PlainLoop, dict[str, Built]]:
    """Build the plain loop and a run of every side, all at the same start model."""
    config = replace(config, rounds=10_000, evaluation=EvaluationConfig(every=10_000))
    built = {}
    for side in names:
        backend, count = SIDES[side]
        own = replace(config, local=replace(config.local, backend=backend, workers=count))
        built[side] = build(own, workers=processes)
    return PlainLoop(next(iter(built.values())), config), built


def _check_equal(case: Case, config: RunConfig, names: Sequence[str], processes: Workers) -> None:
    plain, built = _sides(config, names, processes)
    plain.run_round()
    for side, run in built.items():
        run.server.step()
        worst = max(float((plain.params[n] - p).abs().max()) for n, p in run.server.params.items())
        if not worst < TOLERANCE:
            raise SystemExit(f"{case.name}: {side} and the plain loop ended {worst:.1e} apart.")


def _timed(run_round: Callable[[], object], device: torch.device) -> None:
    run_round()
    wait(device)


def _row(
    side: str, seconds: dict[str, list[float]], first: Mapping[str, float], most: Mapping[str, float]
) -> list[str]:
    ratio = ratios(seconds[side], seconds[PLAIN])
    limit = most.get(side)
    judged = ["", ""] if limit is None else [f"<= {limit:.2f}", verdict(median(ratio), limit)]
    fastest = min(seconds[side]) / min(seconds[PLAIN])
    started = f"{1000 * first[side]:.0f} ms"
    return [side, spread(seconds[side], " ms", 1000, 1), spread(ratio), f"{fastest:.2f}", started, *judged]


def _options() -> argparse.Namespace:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time of this process"
    )
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES), help="sides (all)")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="workloads (all)")
    return parser.parse_args()


def main() -> None:
    chosen = _options()
    start(chosen)
    with tempfile.TemporaryDirectory() as folder:
        data = image_data(chosen.data_root, Path(folder))
        rows = [row for name in chosen.only for row in measure(CASES[name], data, chosen)]
    print(f"Data: {data.name}, W3 synthetic. One round: selection, local training, average; no evaluation.")
    print("W3's sides take turns of 20 rounds, the others' of one.\n")
    print(
        table(
            (
                "workload",
                "side",
                "time a round",
                "times the plain loop",
                "fastest by fastest",
                "first round",
                "target",
                "",
            ),
            rows,
        )
    )


if __name__ == "__main__":
    main()
