"""Phones whose training was measured."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, final

import numpy as np

from flsel.arguments import Range
from flsel.devices.base import DOWN, UP, Devices, Table, tied

# Milliseconds of a training batch on a slow, a middle and a fast phone, their spread, and the batch.
_MEASURED = {
    "femnist": ((1642.0, 588.0, 179.0), (99.5, 23.9, 2.3), 10),
    "celeba": ((5392.0, 1355.0, 561.0), (982.5, 54.6, 20.3), 10),
    "reddit": ((2596.0, 916.0, 527.7), (335.5, 20.6, 49.0), 10),
    "shakespeare": ((28621.0, 13579.0, 10681.0), (1720.7, 104.6, 125.6), 100),
}
_FREQUENCIES = (18820, 16428, 159)


@final
@dataclass(frozen=True)
class Phones(Devices):
    """The three phones that FLASH measured, with its frequencies and its mobile links.

    C. Yang, Q. Wang, M. Xu, Z. Chen, K. Bian, Y. Liu, X. Liu: "Characterizing Impacts of Heterogeneity
    in Federated Learning upon Large-Scale Smartphone Data", WWW 2021; code PKU-Chengxu/FLASH. 53.2 % of
    the clients have the slow phone, 46.4 % the middle one and 0.4 % the fast one: the shares that FLASH
    gives to users whose phone is unknown. Links are log-normal: medians 4,318 (down) and 3,286 KiB a second
    (up), standard deviations of the logarithms 0.47 and 0.68, correlation of the logarithms 0.45.

    **Deviations.** FLASH measured training. A third of it counts as the forward pass. FLASH's normal noise of
    a training becomes log-normal with the same ratio of standard deviation to mean, and depends on the seed.
    Its noise of a link is not implemented. The code states the batch of Shakespeare (100). The others are
    taken as 10.

    Attributes:
        task: Model and data whose training was measured.
        correlation: Rank correlation of a client's speed with its number of examples.
    """

    task: Literal["femnist", "celeba", "reddit", "shakespeare"] = "femnist"
    _: KW_ONLY
    correlation: Annotated[float, Range(-1, 1)] = 0.0

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Draw phones and links."""
        means, spreads, batch = _MEASURED[self.task]
        shares = np.array(_FREQUENCIES) / sum(_FREQUENCIES)
        phone = rng.choice(3, len(sizes), p=shares)
        first, other = rng.standard_normal((2, len(sizes)))
        second = 0.45 * first + np.sqrt(1 - 0.45**2) * other
        # The noise belongs to the phone, so the phone is what the size is tied to; slower ones come first.
        phone = -tied(-phone.astype(np.float64), sizes, self.correlation, rng).astype(np.int64)
        mean = np.array(means)[phone]
        return Table(
            seconds=mean / 1000 / batch / 3,
            down=DOWN * np.exp(0.47 * first),
            up=UP * np.exp(0.68 * second),
            jitter=np.array(spreads)[phone] / mean,
        )
