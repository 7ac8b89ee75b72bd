"""Messages between server and nodes, independent of a framework.

A request asks one node a question. A reply holds arrays and plain values. Neither side ever unpickles what it
receives, and the server accepts no array that is larger than the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch

from flsel.errors import UserError
from flsel.params import Params

Models = Mapping[str, Mapping[str, np.ndarray]]
"""Arrays by the name of a model and of a parameter."""
Value = int | float | str | list[int] | list[float]


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
        error: Why there is no answer, in one sentence; empty if there is one.
    """

    models: Models = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""


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


def to_arrays(params: Params) -> dict[str, np.ndarray]:
    """Return a model as arrays."""
    return {name: value.detach().cpu().contiguous().numpy() for name, value in params.items()}


def to_params(arrays: Mapping[str, np.ndarray], like: Params, rows: int | None = None) -> Params:
    """Return arrays as a model, or as a stack of ``rows`` models.

    Args:
        arrays: What came over the wire.
        like: A model whose names, shapes and types the arrays must have.
        rows: Models in the stack; None for a single model.

    Raises:
        UserError: If a name, a shape or a type differs, so that nothing larger than the model is accepted.
    """
    if arrays.keys() != like.keys():
        raise UserError(
            f"an answer must hold the parameters {', '.join(like)}, got {', '.join(arrays)[:200]}."
        )
    found: Params = {}
    for name, wanted in like.items():
        shape = tuple(wanted.shape) if rows is None else (rows, *wanted.shape)
        value = torch.from_numpy(np.array(arrays[name]))
        if tuple(value.shape) != shape or value.dtype != wanted.dtype:
            raise UserError(
                f"{name} of an answer must be {wanted.dtype} {list(shape)}, got {value.dtype} "
                f"{list(value.shape)}."
            )
        found[name] = value.to(wanted.device)
    return found
