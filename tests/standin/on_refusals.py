"""The stand-in refuses what CUDA refuses, takes what CUDA takes, and counts what the host reads."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from standin_device import SIM, Sim, host_reads
from torch import nn
from torch.nn import functional

HOST = torch.arange(12.0).view(4, 3)
THERE = HOST.to(SIM)
FIRST = torch.tensor([0, 2])
NET = nn.Linear(3, 2).to(SIM)

REFUSED: dict[str, Callable[[], object]] = {
    "sum": lambda: THERE + HOST,
    "sum, host first": lambda: HOST + THERE,
    "a number there times a tensor here": lambda: HOST * THERE.sum(),
    "product": lambda: THERE @ HOST.T,
    "layer": lambda: NET(HOST),
    "labels": lambda: functional.cross_entropy(THERE, torch.zeros(4, dtype=torch.int64)),
    "write into the host": lambda: HOST.clone().add_(THERE),
    "condition": lambda: torch.where(HOST > 0, THERE, THERE),
    "concatenation": lambda: torch.cat([THERE, HOST]),
    "stack of numbers": lambda: torch.stack([THERE.sum(), HOST.sum()]),
    "rows by a table here": lambda: THERE.index_select(0, FIRST),
    "gather": lambda: THERE.gather(0, torch.zeros(1, 3, dtype=torch.int64)),
    "embedding": lambda: functional.embedding(FIRST, THERE),
    "index there into the host": lambda: HOST[FIRST.to(SIM)],
    "values here written by index": lambda: THERE.clone().index_put_((FIRST,), HOST[:2]),
    "values there written by index here": lambda: HOST.clone().index_put_((FIRST,), THERE[:2]),
    "rows copied by a table here": lambda: THERE.index_copy(0, FIRST, THERE[:2]),
    "generator of the host": lambda: torch.rand(3, device=SIM, generator=torch.Generator()),
    "an array": lambda: THERE.numpy(),
    "an array of it": lambda: np.asarray(THERE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_devices_is_refused(name: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"same device|device type"):
        REFUSED[name]()


READS: dict[str, tuple[int, Callable[[], object]]] = {
    "a number of the host": (0, lambda: THERE * torch.tensor(2.0)),
    "fill with a number of the host": (0, lambda: THERE.masked_fill(THERE > 3, torch.tensor(1.0))),
    "index of the host": (0, lambda: THERE[FIRST]),
    "list as an index": (0, lambda: THERE[[0, 1]]),
    "copy to the device": (0, lambda: THERE.clone().copy_(HOST)),
    "norm": (0, lambda: torch.linalg.vector_norm(THERE)),
    "clipping": (0, lambda: nn.utils.clip_grad_norm_(NET.parameters(), 1.0)),
    "copy of a module": (0, lambda: copy.deepcopy(NET)),
    "item": (1, lambda: THERE.sum().item()),
    "float": (1, lambda: float(THERE.sum())),
    "truth": (1, lambda: bool((THERE > 0).all())),
    "list": (1, lambda: THERE.tolist()),
    "cpu": (1, lambda: THERE.cpu()),
    "to with a dtype": (1, lambda: THERE.to("cpu", torch.float64)),
    "copy to the host": (1, lambda: HOST.clone().copy_(THERE)),
    "row of the host": (1, lambda: HOST.clone().__setitem__(0, THERE[0])),
    "mask": (1, lambda: THERE[THERE > 3]),
    "write by mask": (1, lambda: THERE.clone().__setitem__(THERE > 3, 0.0)),
    "nonzero": (1, lambda: THERE.nonzero()),
    "unique": (1, lambda: THERE.unique()),
    "equality": (1, lambda: torch.equal(THERE, THERE)),
    "numbers one by one": (3, lambda: [float(value) for value in THERE[0]]),
    "tensor of numbers": (2, lambda: torch.tensor([THERE.sum(), THERE.max()])),
}


@pytest.mark.parametrize("name", READS)
def test_what_the_host_reads_is_counted(name: str) -> None:
    expected, call = READS[name]
    with host_reads() as reads:
        call()
    assert reads.total() == expected, reads
    assert all("on_refusals.py" in place for place in reads)


def test_training_there_computes_the_bits_of_the_cpu_and_reads_nothing() -> None:
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    ends: list[Any] = []
    for device in ("cpu", SIM):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        with host_reads() as reads:
            for _ in range(3):
                optimizer.zero_grad()
                functional.cross_entropy(net(x.to(device)), y.to(device)).backward()
                optimizer.step()
        assert not reads
        ends.append({name: value.cpu() for name, value in net.state_dict().items()})
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_file_holds_the_values_for_any_device() -> None:
    buffer = io.BytesIO()
    torch.save({"value": THERE, **NET.state_dict()}, buffer)
    buffer.seek(0)
    found = torch.load(buffer, weights_only=True)
    assert not any(isinstance(value, Sim) for value in found.values())
    torch.testing.assert_close(found["value"], HOST)


def test_a_tensor_that_would_change_its_size_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="a wrapper has one size"):
        torch.zeros(2, device=SIM).resize_(5)
