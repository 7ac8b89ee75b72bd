"""Parts of the model that stay with each client between its trainings.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: "Federated Learning with Personalization Layers",
2019 (FedPer); X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: "FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization", ICLR 2021; P. P. Liang et al.: "Think Locally, Act Globally: Federated Learning
with Local and Global Representations", 2020 (LG-FedAvg).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import final

import torch
from torch import Tensor

from flsel.errors import UserError, closest
from flsel.params import Params
from flsel.selector.client_rows import allocate, store
from flsel.selector.state import Stateful


@final
class PersonalParts(Stateful):
    """The personal parts of all clients; a client that never trained has those of the model as it was built.

    Args:
        names: Names of the personal tensors.
        state: The model as it was built, all tensors that training changes.
        clients: N.
    """

    def __init__(self, names: Sequence[str], state: Params, clients: int) -> None:
        self._order = [*state]
        self._built = {name: state[name].detach().clone() for name in names}
        self.slots_, self.rows_ = allocate(self._built, clients)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the personal tensors."""
        return tuple(self._built)

    def start(self, shared: Params, client: int) -> Params:
        """Return the model that a client has, from the part that it received."""
        slot = int(self.slots_[client])
        own = {name: rows[slot] for name, rows in self.rows_.items()} if slot else self._built
        return self._whole(shared, own)

    def mean(self, shared: Params) -> Params:
        """Return a model with the mean of the parts of the clients that have trained."""
        used = int(self.slots_.max()) + 1
        own = (
            {name: rows[1:used].mean(dim=0) for name, rows in self.rows_.items()} if used > 1 else self._built
        )
        return self._whole(shared, own)

    def keep(self, clients: Sequence[int], ends: Params) -> None:
        """Keep the parts of K distinct clients after their training, each tensor ``[K, ...]``."""
        store(self.slots_, self.rows_, torch.tensor(clients), {name: ends[name] for name in self._built})

    def _whole(self, shared: Params, own: Params) -> Params:
        return {name: own[name] if name in own else shared[name] for name in self._order}


def personal_names(patterns: Sequence[str], state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of a model's tensors that patterns such as ``head.*`` match.

    Raises:
        UserError: If a pattern matches nothing, or nothing is left to be sent.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in state):
            near = _like(pattern.strip("*."), state)
            raise UserError(
                f"local.personal must match tensors of the model, and {pattern} matches none: its names are "
                f"such as {near}."
            )
    names = [name for name in state if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if len(names) == len(state):
        raise UserError("local.personal must leave something to be sent, and it matches the whole model.")
    return names


def _like(wanted: str, names: Iterable[str]) -> str:
    """Return the first name that has what is wanted, or resembles it, whole or in a part; else the first."""
    known = {part: name for name in reversed([*names]) for part in (*name.split("."), name)}
    whole = next((name for name in names if wanted and wanted in name), None)
    return whole or known.get(closest(wanted, known) or "") or next(iter(names))
