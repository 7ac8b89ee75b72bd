"""One model-sized row for every client that ever took part.

``slots`` (int64 ``[N]``) gives a client's row in every tensor of ``rows`` (``[1 + capacity, ...]``); clients
that never took part share row 0, which stays zero. The capacity doubles as clients join, so that memory grows
with the clients seen instead of with N: at most (1 + N) times the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flsel.params import Params, finite_rows


def allocate(params: Params, clients: int) -> tuple[Tensor, Params]:
    """Return the slots and rows before any client has taken part, on the device of ``params``."""
    device = next(iter(params.values())).device
    slots = torch.zeros(clients, dtype=torch.int64, device=device)
    return slots, {name: torch.zeros_like(value)[None] for name, value in params.items()}


def store(slots: Tensor, rows: Params, clients: Tensor, values: Params) -> Tensor:
    """Write the rows of K distinct clients, in place; one that is not finite everywhere is left out.

    Args:
        slots: Changed for clients that are new.
        rows: Tensors are replaced by larger ones where new clients need room; names are added.
        clients: Ids, int64 ``[K]``.
        values: Each ``[K, ...]``.

    Returns:
        Positions in ``clients`` of those that were written, int64, ascending.
    """
    kept = finite_rows(values)
    clients = clients.to(slots.device)[kept]
    newcomers = clients[slots[clients] == 0]
    used = int(slots.max()) + 1
    slots[newcomers] = torch.arange(used, used + len(newcomers), device=slots.device)
    for name, value in values.items():
        rows.setdefault(name, torch.zeros_like(value[:1]))
        rows[name] = _with_room(rows[name], used + len(newcomers), most=len(slots) + 1)
        rows[name][slots[clients]] = value[kept]
    return kept


def _with_room(rows: Tensor, needed: int, most: int) -> Tensor:
    if needed <= len(rows):
        return rows
    grown = rows.new_zeros((min(max(needed, 2 * len(rows)), most), *rows.shape[1:]))
    grown[: len(rows)] = rows
    return grown
