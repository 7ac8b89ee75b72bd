"""A run warns of a selector that draws from a generator which is not its own."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
import runs
import torch

from flsel.engine.checks import _warn
from flsel.runner.play import run
from flsel.selector import Plan, Selector, View

DRAWS = {
    "random": random.random,
    "numpy.random": np.random.random,
    "torch": lambda: torch.rand(1),
    "none": lambda: None,
}


class Careless(Selector):
    def __init__(self, source: str = "none") -> None:
        self.source = source

    def select(self, view: View) -> Plan:
        DRAWS[self.source]()
        return Plan.star(view.rng.permutation(view.pool)[: view.budget])


@pytest.mark.parametrize("source", DRAWS)
def test_global_randomness_is_said_once(tmp_path, caplog, source):
    _warn.cache_clear()
    with caplog.at_level(logging.WARNING, logger="flsel"):
        run(runs.settings(tmp_path, selector=Careless(source)))
    said = [record.getMessage() for record in caplog.records if "global generator" in record.getMessage()]
    assert len(said) == (source != "none")
    assert all(f"Careless draws from the global generator of {source}, so" in line for line in said)
