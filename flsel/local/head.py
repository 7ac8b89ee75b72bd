"""Find a model's output layer, whose update tells a selector about a client's labels.

The last two parameters of a model are not always it: the layer may lack a bias, be registered early, share
its weight with an embedding, or have a norm or a temperature after it. So the model is run once, and the
layer is the one whose output is the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from flsel.data.trees import Tree, call
from flsel.errors import UserError
from flsel.local.snapshot import ModuleSnapshot
from flsel.local.torch_internals import own_parameters


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
            f"the output layer of {type(module).__name__} was not found; set output_layer to its path: "
            f"{_listed(layers)}."
        )
    return layer


def _has_rows(layer: nn.Module, rows: int) -> bool:
    """Tell whether the layer has a weight ``[rows, L, ...]`` of its own (a parametrised one is computed)."""
    weight = own_parameters(layer).get("weight")
    return weight is not None and weight.ndim >= 2 and weight.shape[0] == rows


def _listed(layers: dict[str, nn.Module]) -> str:
    return f"candidates are {', '.join(layers)}" if layers else "no layer qualifies"


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


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Restore training modes, what is kept, and torch's random state, without gradients meanwhile."""
    modes = {layer: layer.training for layer in module.modules()}
    kept = ModuleSnapshot(module)
    devices = {p.device.index for p in module.parameters() if p.device.type == "cuda"}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        for layer, training in modes.items():
            layer.training = training
        kept.restore()
