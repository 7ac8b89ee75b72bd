"""The contract of a local objective, and FedAvg's, which adds nothing."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from flsel.selector import Params
from flsel.state import restore_state, state_of


class Objective(ABC):  # noqa: B024 (every hook is optional)
    """What a client minimises besides its own loss, and what is remembered about every client.

    :meth:`correct` is written element-wise, so the same code serves one client (``clients`` is an int, no
    leading dimension) and a stack of K (``clients`` is int64 ``[K]``, every tensor ``[K, ...]``): index
    per-client state as ``state[name][clients]``. State lives in attributes whose names end in ``_``, like
    a selector's, and is kept by checkpoints.
    """

    def reset(self, params: Params, clients: int) -> None:  # noqa: B027
        """Allocate per-client state for ``clients`` clients of a model like ``params``."""

    def correct(  # noqa: B027
        self, grads: Params, params: Params, starts: Params, clients: int | Tensor
    ) -> None:
        """Add, in place, the objective's gradient to that of the client's loss, before a local step.

        Args:
            grads: Gradients of the client's loss.
            params: Current local parameters.
            starts: Parameters that the client started from this round.
            clients: Client id(s) the rows belong to.
        """

    def observe(self, clients: Tensor, deltas: Params, steps: Tensor) -> None:  # noqa: B027
        """Learn from the participants' updates.

        Args:
            clients: Ids, int64 ``[K]``.
            deltas: End minus start, each tensor ``[K, ...]``.
            steps: Local optimizer steps taken, int64 ``[K]``.
        """

    @final
    def state_dict(self) -> dict[str, Any]:
        """Return the state: every attribute whose name ends in ``_``."""
        return state_of(self)

    @final
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, after :meth:`reset`."""
        restore_state(self, state)


class FedAvg(Objective):
    """Federated averaging: the client's own loss, nothing else.

    Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017.
    """
