"""GaussianNoise: differential privacy of clients, central or local.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: "Learning Differentially Private Recurrent Language Models",
ICLR 2018; R. C. Geyer, T. Klein, M. Nabi: "Differentially Private Federated Learning: A Client Level
Perspective", 2017.

**Deviations.** Both papers draw each client independently with one probability (the first), or a fixed number
of clients (the second), and divide by the expected or the drawn number. Here the selector chooses the
clients and their weights. The noise is relative to the largest weight of a client in the round, and the
privacy report uses the sampling that took place (:mod:`flsel.updates.accountant`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np

from flsel.arguments import Range
from flsel.params import Params, row, stacked
from flsel.updates._vectors import normal
from flsel.updates.update_step import Senders, UpdateStep


@final
@dataclass(eq=False)
class GaussianNoise(UpdateStep):
    """Add normal noise with standard deviation z S, where S bounds the norm of an update.

    A step ``Clip`` before it sets S. A model with running statistics (BatchNorm) is refused, because they
    are sent without noise. The run's summary reports epsilon.

    Attributes:
        multiplier: Standard deviation of the noise, in bounds of an update (z).
        where: ``server``: the server adds the noise once to the aggregate, times the largest weight of a
            client (central differential privacy). ``client``: each client adds it to its update (local
            differential privacy).
        delta: Probability at which epsilon is reported, or null to report none. With a number, the extra
            ``flsel[privacy]`` must be installed.
    """

    multiplier: Annotated[float, Range(above=0)] = 1.0
    where: Literal["server", "client"] = "server"
    delta: Annotated[float | None, Range(above=0, below=1)] = 1e-5

    @property
    def on_server(self) -> bool:
        """Whether the server adds the noise."""
        return self.where == "server"

    @property
    def needs_bound(self) -> bool:
        """Return True: the noise is relative to the bound."""
        return True

    @property
    def fills(self) -> bool:
        """Return whether clients add noise, which they do to every number."""
        return self.where == "client"

    def bound(self, before: float) -> float:
        """Return the bound before for the server's noise, which the updates do not have; else infinity."""
        return before if self.where == "server" else math.inf

    def on_client(self, deltas: Params, senders: Senders) -> Params:
        """Add each client's own noise."""
        if self.where == "server":
            return deltas
        noise = [normal(row(deltas, k), rng) for k, rng in enumerate(senders.generators("noise"))]
        return _added(deltas, stacked(noise), self.multiplier * senders.bound)

    def at_server(self, delta: Params, sensitivity: float, rng: np.random.Generator) -> Params:
        """Add the server's noise."""
        if self.where == "client":
            return delta
        return _added(delta, normal(delta, rng), self.multiplier * sensitivity)


def _added(values: Params, noise: Params, scale: float) -> Params:
    return {name: value + scale * noise[name] for name, value in values.items()}
