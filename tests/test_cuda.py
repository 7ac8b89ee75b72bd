"""On a GPU: the same numbers as on the CPU, the same bits after a resume, every selector at work.

FLSEL_DEVICE=cpu runs the same tests where there is none, to see that they could.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from runs import built, same, settings
from torch import nn, optim

from flsel import selectors
from flsel.config.groups import LocalConfig
from flsel.data.data_config import DataConfig
from flsel.execution.run import run

DEVICE = os.environ.get("FLSEL_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no CUDA device here"
)
SGD = partial(optim.SGD, lr=0.05, momentum=0.9)
NAMES = [name for name in selectors.__all__ if name != "Complete"]


def dropping() -> nn.Module:
    """A network whose masks are the same everywhere."""
    return nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 4))


def after_run(config: Any) -> Any:
    server = built(config).server
    while not server.finished:
        server.step()
    return server


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_the_cpu_and_the_device_end_in_the_same_model(tmp_path, backend):
    local = LocalConfig(batch_size=5, steps=3, optimizer=SGD, backend=backend)
    config = settings(tmp_path, model=dropping(), local=local, precision="64-true")
    ours = after_run(config).params
    theirs = after_run(replace(config, accelerator=DEVICE)).params
    for name, value in ours.items():
        assert theirs[name].device.type == DEVICE
        torch.testing.assert_close(theirs[name].cpu(), value.cpu(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kept", [False, True])
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, kept):
    local = LocalConfig(batch_size=5, steps=3, optimizer=SGD, keep_optimizer=kept)
    config = settings(tmp_path, model=dropping(), local=local, accelerator=DEVICE)
    server = built(config).server
    for _ in range(3):
        server.step()
    torch.save(server.state_dict(), tmp_path / "state")
    again = built(config).server
    again.load_state_dict(torch.load(tmp_path / "state", weights_only=True, map_location="cpu"))
    while not server.finished:
        server.step()
        again.step()
    assert same(again.state_dict(), server.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_every_selector_runs_there(tmp_path, name):
    data = settings(tmp_path).data
    data = DataConfig(synthetic=data.synthetic, server=0.1)
    run(settings(tmp_path, rounds=4, data=data, selector=getattr(selectors, name)(), accelerator=DEVICE))
    assert (tmp_path / "run/summary.json").exists()
