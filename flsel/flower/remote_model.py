"""A model that travels as arrays by name, and what a server measures of it by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from flsel.errors import UserError
from flsel.flower.wire import Models, to_arrays, to_params
from flsel.metrics import Cost
from flsel.params import Params

Measure = Callable[[Mapping[str, np.ndarray]], float]
Outputs = Callable[[Mapping[str, np.ndarray]], Sequence[float]]


@dataclass(frozen=True)
class Holdout:
    """What the server can measure by itself.

    Attributes:
        loss: Returns a model's loss on the server's holdout, or None.
        outputs: Returns a model's mean outputs on noise, C numbers, or None.
    """

    loss: Measure | None = None
    outputs: Outputs | None = None


@dataclass(frozen=True)
class Watch:
    """Real seconds in the place of the simulated clock.

    Attributes:
        started: Seconds of the run before this round.
    """

    started: float

    def traffic(self, clients: Sequence[int], cost: Cost) -> None:
        """Take no time: the seconds are those that pass."""

    def one_request(self) -> AbstractContextManager[None]:
        """Return a block without effect: questions take the time that they take."""
        return nullcontext()


@dataclass(frozen=True)
class Model:
    """The global model as arrays and as what is aggregated of it.

    Attributes:
        arrays: Everything that is sent, by name.
        params: Its real-valued tensors; whole numbers, such as counters, keep their first value.
    """

    arrays: Mapping[str, np.ndarray]
    params: Params

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Model:
        """Make one of arrays."""
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        return cls(arrays, {name: t for name, t in tensors.items() if t.is_floating_point()})

    def sent(self, params: Params) -> Mapping[str, np.ndarray]:
        """Return a model with other real-valued tensors, as arrays."""
        return {**self.arrays, **to_arrays(params)}

    def received(self, arrays: Mapping[str, np.ndarray]) -> Params:
        """Return the real-valued tensors of a model that came back.

        Raises:
            UserError: If it is not like this one.
        """
        like = {name: torch.from_numpy(np.array(value)) for name, value in self.arrays.items()}
        found = to_params(arrays, like)
        return {name: found[name] for name in self.params}


def single(models: Models) -> Mapping[str, np.ndarray]:
    """Return the one model of an answer.

    Raises:
        UserError: If there is none, or several.
    """
    if len(models) != 1:
        raise UserError(f"an answer must hold one ArrayRecord, got {len(models)}.")
    return next(iter(models.values()))
