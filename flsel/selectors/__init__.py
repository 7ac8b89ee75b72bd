"""Client selectors: one file, one class each; ``from flsel.selectors import PowD`` loads one of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flsel.selectors.afl import AFL
    from flsel.selectors.clustered import ClusteredSampling
    from flsel.selectors.clustered_by_size import ClusteredSamplingBySize
    from flsel.selectors.complete import Complete
    from flsel.selectors.divfl import DivFL
    from flsel.selectors.fedcat import FedCat
    from flsel.selectors.fedcor import FedCor
    from flsel.selectors.fedgs import FedGS
    from flsel.selectors.fedpns import FedPNS
    from flsel.selectors.gradnorm import GradientNorm
    from flsel.selectors.hics import HiCS
    from flsel.selectors.hics_oracle import HiCSOracle
    from flsel.selectors.md import MD
    from flsel.selectors.powd import PowD
    from flsel.selectors.uniform import Uniform
    from flsel.selectors.weighted import Weighted

_HOMES = {
    "AFL": "afl",
    "ClusteredSampling": "clustered",
    "ClusteredSamplingBySize": "clustered_by_size",
    "Complete": "complete",
    "DivFL": "divfl",
    "FedCat": "fedcat",
    "FedCor": "fedcor",
    "FedGS": "fedgs",
    "FedPNS": "fedpns",
    "GradientNorm": "gradnorm",
    "HiCS": "hics",
    "HiCSOracle": "hics_oracle",
    "MD": "md",
    "PowD": "powd",
    "Uniform": "uniform",
    "Weighted": "weighted",
}

__all__ = [
    "AFL",
    "MD",
    "ClusteredSampling",
    "ClusteredSamplingBySize",
    "Complete",
    "DivFL",
    "FedCat",
    "FedCor",
    "FedGS",
    "FedPNS",
    "GradientNorm",
    "HiCS",
    "HiCSOracle",
    "PowD",
    "Uniform",
    "Weighted",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flsel.selectors' has no attribute {name!r}")
    return getattr(import_module(f"flsel.selectors.{_HOMES[name]}"), name)
