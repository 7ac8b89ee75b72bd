"""Read the features of a batch, the inputs of a model's output layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from flsel.data.trees import Tree
from flsel.data.trees import call as spread
from flsel.errors import UserError
from flsel.local.tasks import Task
from flsel.params import Params, called


class FeatureCall(NamedTuple):
    """Result of a call of the model.

    Attributes:
        value: What the call returned.
        features: What entered the output layer, ``[B, L]``; the last time, if it ran more than once.
        head: A linear output layer with the parameters that it had then: features ``[n, L]`` to logits
            ``[n, C]``.
    """

    value: Tensor
    features: Tensor
    head: Callable[[Tensor], Tensor]


@final
class Features:
    """Look at the input of a model's output layer; works inside ``torch.func.vmap`` too.

    Args:
        task: The client's program.
        model: The module whose parameter names the run uses: ``task`` itself or the network inside it.
        layer: The output layer inside ``model``.
    """

    def __init__(self, task: Task, model: nn.Module, layer: nn.Module) -> None:
        self._task = task
        self._model = model
        self._layer = layer

    def during(self, call: Callable[[], Tensor]) -> FeatureCall:
        """Make a call that runs the model on a batch.

        Raises:
            UserError: If the layer did not run.
        """
        # Kept no longer than the call: a graph that outlives its step keeps the parameters' old shapes.
        seen: list[Any] = []

        def look(layer: Any, inputs: tuple[Any, ...]) -> None:
            # Those of ``functional_call``, which are put back when the call is over.
            seen[:] = [inputs[0], layer.weight, getattr(layer, "bias", None)]

        handle = self._layer.register_forward_pre_hook(look)
        try:
            value = call()
        finally:
            handle.remove()
        if not seen:
            raise UserError(
                f"the training_step of {type(self._task).__name__} did not run the output layer; set "
                "output_layer to the one that it runs."
            )
        features, weight, bias = seen

        def head(z: Tensor) -> Tensor:
            return nn.functional.linear(z.to(weight.dtype), weight, bias)

        return FeatureCall(value, features.flatten(1), head)

    def of(self, params: Params, x: Tree) -> Tensor:
        """Return the representations ``[B, L]`` of inputs ``[B, ...]`` by another model, in eval mode."""
        self._task.eval()
        with torch.no_grad():
            seen = self.during(lambda: spread(partial(called, self._model, params), x, self._model))
        self._task.train()
        return seen.features
