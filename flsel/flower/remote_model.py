"""A model that travels as arrays by name, and what a server measures of it by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flsel.errors import UserError, short
from flsel.flower.decoder import Malformed
from flsel.flower.model_arrays import to_arrays, to_params
from flsel.flower.wire import Models
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
        """Make one of arrays.

        Raises:
            UserError: If they hold no real numbers.
        """
        floats = {name: value for name, value in arrays.items() if value.dtype.kind == "f"}
        if not sum(value.size for value in floats.values()):
            kinds = ", ".join(sorted({str(value.dtype) for value in arrays.values()})) or "no array"
            raise UserError(
                f"initial_arrays must be a model with real numbers, got none ({kinds}): a selector's rounds "
                "average the clients' models, and trees, for example, have no average."
            )
        return cls(arrays, {name: torch.from_numpy(np.array(value)) for name, value in floats.items()})

    def sent(self, params: Params) -> Mapping[str, np.ndarray]:
        """Return a model with other real-valued tensors, as arrays."""
        return {**self.arrays, **to_arrays(params)}

    def received(self, arrays: Mapping[str, np.ndarray]) -> Params:
        """Return the real-valued tensors of a model that came back.

        Raises:
            Malformed: If it is not like this one.
        """
        given = {
            name: array for name, array in arrays.items() if name in self.params or name not in self.arrays
        }
        for name in self.arrays.keys() - self.params.keys():
            if name not in arrays or arrays[name].shape != self.arrays[name].shape:
                raise Malformed(
                    f"{short(name, 100)} of an answer must be an array {list(self.arrays[name].shape)}."
                )
        return to_params(given, self.params)

    def gradient(self, arrays: Mapping[str, np.ndarray], trained: Collection[str]) -> Params:
        """Return the gradient of which a client returned one step of descent at rate 1.

        Args:
            arrays: The model after that step.
            trained: Names of what the step moved.

        Raises:
            Malformed: If it is not like this one.
        """
        wide = {name: self.params[name].double() for name in trained}
        ends = to_params({name: arrays[name] for name in trained if name in arrays}, wide)
        return {name: (wide[name] - ends[name]).to(self.params[name]) for name in trained}


def single(models: Models) -> Mapping[str, np.ndarray]:
    """Return the one model of an answer.

    Raises:
        Malformed: If there is none, or several.
    """
    if len(models) != 1:
        raise Malformed(f"an answer must hold one ArrayRecord, got {len(models)}.")
    return next(iter(models.values()))
