"""Local training against a plain hand-written PyTorch loop: whole rounds, the same arithmetic."""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from measure import alternate, drift, options, ratios, spread, table, verdict
from settings import FASHION_MLP, image_data, image_run, start, wait
from torch import nn

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.config import DataConfig
from flsel.local.batches import schedule
from flsel.models import McMahanCNN
from flsel.rng import generator
from flsel.runner.build import Built, build, make_fabric

RATE = 0.05
# In float64 only the order of sums differs; a wrong batch, weight or learning rate is off by 1e-3.
TOLERANCE = 1e-12
PLAIN = "plain loop"
BACKENDS = ("vmap", "sequential")


@dataclass(frozen=True)
class Case:
    """A workload, ten clients a round, and how many times the plain loop's time each backend may take."""

    name: str
    model: Callable[[], nn.Module]
    clients: int
    local: LocalConfig
    rounds: int
    best: float
    sequential: float | None


SGD = partial(torch.optim.SGD, lr=RATE)
CASES = (
    Case(
        name="MLP 784-64-30-10, 100 clients, 20 steps of 64",
        model=FASHION_MLP,
        clients=100,
        local=LocalConfig(batch_size=64, steps=20, optimizer=SGD),
        rounds=40,
        best=1.0,
        sequential=1.2,
    ),
    Case(
        name="McMahan CNN, 10 clients, 10 steps of 32",
        model=McMahanCNN,
        clients=10,
        local=LocalConfig(batch_size=32, steps=10, optimizer=SGD),
        rounds=8,
        best=1.1,
        sequential=None,
    ),
)


class PlainLoop:
    """FedAvg as one writes it by hand, on the data and from the start model of a built run."""

    def __init__(self, built: Built) -> None:
        self.data = built.data.population
        self.spec = built.program.spec
        self.model = copy.deepcopy(built.program.model)
        self.params = {name: p.detach().clone() for name, p in built.server.params.items()}
        self.round = 0

    def play(self) -> None:
        """Play one round: the uniform draw, the batches and the weights are flsel's."""
        clients = generator(1, "select", self.round).choice(len(self.data.shards), 10, replace=False)
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
        optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        for row in schedule(self.spec, len(shard), seed=1, round=self.round, client=client):
            positions = shard[row[row >= 0]].to(self.data.x.device)
            x, y = self.data.normalize(self.data.x[positions]), self.data.y[positions]
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            optimizer.step()


def measure(case: Case, data: DataConfig, chosen: argparse.Namespace) -> list[list[str]]:
    """Check that all sides end in the same model, time them, and return the rows of the table."""
    config = image_run(case.model, data, case.local, clients=case.clients, accelerator=chosen.accelerator)
    if chosen.accelerator != "mps":  # which has no float64
        _check_equal(case, replace(config, precision="64-true", local=replace(case.local, steps=2)))
    plain, built = _sides(config)
    device = plain.data.x.device
    rounds = {PLAIN: plain.play} | {backend: run.server.step for backend, run in built.items()}
    sides = {name: partial(_timed, play, device) for name, play in rounds.items()}
    alternate(sides, 1 if chosen.quick else 3)
    seconds = alternate(sides, 3 if chosen.quick else case.rounds)
    if warning := drift(seconds[PLAIN]):
        print(f"**{case.name}: {warning}**\n")
    best = min(BACKENDS, key=lambda backend: median(seconds[backend]))
    most = {"sequential": case.sequential, best: case.best}
    return [[case.name, *_row(side, seconds, most.get(side))] for side in seconds]


def _sides(config: RunConfig) -> tuple[PlainLoop, dict[str, Built]]:
    """Build the plain loop and a run of every backend, all at the same start model."""
    config = replace(config, rounds=1000, evaluation=EvaluationConfig(every=1000))
    built = {}
    for backend in BACKENDS:
        own = replace(config, local=replace(config.local, backend=backend))
        built[backend] = build(own, make_fabric(own))
    return PlainLoop(built["sequential"]), built


def _check_equal(case: Case, config: RunConfig) -> None:
    plain, built = _sides(config)
    plain.play()
    for backend, run in built.items():
        run.server.step()
        worst = max(float((plain.params[n] - p).abs().max()) for n, p in run.server.params.items())
        if not worst < TOLERANCE:
            raise SystemExit(f"{case.name}: {backend} and the plain loop ended {worst:.1e} apart.")


def _timed(play: Callable[[], object], device: torch.device) -> None:
    play()
    wait(device)


def _row(side: str, seconds: dict[str, list[float]], most: float | None) -> list[str]:
    ratio = ratios(seconds[side], seconds[PLAIN])
    judged = ["", ""] if most is None else [f"<= {most:.1f}", verdict(median(ratio), most)]
    fastest = min(seconds[side]) / min(seconds[PLAIN])
    return [side, spread(seconds[side], " ms", 1000, 1), spread(ratio), f"{fastest:.2f}", *judged]


def main() -> None:
    chosen = options(__doc__)
    start(chosen)
    with tempfile.TemporaryDirectory() as folder:
        data = image_data(chosen.data_root, Path(folder))
        rows = [row for case in CASES for row in measure(case, data, chosen)]
    print(f"Data: {data.name}. One round of 10 clients: selection, local training, average; no evaluation.\n")
    print(
        table(
            ("workload", "side", "time a round", "times the plain loop", "fastest by fastest", "target", ""),
            rows,
        )
    )


if __name__ == "__main__":
    main()
