"""Local objectives: the terms that a client minimises in addition to its own loss."""

from flsel.objectives.feddyn import FedDyn
from flsel.objectives.fedgen import FedGen
from flsel.objectives.fednova import FedNova
from flsel.objectives.fedprox import FedProx
from flsel.objectives.moon import MOON
from flsel.objectives.objective import FedAvg, LocalUpdates, Objective
from flsel.objectives.scaffold import SCAFFOLD

__all__ = [
    "MOON",
    "SCAFFOLD",
    "FedAvg",
    "FedDyn",
    "FedGen",
    "FedNova",
    "FedProx",
    "LocalUpdates",
    "Objective",
]
