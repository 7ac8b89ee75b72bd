"""The network of a run: built, tried, and asked for its output layer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flsel.arguments import takes
from flsel.arguments.class_paths import check_made
from flsel.arguments.spec import Spec
from flsel.config import model_object
from flsel.data.population import Examples, FederatedData
from flsel.errors import UserError, users_code
from flsel.local.channels_last import takes_channels_last
from flsel.local.features import Features
from flsel.local.head import find_head, find_layer
from flsel.local.lightning_module import NeedsTrainer
from flsel.local.program import Program
from flsel.local.tasks import writes_to_inputs
from flsel.local.torch_internals import writes_to
from flsel.objectives.objective import overrides
from flsel.rng import repeatable, torch_seed
from flsel.runner.load_data import sample
from flsel.selector import Need, Selector

_LOG = logging.getLogger("flsel")


def make_model(model: Any, num_classes: int, inputs: Tensor, seed: int) -> nn.Module:
    """Build the initial model under its own seed, telling it the data's shapes where it asks.

    Args:
        model: The setting ``model``.
        num_classes: C.
        inputs: Inputs as the model sees them, ``[n, ...]``, maybe none: their shape counts, and whether they
            are integers.
        seed: The run's seed.
    """
    known = {"num_classes": num_classes, "input_shape": tuple(inputs.shape[1:])}
    # An object or a lambda from Python is no setting that a file could hold; whatever else is, is a Spec.
    copied = model_object.copied(model)
    if copied is None:
        spec = Spec.of(model, "model", nn.Module)
        made, asked, is_set = spec.build, spec.made, spec.init_args
    else:
        made, asked, is_set = copied, copied, {}
    missing = {k: v for k, v in known.items() if takes(asked, k) and is_set.get(k) is None}
    with repeatable(torch_seed(seed, "model")):
        with users_code("model cannot be built"):
            network: nn.Module = made(**missing)
        check_made("model", getattr(asked, "__qualname__", type(asked).__name__), network, nn.Module)
        lazy = any(map(is_lazy, network.parameters()))
        if lazy:
            # Lazy layers take their shapes from the first inputs and draw their weights then.
            dtype = None if inputs.is_floating_point() else inputs.dtype
            with torch.no_grad():
                network.eval()(torch.zeros(2, *inputs.shape[1:], dtype=dtype))
        return network


def check_logits(program: Program, test: Examples) -> Program:
    """Run the model once, so that a shape that does not fit is said before anything is written.

    Returns:
        The program, as its evaluations go: with gradients, or channels last.

    Raises:
        UserError: If it is so.
    """
    classes, name = program.population.num_classes, f"model {type(program.model).__name__}"
    x, y = (
        program.population.normalize(test.x[:2].to(program.task.device)),
        test.y[:2].to(program.task.device),
    )
    written, parameters = writes_to(x, unknown=0), _parameters(program)
    program = replace(program, differentiates=_differentiates(program, x, y))
    refused = f"{name} does not accept inputs of shape {tuple(test.x.shape[1:])}"
    with users_code(refused, reads=True), program.measuring():
        logits = program.task(x)
        found = _parameters(program)  # what a forward pass makes is gone after the measurement
    if writes_to(x, unknown=0) != written:
        raise UserError(writes_to_inputs(program.model))
    if found != parameters:
        raise UserError(f"{name} makes, drops or freezes parameters in forward: do it in __init__.")
    if not isinstance(logits, Tensor) or logits.shape != (len(x), classes):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            f"{name} must return logits of shape ({len(x)}, {classes}) for {len(x)} examples, got {shape}"
            f"{_advice(shape, len(x), classes)}"
        )
    if not logits.is_floating_point():
        raise UserError(f"{name} must return logits that are real numbers, got {logits.dtype}.")
    return replace(program, channels_last=takes_channels_last(program.task, x, y))


def _advice(shape: tuple[int, ...] | str, examples: int, classes: int) -> str:
    """Say what makes a classifier of a model whose output has another shape."""
    if shape in ((examples,), (examples, 1)):
        return (
            ": give it one output for each class and train it by cross-entropy"
            f"{', which for two classes is the loss of one output with a sigmoid' * (classes == 2)}."
        )
    if isinstance(shape, tuple) and len(shape) == 2:
        return f": set its number of outputs, such as --model.num_classes {classes}."
    return "."


def _differentiates(program: Program, x: Tensor, y: Tensor) -> bool:
    """Tell whether a task's outputs or losses fail without gradients, and only then."""
    for differentiates in (False, True):
        # An error that it raises in both is reported by the first call.
        with _trying(), replace(program, differentiates=differentiates).measuring():
            program.task(x.clone())
            if not program.by_logits:
                program.measured_loss((x.clone(), y.clone()))
            return differentiates
    return False


@contextmanager
def _trying() -> Iterator[None]:
    """Pass over every error but that only a Trainer can train the task."""
    try:
        yield
    except NeedsTrainer:
        raise
    except Exception:
        return


def _parameters(program: Program) -> list[tuple[str, int, bool]]:
    """Identify the parameters of a task, and which of them train."""
    return [(name, id(p), p.requires_grad) for name, p in program.task.named_parameters()]


def find_features(program: Program, data: FederatedData, output_layer: str | None) -> Features | None:
    """Find what enters the output layer, for an objective that reads or feeds it; None for the others.

    An objective that generates features is told the names of that layer's parameters.

    Raises:
        UserError: If features are generated and the model does not end in a linear layer that trains.
    """
    feeds = overrides(program.objective, "generated")
    if not feeds and not overrides(program.objective, "contrast"):
        return None
    x, classes = sample(data, 2), data.population.num_classes
    layer = find_layer(program.model, x, classes, output_layer)
    features = Features(program.task, program.model, layer)
    if feeds:
        program.objective.head = _linear_end(program, features, layer, x)
    return features


def _linear_end(program: Program, features: Features, layer: nn.Module, x: Tensor) -> tuple[str, str | None]:
    """Name the weight and bias of an output layer that maps features to the logits themselves."""
    name, model = type(program.objective).__name__, type(program.model).__name__
    names = {id(param): path for path, param in program.trainable().items()}
    wanted = f"objective {name} needs a model that ends in a linear layer, whose outputs are the logits, and"
    if not isinstance(layer, nn.Linear):
        kind = type(layer).__name__
        raise UserError(f"{wanted} the output layer of {model} is {kind}: put nn.Linear there.")
    if not {id(p) for p in layer.parameters()} <= names.keys():
        raise UserError(f"{wanted} that of {model} is frozen: let its parameters train.")
    with program.measuring():
        logits, own, head = features.during(lambda: program.task(x.to(program.task.device)))
        if own.shape != (len(x), layer.in_features) or not torch.allclose(logits, head(own).to(logits)):
            raise UserError(f"{wanted} {model} computes them after its output layer: take another model.")
    if len(names) == len(list(layer.parameters())):
        _LOG.warning(
            "%s generates inputs, not features, since the output layer of %s sees the input", name, model
        )
    return names[id(layer.weight)], None if layer.bias is None else names[id(layer.bias)]


def head_names(
    selector: Selector, model: nn.Module, data: FederatedData, output_layer: str | None
) -> tuple[str, str | None] | None:
    """Name the output layer's weight and bias, for a selector that looks at it; None for the others.

    Raises:
        UserError: If the layer is not found or does not train, or does not fit the selector.
    """
    if Need.HEAD not in selector.needs:
        if output_layer is not None:  # refuse a wrong name even if no selector reads the layer
            find_layer(model, None, data.population.num_classes, output_layer)
        return None
    head = find_head(model, sample(data, 2), data.population.num_classes, output_layer)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if head.weight_name not in trained:
        raise UserError(
            f"{head.weight_name} must train with {type(selector).__name__}, which compares updates of the "
            "output layer, and it is frozen: unfreeze it, or set output_layer to a layer with "
            f"{data.population.num_classes} outputs that trains."
        )
    bias = head.bias_name if head.bias_name in trained else None
    selector.check_output_layer(has_bias=bias is not None)
    return head.weight_name, bias
