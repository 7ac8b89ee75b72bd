"""The base class of client selection methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Checked
from flsel.selector.diagnostic import Diagnostic
from flsel.selector.plan import Plan
from flsel.selector.state import Stateful
from flsel.selector.updates import Updates
from flsel.selector.view import Need, View


class Selector(Checked, Stateful, ABC):
    """A client selection method.

    The constructor stores its arguments and nothing else; :meth:`reset` allocates state in attributes
    whose names end in ``_``. These, and only these, are the state that a checkpoint keeps: tensors and
    plain Python values. Randomness comes from ``view.rng`` alone.

    A dataclass is the short way: its fields are the arguments, each with its range
    (:mod:`flsel.arguments`), and they are checked when it is made.

    Attributes:
        two_phase: Whether participants keep their update until :meth:`weigh` has given it a weight. What
            weighs zero is not sent, and the ledger counts no model for it. Of an update that is not sent,
            :meth:`weigh` may use what a client can report in a few numbers, which the selector charges.
        only_synchronous: Why an asynchronous run refuses the selector, a clause that follows "since"; empty
            where free slots can be filled one by one. There ``view.available`` leaves out who is in flight,
            and an update's start may be an earlier model than ``view.params`` (``updates.staleness``).
    """

    two_phase: ClassVar[bool] = False
    only_synchronous: ClassVar[str] = ""

    @property
    def needs(self) -> Need:
        """What the selector may ask for: a class attribute, or a property where it depends on arguments."""
        return Need.NONE

    @property
    def assumes_arrival(self) -> bool:
        """Whether the weights are unbiased only if all chosen clients' updates arrive."""
        return False

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Allocate state before the first round.

        Args:
            sizes: Training examples per client, int64 ``[N]``.
            num_classes: C.
        """

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Refuse, before a run starts, a K that the arguments do not fit.

        Args:
            clients_per_round: Most paths per round (K).

        Raises:
            UserError: If they do not.
        """

    @abstractmethod
    def select(self, view: View) -> Plan:
        """Choose at most ``view.clients_per_round`` paths of clients that are available."""

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh the updates, float64 ``[K]``, finite and >= 0; zero drops an update.

        Weights that do not sum to one leave the rest on the old model. The default is proportional to the
        training examples seen along the path (FedAvg), or uniform if there are none.
        """
        total = updates.sizes.sum()
        if total == 0:
            return torch.full((len(updates.plan),), 1.0 / max(len(updates.plan), 1), dtype=torch.float64)
        return updates.sizes.double() / total

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Learn from the round just run, before aggregation."""

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Tell what there is to look at of some clients, for reports; nothing in a run reads it.

        Args:
            clients: Their ids, int64 ``[n]``.

        Returns:
            What the selector believes about them now; asking leaves the state as it is.
        """
        return ()
