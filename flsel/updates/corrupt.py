"""Corrupt: some clients have wrong labels, or send something else than their update.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent", NeurIPS 2017 (Gaussian, sign flip); M. Fang, X. Cao, J. Jia, N. Z. Gong: "Local
Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020 (flipped labels).

**Deviations.** Blanchard et al. send normal numbers with a fixed standard deviation of 200. Here the noise
has the norm of the update that it replaces, times ``scale``, so that its size suits any model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range
from flsel.params import Params, replaced, row, stacked
from flsel.rng import generator
from flsel.updates._vectors import normal, norms, scaled
from flsel.updates.update_step import Senders, UpdateStep


@final
@dataclass(eq=False)
class Corrupt(UpdateStep):
    """Make a share of the clients wrong. They are the same for every selector and kind with one seed.

    The clients of a smaller share are among those of a larger share. A client's own test examples and the
    sets of the server keep their labels.

    Attributes:
        kind: ``flipped``: label y becomes C - 1 - y. ``noisy``: a label becomes another one, drawn evenly,
            with the probability ``noise``. ``sign``: the client sends minus its update times ``scale``.
            ``gaussian``: it sends normal noise with the norm of its update times ``scale``.
        share: Share of all N clients; their number is rounded.
        noise: Probability that a label is replaced; ``noisy`` only.
        scale: Factor on what is sent; ``sign`` and ``gaussian`` only.
    """

    kind: Literal["flipped", "noisy", "sign", "gaussian"] = "flipped"
    share: Annotated[float, Range(0, 1)] = 0.2
    noise: Annotated[float, Range(0, 1)] = 0.5
    scale: Annotated[float, Range(above=0)] = 1.0

    def clients(self, total: int, seed: int) -> np.ndarray:
        """Return the ids of the corrupt clients, int64, ascending.

        Args:
            total: N.
            seed: The run's seed.
        """
        order = generator(seed, "corrupt clients").permutation(total)
        return np.sort(order[: round(self.share * total)])

    @property
    def changes_updates(self) -> bool:
        """Whether what is sent changes, not only labels."""
        return self.kind in ("sign", "gaussian")

    @property
    def changes_labels(self) -> bool:
        """Whether labels change, not what is sent."""
        return not self.changes_updates

    @property
    def fills(self) -> bool:
        """Return whether corrupt clients send noise."""
        return self.kind == "gaussian"

    def bound(self, before: float) -> float:
        """Return the bound before if only labels change; a corrupt client does not keep to a bound."""
        return math.inf if self.changes_updates else before

    def labels(self, y: Tensor, client: int, of: Senders, num_classes: int) -> Tensor:
        """Flip the labels of a corrupt client, or replace some of them."""
        if self.changes_updates or client not in self.clients(of.total, of.seed):
            return y
        if self.kind == "flipped":
            return num_classes - 1 - y
        rng = generator(of.seed, "noisy labels", of.place, client)
        wrong = torch.from_numpy(rng.random(len(y)) < self.noise)
        shift = torch.from_numpy(rng.integers(1, max(num_classes, 2), len(y)))
        return torch.where(wrong.to(y.device), (y + shift.to(y)) % num_classes, y)

    def on_client(self, deltas: Params, senders: Senders) -> Params:
        """Replace the updates of corrupt clients."""
        if not self.changes_updates:
            return deltas
        wrong = np.isin(senders.clients.numpy(), self.clients(senders.total, senders.seed))
        at = torch.from_numpy(np.flatnonzero(wrong))
        if len(at) == 0:
            return deltas
        own = {name: value[at.to(value.device)] for name, value in deltas.items()}
        if self.kind == "sign":
            sent = scaled(own, torch.full((len(at),), -self.scale, dtype=torch.float64))
        else:
            draws = senders.generators("gaussian corruption")
            noise = stacked([normal(row(own, k), draws[place]) for k, place in enumerate(at.tolist())])
            sent = scaled(noise, self.scale * norms(own) / norms(noise))
        return replaced(deltas, at.tolist(), sent)
