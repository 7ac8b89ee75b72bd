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

    The constructor only stores its arguments. :meth:`reset` allocates state in attributes whose names end in
    ``_``: tensors and plain Python values. Checkpoints keep these attributes and no others. All random
    numbers come from ``view.rng``.

    A dataclass is the short way to write a selector. Its fields are the arguments, each with its range
    (:mod:`flsel.arguments`). They are checked when the selector is made.

    Attributes:
        equal_weights: Whether :meth:`weigh` gives every update 1/K, unless it is overridden. A client that
            was drawn twice then counts twice.
        two_phase: Whether participants keep their update until :meth:`weigh` has given it a weight. An update
            of weight zero is not sent, and the ledger counts no model for it. For such an update,
            :meth:`weigh` may use what a client can report in a few numbers. The selector charges these.
        only_synchronous: The reason why asynchronous runs refuse the selector, as a clause after "since";
            empty if the selector can fill free slots one by one. In an asynchronous run ``view.available``
            leaves out clients in flight, and an update may start from an earlier model than ``view.params``
            (``updates.staleness``).
        draws_uniformly: Whether :meth:`select` draws distinct clients with examples from the pool, each with
            the same chance and without looking at anything else. Only then does the draw amplify the privacy
            of noise (:mod:`flsel.updates.accountant`).
        plans_empty_rounds: Whether :meth:`select` is called in a synchronous round in which nobody is
            available, to note it. It returns ``Plan(())`` then. Other selectors are not asked, and the round
            passes for all of them.
    """

    equal_weights: ClassVar[bool] = False
    two_phase: ClassVar[bool] = False
    only_synchronous: ClassVar[str] = ""
    draws_uniformly: ClassVar[bool] = False
    plans_empty_rounds: ClassVar[bool] = False

    @property
    def needs(self) -> Need:
        """What the selector may ask for: a class attribute, or a property if it depends on arguments."""
        return Need.NONE

    @property
    def assumes_arrival(self) -> bool:
        """Whether the weights are unbiased only if all chosen clients' updates arrive."""
        return False

    @property
    def weights_correct_for(self) -> str:
        """What the weights of a round correct for, so that they need not sum to one; empty for shares.

        Robust aggregates, which count all updates alike, refuse such weights.
        """
        return "the probability that a client is chosen" if self.assumes_arrival else ""

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Allocate state before the first round.

        Args:
            sizes: Training examples per client, int64 ``[N]``.
            num_classes: C.
        """

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Refuse a K that does not fit the arguments, before a run starts.

        Args:
            clients_per_round: Most paths per round (K).

        Raises:
            UserError: If K does not fit.
        """

    def check_output_layer(self, *, has_bias: bool) -> None:
        """Refuse an output layer that does not fit the arguments, before a run starts (``Need.HEAD``).

        Args:
            has_bias: Whether it has a bias that trains. Its weight does.

        Raises:
            UserError: If it does not fit.
        """

    @abstractmethod
    def select(self, view: View) -> Plan:
        """Choose at most ``view.clients_per_round`` paths of clients that are available."""

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh the updates, float64 ``[K]``, finite and >= 0; zero drops an update.

        If the weights sum to less than one, the old model has the rest of the weight. The default is
        proportional to the training examples along the path (FedAvg), or uniform if there are none or
        ``equal_weights`` is true.

        Weights that divide by the probability that a client is chosen belong to the whole cohort. Use
        :meth:`Updates.passed_on` for them, because some of the cohort may not arrive.
        """
        total = updates.sizes.sum()
        if self.equal_weights or total == 0:
            return torch.full((len(updates.plan),), 1.0 / max(len(updates.plan), 1), dtype=torch.float64)
        return updates.sizes.double() / total

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Learn from the updates of this round, before aggregation."""

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the selector's present estimates about some clients, for reports.

        The estimates do not affect the run, and this method does not change the state.

        Args:
            clients: Their ids, int64 ``[n]``.
        """
        return ()
