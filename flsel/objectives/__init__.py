"""Local objectives: what a client minimises besides its own loss."""

from flsel.objectives.fedprox import FedProx
from flsel.objectives.objective import FedAvg, Objective

__all__ = ["FedAvg", "FedProx", "Objective"]
