"""Aggregate updates that arrived as messages: find the output layer, and step the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flsel.errors import UserError
from flsel.flower.decoder import finite_numbers
from flsel.params import Params, is_running
from flsel.selector import Need, Selector

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], Optimizer]
Layer = tuple[str, str | None]


class ServerStep:
    """Step the global model by a weighted update.

    Args:
        make: Makes the server optimizer; None adds the update.
        params: A model like those that will be stepped.
    """

    def __init__(self, make: MakeOptimizer | None, params: Params) -> None:
        self._optimizer, self._live = None, dict[str, torch.nn.Parameter]()
        if make is not None:
            trained = {name: value for name, value in params.items() if not is_running(name)}
            self._live = {name: torch.nn.Parameter(value.clone()) for name, value in trained.items()}
            self._optimizer = make(self._live.values())

    def __call__(self, params: Params, delta: Params, weights: Tensor) -> Params:
        """Return the model after a step with the weighted update; the optimizer sees its negative."""
        if self._optimizer is None:
            moved = {name: params[name] + delta[name] for name in params if not is_running(name)}
        else:
            for name, live in self._live.items():
                live.data.copy_(params[name])
                live.grad = -delta[name]
            self._optimizer.step()
            moved = {name: live.detach().clone() for name, live in self._live.items()}
        # Running statistics stay a mean: with weights that sum to more, a variance could turn negative.
        most = max(float(weights.sum()), 1.0)
        return {n: moved[n] if n in moved else params[n] + delta[n] / most for n in params}

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state."""
        return {} if self._optimizer is None else self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        if self._optimizer is not None:
            self._optimizer.load_state_dict(dict(state))


def output_layer(params: Params, named: Layer | None) -> Layer | None:
    """Return the names of the output layer's weight ``[C, ...]`` and bias ``[C]``.

    Args:
        params: The model.
        named: What the user calls them; None takes the last array with several dimensions, and the one
            after it if it has as many entries.

    Returns:
        The names; None if no array has several dimensions.

    Raises:
        UserError: If the model has no array of a given name.
    """
    if named is not None:
        unknown = [name for name in named if name is not None and name not in params]
        if unknown:
            raise UserError(f"output_layer must name arrays of the model, got {unknown[0]}.")
        return named
    names = list(params)
    last = next((at for at in reversed(range(len(names))) if params[names[at]].dim() > 1), None)
    if last is None:
        return None
    weight, after = names[last], names[last + 1] if last + 1 < len(names) else None
    fits = after is not None and params[after].shape == params[weight].shape[:1]
    return weight, after if fits else None


def check_head(selector: Selector, params: Params, layer: Layer | None, classes: int) -> None:
    """Refuse an output layer that a selector cannot read, before anything trains (``Need.HEAD``).

    Args:
        selector: Who reads it.
        params: The model.
        layer: Names of the layer's arrays.
        classes: C.

    Raises:
        UserError: If there is none, it has not a row for each class, or it does not fit the selector.
    """
    if Need.HEAD not in selector.needs:
        return
    rule = f"output_layer must name the model's last weight [{classes}, ...] and bias [{classes}], which "
    rule += f"{type(selector).__name__} reads"
    if layer is None:
        raise UserError(f"{rule}; no array of the model has rows.")
    for name, least in zip(layer, (2, 1), strict=True):
        shape = [] if name is None else list(params[name].shape)
        if name is not None and (len(shape) < least or shape[0] != classes):
            raise UserError(f"{rule}, got {name} {shape}. The number of classes is num_classes.")
    selector.check_output_layer(has_bias=layer[1] is not None)


def steps_of(values: Mapping[str, Any]) -> int:
    """Return the local steps that a training's metrics tell; clients that tell none count alike."""
    return max(int(values.get("steps", 1)), 1)


def averaged(told: Sequence[Mapping[str, Any]], weights: Tensor) -> dict[str, float]:
    """Average the finite numbers that all clients' metrics tell, by the weights."""
    total = float(weights.sum())
    numbers = [finite_numbers(values) for values in told]
    names = set.intersection(*map(set, numbers)) if told and total > 0 else set()
    return {
        name: sum(found[name] * weight for found, weight in zip(numbers, weights.tolist(), strict=True))
        / total
        for name in sorted(names)
    }
