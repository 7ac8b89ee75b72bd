"""Find a model's output layer, whose update tells a selector about a client's labels, and its features."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from flsel.data.trees import Tree, call
from flsel.errors import UserError
from flsel.local.snapshot import in_eval, undisturbed
from flsel.local.tasks import Task
from flsel.local.torch_internals import own_parameters
from flsel.params import Params, called


class Head(NamedTuple):
    """The output layer's parameters by their names in ``module.named_parameters()``.

    Attributes:
        weight_name: Weight ``[C, L]``, or ``[C, L, 1, 1]`` of a 1x1 convolution.
        bias_name: Bias ``[C]``, or None if the layer has none.
    """

    weight_name: str
    bias_name: str | None


def find_head(
    module: nn.Module, example: Tree | None, num_classes: int, output_layer: str | None = None
) -> Head:
    """Find the names of the output layer's weight and bias; see :func:`find_layer`.

    Raises:
        UserError: If there is no such layer; the message lists the candidates.
    """
    return _names(module, find_layer(module, example, num_classes, output_layer), num_classes)


def find_layer(
    module: nn.Module, example: Tree | None, num_classes: int, output_layer: str | None = None
) -> nn.Module:
    """Find the output layer.

    In this order: the layer at ``output_layer``; the last layer to run whose output is the logits (equal
    in value, else equal up to a constant per class, else of the same shape); the last registered ``Linear``
    with C outputs. Training mode, torch's random state and buffers are as before.

    Args:
        module: The model; maps a batch of inputs to logits ``[B, C]``.
        example: A batch of inputs as the model takes them, ``[B, ...]``; None skips running the model.
        num_classes: C.
        output_layer: Path of the layer inside the module, such as ``"classifier.2"``.

    Raises:
        UserError: If there is no such layer; the message lists the candidates.
    """
    layers = {name: layer for name, layer in module.named_modules() if _has_rows(layer, num_classes)}
    if output_layer is not None:
        if output_layer not in layers:
            raise UserError(
                f"output_layer must name a layer with a weight of {num_classes} rows, got {output_layer!r}; "
                f"{_listed(layers)}."
            )
        named: nn.Module = layers[output_layer]
        return named
    layer = _running_last(module, layers, example) or _registered_last(layers)
    if layer is None:
        raise UserError(
            f"the output layer of {type(module).__name__}, with a weight of {num_classes} rows, was not "
            f"found; set output_layer to its path: {_listed(layers)}."
        )
    return layer


def _has_rows(layer: nn.Module, rows: int) -> bool:
    """Tell whether the layer has a weight ``[rows, L, ...]`` of its own (a parametrised one is computed)."""
    weight = own_parameters(layer).get("weight")
    return weight is not None and weight.ndim >= 2 and weight.shape[0] == rows


def _listed(layers: dict[str, nn.Module]) -> str:
    none = "no layer has such a weight of its own (one computed from others, as by weight_norm, is none)"
    return f"candidates are {', '.join(layers)}" if layers else none


def _names(module: nn.Module, layer: nn.Module, num_classes: int) -> Head:
    # By identity: a weight shared by two layers has one name only, that of the layer registered first.
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    bias = own_parameters(layer).get("bias")
    has_bias = bias is not None and bias.shape == (num_classes,)
    return Head(names[id(layer.weight)], names[id(bias)] if has_bias else None)


def _registered_last(layers: dict[str, nn.Module]) -> nn.Module | None:
    linear = [layer for layer in layers.values() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else None


def _running_last(module: nn.Module, layers: dict[str, nn.Module], example: Tree | None) -> nn.Module | None:
    """Return the last layer to run whose output resembles the logits most, if any has their shape."""
    if example is None:
        return None
    ran, logits = _run(module, layers, example)
    best, closest = None, 0
    for layer, output in ran:
        resemblance = _resemblance(output, logits)
        if resemblance >= max(closest, 1):
            best, closest = layer, resemblance
    return best


def _resemblance(output: object, logits: object) -> int:
    """Compare a layer's output with the logits: 3 equal, 2 up to a constant per class, 1 in shape, 0 not."""
    if not isinstance(output, Tensor) or not isinstance(logits, Tensor) or logits.ndim != 2:
        return 0
    if output.ndim > 2:
        output = output.flatten(2).mean(2)
    if output.shape != logits.shape:
        return 0
    if torch.allclose(output, logits, rtol=1e-5, atol=1e-6):
        return 3
    offset = logits - output
    return 2 if len(offset) > 1 and torch.allclose(offset, offset[:1].expand_as(offset), atol=1e-5) else 1


def _run(
    module: nn.Module, layers: dict[str, nn.Module], example: Tree
) -> tuple[list[tuple[nn.Module, object]], object]:
    """Run the model once; return the candidates that ran, in order, with their outputs, and the logits."""
    ran: list[tuple[nn.Module, object]] = []

    def record(layer: nn.Module, inputs: object, output: object) -> None:
        ran.append((layer, output))

    with ExitStack() as stack:
        stack.enter_context(undisturbed(module))
        for layer in layers.values():
            stack.callback(layer.register_forward_hook(record).remove)
        module.eval()
        try:
            return ran, call(module, example)
        except NotImplementedError:  # A module without ``forward``: only its layers' names are left to go by.
            return [], None
        except RuntimeError:  # of a model whose outputs are gradients, too
            ran.clear()
            with torch.enable_grad():
                return ran, call(module, example)


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

    def during(self, step: Callable[[], Tensor]) -> FeatureCall:
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
            value = step()
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
        with in_eval(self._task), torch.no_grad():
            seen = self.during(lambda: call(partial(called, self._model, params), x, self._model))
        return seen.features
