"""The selectors that are measured, with the settings that their cost depends on, and how each gets going."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from synthetic import CLASSES, Synthetic

from flsel.selector import Plan, Selector
from flsel.selectors._sketch import EXACT, SKETCH
from flsel.selectors.afl import AFL
from flsel.selectors.clustered import ClusteredSampling
from flsel.selectors.clustered_by_size import ClusteredSamplingBySize
from flsel.selectors.complete import Complete
from flsel.selectors.divfl import DivFL
from flsel.selectors.e3cs import E3CS
from flsel.selectors.f3ast import F3AST
from flsel.selectors.fedau import FedAU
from flsel.selectors.fedcat import FedCat
from flsel.selectors.fedcbs import FedCBS
from flsel.selectors.fedcor import FedCor
from flsel.selectors.fedcs import FedCS
from flsel.selectors.fedgs import FedGS
from flsel.selectors.fedpns import FedPNS
from flsel.selectors.gradnorm import GradientNorm
from flsel.selectors.greedyfed import GreedyFed
from flsel.selectors.haccs import HACCS
from flsel.selectors.hics import HiCS
from flsel.selectors.hics_oracle import HiCSOracle
from flsel.selectors.kvib import KVib
from flsel.selectors.md import MD
from flsel.selectors.oort import Oort
from flsel.selectors.optimal_sampling import OptimalSampling
from flsel.selectors.osmd import OSMD
from flsel.selectors.pisces import Pisces
from flsel.selectors.powd import PowD
from flsel.selectors.tifl import TiFL
from flsel.selectors.ucbcs import UCBCS
from flsel.selectors.uniform import Uniform
from flsel.selectors.weighted import Weighted

CONTENDERS: dict[str, Callable[[], Selector]] = {
    "Uniform": Uniform,
    "MD": MD,
    "Weighted": Weighted,
    "Complete": Complete,
    "PowD": PowD,
    "AFL": AFL,
    "ClusteredSamplingBySize": ClusteredSamplingBySize,
    "ClusteredSampling": ClusteredSampling,
    "ClusteredSampling, sketch": partial(ClusteredSampling, sketch=SKETCH),
    "DivFL": DivFL,
    "DivFL, sketch": partial(DivFL, sketch=SKETCH),
    "DivFL, no_overhead": partial(DivFL, mode="no_overhead"),
    "DivFL, no_overhead, sketch": partial(DivFL, mode="no_overhead", sketch=SKETCH),
    "DivFL, no_overhead, stochastic": partial(DivFL, mode="no_overhead", optimizer="stochastic"),
    "GradientNorm": GradientNorm,
    "HiCS": HiCS,
    "HiCSOracle": HiCSOracle,
    "FedCor": FedCor,
    "FedGS": FedGS,
    "FedGS, alpha 0": partial(FedGS, alpha=0.0),
    "FedPNS": FedPNS,
    "FedCat": FedCat,
    "HACCS": HACCS,
    "FedAU": FedAU,
    "OSMD": OSMD,
    "KVib": KVib,
    "E3CS": E3CS,
    "F3AST": F3AST,
    # The paper's 50 sweeps of K orders take minutes for K = 100.
    "GreedyFed, one sweep": partial(GreedyFed, sweeps=1),
    "FedCBS": FedCBS,
    "UCBCS": UCBCS,
    "Pisces": Pisces,
    "OptimalSampling": OptimalSampling,
    "Oort": Oort,
    "TiFL": TiFL,
    "FedCS": FedCS,
}

_GRAPH = 2_000  # Above, FedGS's graph takes minutes; distances of random points stand in for it.
_AT_ONCE = 100

State = dict[str, Any]


def prepare(selector: Selector, federation: Synthetic) -> None:
    """Put a selector into the state in which it has heard of every client, where its work depends on that."""
    clients, draw = len(federation.sizes), torch.Generator().manual_seed(1)
    if isinstance(selector, ClusteredSampling) and clients <= EXACT:
        everybody = torch.arange(clients)
        for part in everybody.split(_AT_ONCE):
            updates = federation.updates(Plan.star(part.tolist()), selector.needs)
            selector.observe(federation.view(selector.needs), updates, torch.ones(len(part)))
        return
    builds = isinstance(selector, FedGS) and (selector.alpha == 0 or clients <= _GRAPH)
    if builds or type(selector) not in _KNOWN:
        return
    known, state = _KNOWN[type(selector)], selector.state_dict()
    known(state, clients, draw)
    selector.load_state_dict(state)


def _signals(state: State, clients: int, draw: torch.Generator) -> None:
    state["signal_"] = torch.randn(clients, CLASSES, generator=draw, dtype=torch.float64)
    for name in state.keys() & {"asked_", "measured_"}:
        state[name] = torch.ones(clients, dtype=torch.bool)


def _valuations(state: State, clients: int, draw: torch.Generator) -> None:
    state["value_"] = torch.rand(clients, generator=draw, dtype=torch.float64)


def _sketches(state: State, clients: int, draw: torch.Generator) -> None:
    state["rows_"] = torch.randn(clients, SKETCH, generator=draw)
    state["square_"] = state["rows_"].double().square().sum(dim=1)


def _graph(state: State, clients: int, draw: torch.Generator) -> None:
    points = torch.rand(clients, 2, generator=draw, dtype=torch.float64)
    state["graph_"] = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    state["asked_"] = torch.ones(clients, dtype=torch.bool)


_KNOWN: dict[type[Selector], Callable[[State, int, torch.Generator], None]] = {
    AFL: _valuations,
    ClusteredSampling: _sketches,
    FedGS: _graph,
    HiCS: _signals,
    HiCSOracle: _signals,
}
