"""Who trains in a round: paths of clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

IDLE = -1
"""In a path of a plan: the model copy rests for this hop, untrained and at no cost."""


@dataclass(frozen=True)
class Plan:
    """Who trains: K paths of H clients each; FedAvg's paths have length one.

    Attributes:
        paths: K paths of equal length; the model of path k visits its clients in order. A client may
            repeat, as under sampling with replacement. An entry ``IDLE`` is a hop at which the model stays
            as it is; every path visits at least one client.
    """

    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def star(cls, clients: Iterable[int]) -> Plan:
        """Plan one visit of each client in ``clients``, all from the global model."""
        return cls(tuple((int(client),) for client in clients))

    @property
    def hops(self) -> int:
        """H, the number of communication rounds the plan takes (0 for an empty plan)."""
        return len(self.paths[0]) if self.paths else 0

    @property
    def visits(self) -> tuple[tuple[int, ...], ...]:
        """The clients that each path visits, in order: the paths without their idle hops."""
        return tuple(tuple(client for client in path if client != IDLE) for path in self.paths)

    def __len__(self) -> int:
        return len(self.paths)
