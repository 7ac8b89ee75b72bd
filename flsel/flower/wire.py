"""Messages between server and nodes, independent of a framework.

A request asks one node a question. A reply holds arrays and plain values, which
:mod:`flsel.flower.decoder` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from flsel.errors import UserError, short

PROTOCOL = 1
"""Version of the questions of a :class:`flsel.flower.SelectorStrategy`, which docs/flower.md describes."""

Models = Mapping[str, Mapping[str, np.ndarray]]
"""Arrays by the name of a model and of a parameter."""
Value = int | float | str | list[int] | list[float] | list[str]


class LostError(UserError):
    """No node answered."""


@dataclass(frozen=True)
class Request:
    """A message to a node.

    Attributes:
        node: The node's id.
        action: A question of flsel, such as ``hello`` or ``losses``, or ``train`` for the training that a
            Flower app has of its own.
        models: Models that the node needs.
        values: Plain values by name.
    """

    node: int
    action: str
    models: Models = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """A node's answer.

    Attributes:
        models: Models, or stacks of answers.
        values: Plain values by name.
        seconds: From sending the request to receiving the reply.
        error: Why there is no answer, in one short line without control characters; empty if there is one.
        malformed: Whether the node did answer, but nothing that can be read.
    """

    models: Models = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    malformed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", short(self.error))


class Asked(NamedTuple):
    """A request that was sent to a node.

    Attributes:
        round: Communication round.
        node: The node's id.
        action: What was asked.
        clients: About which clients.
        seconds: Seconds until the answer, or until none was waited for.
        error: Why there is no answer; empty if there is one.
    """

    round: int
    node: int
    action: str
    clients: list[int]
    seconds: float
    error: str


class Channel(Protocol):
    """Carries requests to nodes."""

    def nodes(self) -> list[int]:
        """Return the ids of the connected nodes, ascending."""

    def exchange(self, requests: Sequence[Request], timeout: float) -> list[Reply]:
        """Send requests and wait for the replies, at most ``timeout`` seconds.

        Returns:
            A reply for each request, in their order; one with an error where none came.
        """
