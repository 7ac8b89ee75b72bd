"""What a client's local optimizer remembers from one visit to the next: momentum, Adam's moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import final

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from flsel.errors import UserError
from flsel.params import Params
from flsel.selector.client_rows import store
from flsel.selector.state import Stateful


@final
class OptimizerMemory(Stateful):
    """One optimizer state for every client that ever took part; row 0 is the zero state.

    A visit begins with what the client's last one ended with. It is kept only where the visit's update was
    taken into a round: trial trainings that a selector asks for, and updates that are not finite, leave what
    was there.

    Args:
        clients: N.
        device: Where clients train.
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self.slots_ = torch.zeros(clients, dtype=torch.int64, device=device)
        self.rows_: Params = {}
        self._ended: dict[int, Params] = {}

    def recall(self, client: int, optimizer: Optimizer) -> None:
        """Put a client's state into an optimizer that has none; one that never took part has no state."""
        slot = int(self.slots_[client])
        for name, param in _named(optimizer) if slot else ():
            kept = {key: rows[slot].clone() for key, rows in _below(name, self.rows_)}
            if kept:
                optimizer.state[param] = kept

    def note(self, client: int, optimizer: Optimizer) -> None:
        """Copy the state that a visit ended with."""
        self._ended[client] = {
            f"{name}/{key}": value.detach().clone()
            for name, param in _named(optimizer)
            for key, value in optimizer.state[param].items()
            if isinstance(value, Tensor)
        }

    def forget(self) -> None:
        """Drop what was noted of visits that belong to no round."""
        self._ended.clear()

    def keep(self, clients: Iterable[int]) -> None:
        """Keep what was noted of these clients, each once, and drop the rest."""
        ended = [(client, self._ended[client]) for client in clients if self._ended.get(client)]
        self.forget()
        if ended:
            values = {
                name: torch.stack([state[name].to(self.slots_.device) for _, state in ended])
                for name in ended[0][1]
            }
            store(self.slots_, self.rows_, torch.tensor([client for client, _ in ended]), values)


def check_remembers(optimizer: Optimizer) -> None:
    """Refuse a local optimizer that has nothing to remember.

    Raises:
        UserError: If it is SGD without momentum.
    """
    if isinstance(optimizer, SGD) and not any(group["momentum"] for group in optimizer.param_groups):
        raise UserError(
            "local.keep_optimizer must be false for SGD without momentum, which remembers nothing; set "
            "local.optimizer.momentum."
        )


def _named(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Name an optimizer's parameters by their places, the same in every run of a config."""
    for group, settings in enumerate(optimizer.param_groups):
        for place, param in enumerate(settings["params"]):
            yield f"{group}.{place}", param


def _below(name: str, rows: Params) -> Iterator[tuple[str, Tensor]]:
    prefix = f"{name}/"
    return ((key.removeprefix(prefix), value) for key, value in rows.items() if key.startswith(prefix))
