"""What all sides share: data, networks, who trains on which batches, and the gate between rounds.

Needs NumPy and torch only. A round's clients and batches are flsel's, written down by ``compare.py``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

LR = 0.05


class Workload:
    """One workload, as ``compare.py`` wrote it.

    Attributes:
        clients: N.
        x, y: Images as bytes and labels, of everybody.
        cohorts: Clients of every round, int64 ``[rounds, K]``.
        start: Parameters of the initial model, by name.
    """

    def __init__(self, path: str) -> None:
        held = np.load(path)
        self.clients = int(held["clients"])
        self.cohorts = held["cohorts"]
        self._kind = str(held["kind"])
        self.x, self.y = torch.from_numpy(held["x"]), torch.from_numpy(held["y"])
        self._positions = torch.from_numpy(held["positions"])
        self._scale, self._shift = float(held["scale"]), float(held["shift"])
        self.start = {name[2:]: torch.from_numpy(held[name]) for name in held.files if name[:2] == "p."}

    def model(self) -> nn.Module:
        """Make the network, with the initial parameters."""
        net = mlp() if self._kind == "W1" else cnn()
        net.load_state_dict(dict(zip(net.state_dict(), self.start.values(), strict=True)))
        return net

    def batches(self, round: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a client's normalised batches in a round."""
        (place,) = np.flatnonzero(self.cohorts[round] == client)
        for row in self._positions[round, place]:
            where = row[row >= 0]  # the last batch of a pass has what is left
            x = self.x.index_select(0, where).float().mul_(self._scale).add_(self._shift)
            yield x, self.y.index_select(0, where)

    @property
    def steps(self) -> int:
        """Batches that a client trains on in a round."""
        return int(self._positions.shape[2])

    @property
    def examples(self) -> int:
        """Examples that a client trains on in a round."""
        return int((self._positions[0, 0] >= 0).sum())


def mlp() -> nn.Module:
    """Return the network of W1."""
    layers = [nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def cnn() -> nn.Module:
    """Return the network of W2, of McMahan et al."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


class Gate:
    """Stops a side between rounds until it is its turn, and times the rounds."""

    def __init__(self) -> None:
        # What a library prints is not for the driver.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._began = (0.0, 0.0)

    def wait(self, parameters: Callable[[], Mapping[str, Tensor]]) -> None:
        """Wait to be told to go on; ends the process if nothing more is wanted."""
        for line in sys.stdin:
            word, _, path = line.strip().partition(" ")
            if word == "save":
                torch.save([value.detach().clone() for value in parameters().values()], path)
                self._say({})
            elif word == "go":
                self._began = (time.perf_counter(), _processor_time())
                return
            else:
                break
        os._exit(0)

    def done(self, parameters: Callable[[], Mapping[str, Tensor]], examples: int) -> None:
        """Tell how long the round took, then wait."""
        wall, cpu = (now - then for now, then in zip(_now(), self._began, strict=True))
        self._say({"wall": wall, "cpu": cpu, "examples": examples, "memory": _memory()})
        self.wait(parameters)

    def ready(self, parameters: Callable[[], Mapping[str, Tensor]]) -> None:
        """Tell that the first round can begin, then wait."""
        self._say({})
        self.wait(parameters)

    def _say(self, what: object) -> None:
        print(json.dumps(what), file=self._out, flush=True)


def _now() -> tuple[float, float]:
    return time.perf_counter(), _processor_time()


def _family() -> list[Path]:
    """Return the folders below /proc of this process and of all that descend from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return [Path("/proc", str(pid)) for pid in family]


def _processor_time() -> float:
    """Return the processor seconds of this process and of all that descend from it."""
    ticks = 0
    for path in _family():
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory() -> float:
    """Return the memory of this process and its descendants in GB, shared pages counted once."""
    total = 0
    for path in _family():
        try:
            lines = (path / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e9
