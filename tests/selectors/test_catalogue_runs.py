"""Selectors that learn, or draw while updates are weighed, in whole runs that are resumed at any round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from runs import differ_when_resumed, settings

from flsel.availability import LN
from flsel.selector import Selector
from flsel.selectors import (
    E3CS,
    F3AST,
    HACCS,
    OSMD,
    UCBCS,
    FedAU,
    FedCBS,
    GreedyFed,
    KVib,
    OptimalSampling,
)

MADE = [
    E3CS(),
    F3AST(0.1),
    FedAU(UCBCS()),
    FedCBS(),
    GreedyFed(),
    GreedyFed("softmax", exact=0, sweeps=2),
    HACCS(rho=0.0, privacy=1.0),
    KVib(),
    OSMD(),
    OptimalSampling(),
    UCBCS(),
]


@pytest.mark.parametrize("selector", MADE, ids=lambda made: type(made).__name__)
def test_a_run_that_is_resumed_at_any_round_goes_the_same_way(tmp_path: Path, selector: Selector) -> None:
    config = settings(tmp_path, selector=selector, availability=LN(0.5))
    # What selectors see of one trainer they see of all; this one has nothing to compile.
    local = replace(config.local, backend="sequential")
    config = replace(config, data=replace(config.data, server=0.2), local=local)
    assert differ_when_resumed(config, range(config.rounds)) == []
