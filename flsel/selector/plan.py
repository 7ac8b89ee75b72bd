"""The plan of a round: paths of the clients that train."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from flsel.arguments import shown
from flsel.errors import UserError

IDLE = -1
"""An entry of a path: the model waits for this hop, untrained and at no cost."""


@dataclass(frozen=True)
class Plan:
    """The clients that train: K paths of H clients each. FedAvg's paths have length one.

    Attributes:
        paths: K paths of equal length. The model of path k goes through its clients in order. A client may
            occur more than once, as in sampling with replacement. At an entry ``IDLE`` the model waits for
            one hop. Every path has at least one client.

    Raises:
        UserError: If the paths are not made of whole numbers.
    """

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Turn the numbers of arrays and tensors into Python's own."""
        try:
            paths = tuple(map(ids, self.paths))
        except TypeError:
            raise UserError(
                f"a plan must have a list of paths of clients, got {shown(self.paths)}."
            ) from None
        object.__setattr__(self, "paths", paths)

    @classmethod
    def star(cls, clients: Iterable[int]) -> Plan:
        """Let each client train once, from the global model."""
        return cls(tuple((client,) for client in ids(clients)))

    @property
    def hops(self) -> int:
        """H, the number of communication rounds that the plan takes (0 for an empty plan)."""
        return len(self.paths[0]) if self.paths else 0

    @cached_property
    def visits(self) -> tuple[tuple[int, ...], ...]:
        """The clients of each path, in order: the paths without their idle hops."""
        return tuple(tuple(client for client in path if client != IDLE) for path in self.paths)

    def __len__(self) -> int:
        return len(self.paths)


def ids(clients: Iterable[int]) -> tuple[int, ...]:
    """Return client numbers, perhaps an array's or a tensor's, as Python's whole numbers.

    Raises:
        UserError: If one is not whole.
        TypeError: If they cannot be listed.
    """
    if type(clients) is tuple and set(map(type, clients)) == {int}:
        return clients
    listed = list(clients)
    if "bool" in str(getattr(clients, "dtype", "")) or bool in set(map(type, listed)):
        raise UserError(
            "clients must be given by their numbers, got true and false: take np.flatnonzero of the mask."
        )
    try:
        return tuple(map(operator.index, listed))
    except TypeError:
        raise UserError(f"clients must be whole numbers, got {shown(listed)}.") from None
