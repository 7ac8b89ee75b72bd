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

__getattr__ = lazily(__name__, {name: f"flsel.selectors.{module}" for name, module in _HOMES.items()})


def __dir__() -> list[str]:
    # What a notebook completes; names that nobody asked for yet are not among the module's own.
    return __all__
