"""Selectors beside Flower's own FedAvg: seconds a round, and accuracy on clients with two label shards each.

A Flower app in plain PyTorch, whose nodes are called in this process; FedAvg and SelectorStrategy run it in
turn. Needs ``flsel[flower]``: ``.venv-flower/bin/python benchmarks/flower_fedavg.py --data-root DATA``.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torchvision.datasets import FashionMNIST

sys.path.append(str(Path(__file__).parents[1] / "tests/flower"))

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from grids import LocalGrid

from flsel.flower import SelectorStrategy, answer
from flsel.rng import generator
from flsel.selector import Selector
from flsel.selectors import DivFL, FedCor, FedGS, HiCS, PowD, Uniform

Examples = tuple[torch.Tensor, torch.Tensor]
PER_CLIENT, TESTED, LAST = 200, 2000, 5
SELECTORS: dict[str, Callable[[int], Selector]] = {
    "Uniform": lambda rounds: Uniform(),
    "PowD": lambda rounds: PowD(),
    "FedCor": lambda rounds: FedCor(warmup=rounds // 4),
    "DivFL": lambda rounds: DivFL(),
    "HiCS": lambda rounds: HiCS(),
    "FedGS": lambda rounds: FedGS(),
}


def net(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


@cache
def images(root: str, train: bool) -> Examples:
    data = FashionMNIST(root, train=train, download=False)
    return (data.data.float() / 255 - 0.286) / 0.353, data.targets


class Federation:
    """Nodes in this process, each with two shards of the examples that are sorted by label."""

    def __init__(self, root: str, nodes: int, seed: int) -> None:
        x, y = images(root, True)
        rng = generator(seed, "shards")
        some = rng.permutation(len(y))[: nodes * PER_CLIENT]
        shards = np.array_split(some[np.argsort(y.numpy()[some], kind="stable")], 2 * nodes)
        order = rng.permutation(2 * nodes)
        dealt = [np.concatenate([shards[order[2 * i]], shards[order[2 * i + 1]]]) for i in range(nodes)]
        self.clients = [(x[where], y[where]) for where in map(torch.from_numpy, dealt)]
        self.test = tuple(part[:TESTED] for part in images(root, False))
        self.seed, app = seed, ClientApp()
        app.train()(self.train)
        answer(app, labels=self.labels, losses=self.losses, gradient=self.gradient)
        self.grid = LocalGrid({100 + i: (app, {"partition-id": i}) for i in range(nodes)})

    def loaded(self, arrays: ArrayRecord, context: Context) -> tuple[torch.nn.Module, Examples, int]:
        model, client = net(), int(context.node_config["partition-id"])
        model.load_state_dict(arrays.to_torch_state_dict())
        return model, self.clients[client], client

    def train(self, message: Message, context: Context) -> Message:
        model, (x, y), client = self.loaded(message.content["arrays"], context)
        round = message.content["config"]["server-round"]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        order = torch.from_numpy(generator(self.seed, "batches", round, client).permutation(len(y)))
        for batch in order.split(20):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(y), "steps": math.ceil(len(y) / 20)})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
        )

    def labels(self, context: Context) -> list[int]:
        return list(self.clients[int(context.node_config["partition-id"])][1].tolist())

    def losses(self, arrays: ArrayRecord, context: Context) -> torch.Tensor:
        model, (x, y), _ = self.loaded(arrays, context)
        with torch.no_grad():
            return cross_entropy(model(x), y, reduction="none")

    def gradient(self, arrays: ArrayRecord, context: Context) -> ArrayRecord:
        model, (x, y), _ = self.loaded(arrays, context)
        cross_entropy(model(x), y).backward()
        return ArrayRecord({name: value.grad for name, value in model.named_parameters()})

    def accuracy(self, arrays: ArrayRecord) -> float:
        model, (x, y) = net(), self.test
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            return float((model(x).argmax(dim=1) == y).float().mean())


def strategy(name: str, nodes: int, chosen: int, seed: int, rounds: int) -> Any:
    if name == "Flower's FedAvg":
        random.seed(seed)  # what it draws from
        share = chosen / nodes
        return FedAvg(share, 0.0, min_train_nodes=chosen, min_available_nodes=nodes)
    return SelectorStrategy(
        SELECTORS[name](rounds), clients=nodes, clients_per_round=chosen, seed=seed, fraction_evaluate=0.0
    )


def run(
    name: str, options: argparse.Namespace, nodes: int, seed: int, *, measured: bool
) -> tuple[float, float]:
    """Return seconds a round, and the mean accuracy over the last rounds."""
    federation = Federation(options.data_root, nodes, seed)
    found: list[float] = []

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round > options.rounds - LAST:
            found.append(federation.accuracy(arrays))

    made = strategy(name, nodes, options.chosen, seed, options.rounds)
    started = time.perf_counter()
    made.start(
        federation.grid,
        ArrayRecord(net(seed).state_dict()),
        num_rounds=options.rounds,
        evaluate_fn=evaluate if measured else None,
    )
    return (time.perf_counter() - started) / options.rounds, statistics.fmean(found) if found else math.nan


def interval(values: list[float]) -> str:
    """Return a mean with its 95 % interval by Student's t, in points."""
    from scipy.stats import t

    mean, half = statistics.fmean(values), math.nan
    if len(values) > 1:
        half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default="../shared/data")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=30, help="nodes of the table of accuracy")
    parser.add_argument("--chosen", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", help="some selectors beside FedAvg, such as FedCor,FedGS")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    names = ["Flower's FedAvg", *(options.only.split(",") if options.only else SELECTORS)]
    took: dict[str, list[float]] = {name: [] for name in names}
    scores: dict[str, list[float]] = {name: [] for name in names}
    # In turn, so that whatever else the machine does meets all of them.
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in names:
            took[name].append(run(name, options, 10, seed, measured=False)[0])
            scores[name].append(run(name, options, options.nodes, seed, measured=True)[1])
    print(
        f"{options.rounds} rounds, {options.chosen} of {options.nodes} nodes a round, {options.seeds} seeds"
    )
    print("| strategy | ms a round, 10 nodes | accuracy (%) | difference from FedAvg (points) |")
    print("|---|---|---|---|")
    for name in names:
        pairs = zip(scores[name], scores[names[0]], strict=True)
        apart = "" if name == names[0] else interval([one - other for one, other in pairs])
        print(f"| {name} | {1000 * min(took[name]):.0f} | {interval(scores[name])} | {apart} |")


if __name__ == "__main__":
    main()
