"""Every selector on a device for four rounds: the CPU's models, and no more reads by the host than needed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL, built, settings
from standin_device import SIM, host_reads
from torch import optim

from flsel import selectors
from flsel.config.groups import LocalConfig
from flsel.data.data_config import DataConfig
from flsel.devices import LogNormal

SGD = partial(optim.SGD, lr=0.1, momentum=0.9)
TIMED = ("FedCS", "HACCS", "Oort", "TiFL")
# Of a round: whether all updates are finite, and of two sets of an evaluation the sums in one piece.
ROUND = 3
# What a selector's questions take beside, from the second round on: norms, or the output layer.
LEARNS = dict.fromkeys(("GradientNorm", "HiCSOracle", "KVib", "OptimalSampling", "OSMD", "Oort", "Pisces"), 1)
# Norms and products; layer and signal; the updates' two tensors; the norms, and losses of subsets.
LEARNS |= {"FedPNS": 2, "HiCS": 2, "ClusteredSampling": 2, "DivFL": 2, "GreedyFed": 4}
# What a selector gets from the trainer is the same for the same needs: one of them stands for all.
FIRST = {getattr(selectors, name)().needs: name for name in reversed(selectors.__all__)}
# Clients that tell a loss: sequential asks them one by one, the compiled trainer all at once.
TELL = {"AFL": 3, "FedCor": 8, "HACCS": 3, "PowD": 6, "UCBCS": 3}


def ended(folder: Path, name: str, backend: Any, accelerator: str = "sim") -> tuple[Any, list[Any]]:
    """Four rounds of a selector: the server, and what the host read in each."""
    # The probe of sequential training reads, too, in the rounds that it judges.
    check = "off" if backend == "sequential" else "auto"
    config = settings(
        folder,
        rounds=4,
        clients_per_round=8 if name == "Complete" else 3,
        data=DataConfig(synthetic=SMALL, server=0.1),
        local=LocalConfig(
            batch_size=5, steps=1, optimizer=SGD, backend=backend, last_batch="wrap", check=check
        ),
        selector=getattr(selectors, name)(),
        devices=LogNormal() if name in TIMED else None,
        precision="64-true",
        accelerator=accelerator,
    )
    server, reads = built(config).server, []
    while not server.finished:
        with host_reads() as read:
            server.step()
        reads.append(read)
    return server, reads


@pytest.mark.parametrize("name", selectors.__all__)
def test_every_selector_chooses_and_learns_there_as_on_the_cpu(tmp_path: Path, name: str) -> None:
    here, _ = ended(tmp_path, name, "sequential", "cpu")
    plain, plain_reads = ended(tmp_path, name, "sequential")
    for key, value in here.params.items():
        assert plain.params[key].device == SIM
        assert torch.equal(plain.params[key].cpu(), value)
    assert torch.equal(plain.counts, here.counts)
    assert plain.ledger == here.ledger
    needed = ROUND + LEARNS.get(name, 0)
    assert [read.total() for read in plain_reads[1:]] == [needed + TELL.get(name, 0)] * (len(plain_reads) - 1)
    if name not in FIRST.values():
        return
    fast, fast_reads = ended(tmp_path, name, "compiled")
    for key, value in here.params.items():
        assert fast.params[key].device == SIM
        torch.testing.assert_close(fast.params[key].cpu(), value.data, rtol=1e-9, atol=1e-9)
    assert torch.equal(fast.counts, here.counts)
    assert fast.ledger["trainings"] == here.ledger["trainings"]
    # The self-check, and a step of a new shape, take some in other rounds.
    assert min(read.total() for read in fast_reads[1:]) == needed + (name in TELL)
