"""Client selectors: one file, one class each; ``from flsel.selectors import PowD`` loads one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flsel._lazy import lazily

if TYPE_CHECKING:
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

__all__ = [
    "AFL",
    "E3CS",
    "F3AST",
    "HACCS",
    "MD",
    "OSMD",
    "UCBCS",
    "ClusteredSampling",
    "ClusteredSamplingBySize",
    "Complete",
    "DivFL",
    "FedAU",
    "FedCBS",
    "FedCS",
    "FedCat",
    "FedCor",
    "FedGS",
    "FedPNS",
    "GradientNorm",
    "GreedyFed",
    "HiCS",
    "HiCSOracle",
    "KVib",
    "Oort",
    "OptimalSampling",
    "Pisces",
    "PowD",
    "TiFL",
    "Uniform",
    "Weighted",
]

_HOMES = {name: name.lower() for name in __all__} | {
    "ClusteredSampling": "clustered",
    "ClusteredSamplingBySize": "clustered_by_size",
    "GradientNorm": "gradnorm",
    "HiCSOracle": "hics_oracle",
    "OptimalSampling": "optimal_sampling",
}

__getattr__ = lazily(__name__, {name: f"flsel.selectors.{module}" for name, module in _HOMES.items()})


def __dir__() -> list[str]:
    # Notebooks complete these names; a module does not list names that were not read yet.
    return __all__
