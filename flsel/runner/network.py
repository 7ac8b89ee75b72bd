"""The network of a run: built, tried, and asked for its output layer."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flsel.arguments import takes as has_argument
from flsel.arguments.class_paths import check_made
from flsel.arguments.spec import Spec
from flsel.config import model_object
from flsel.data.population import Examples, FederatedData
from flsel.data.trees import Tree, call, described, mapped, takes, tensors
from flsel.errors import UserError, users_code
from flsel.local.lightning_module import NeedsTrainer, own_measures
from flsel.local.output_layer import Features, find_head, find_layer
from flsel.local.plain import takes_channels_last
from flsel.local.program import Program
from flsel.local.snapshot import in_eval
from flsel.local.tasks import Classifier, is_lightning, own_loss, writes_to_inputs
from flsel.local.torch_internals import writes_to
from flsel.objectives.objective import overrides
from flsel.rng import repeatable, torch_seed
from flsel.runner.load_data import sample
from flsel.selector import Need, Selector

_LOG = logging.getLogger("flsel")


def make_model(model: Any, num_classes: int | None, inputs: Tree, seed: int) -> nn.Module:
    """Build the initial model under its own seed, telling it the data's shapes where it asks.

    Args:
        model: The setting ``model``.
        num_classes: Outputs that it needs, C for C classes; None where that is not known.
        inputs: Inputs as the model sees them, ``[n, ...]``, maybe none: their shape counts, and whether they
            are integers.
        seed: The run's seed.
    """
    known: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if isinstance(inputs, Tensor):
        known["input_shape"] = tuple(inputs.shape[1:])
    # An object or a lambda from Python is no setting that a file could hold; whatever else is, is a Spec.
    copied = model_object.copied(model)
    if copied is None:
        spec = Spec.of(model, "model", nn.Module)
        made, asked, is_set = spec.build, spec.made, spec.init_args
    else:
        made, asked, is_set = copied, copied, {}
    missing = {k: v for k, v in known.items() if has_argument(asked, k) and is_set.get(k) is None}
    with repeatable(torch_seed(seed, "model")):
        with users_code("model cannot be built"):
            network: nn.Module = made(**missing)
        check_made("model", getattr(asked, "__qualname__", type(asked).__name__), network, nn.Module)
        if is_lightning(network):
            with users_code("model cannot be built"):
                network.configure_model()
        lazy = any(map(is_lazy, network.parameters()))
        if lazy:
            # Lazy layers take their shapes from the first inputs and draw their weights then.
            with torch.no_grad(), in_eval(network):
                call(network, mapped(_two_zeros, inputs))
        return network


def _two_zeros(inputs: Tensor) -> Tensor:
    dtype = None if inputs.is_floating_point() else inputs.dtype
    return torch.zeros(2, *inputs.shape[1:], dtype=dtype)


def check_outputs(program: Program, test: Examples) -> Program:
    """Run the model once, so that what does not fit the data is said before anything is written.

    Returns:
        The program, as its evaluations go: by logits of classes or by the task's own loss, with gradients, or
        channels last.

    Raises:
        UserError: If it is so.
    """
    name = f"model {type(program.model).__name__}"
    x, _ = batch = program.ready(test.read(torch.arange(min(2, len(test)))))
    program.batch(torch.cat(program.population.shards)[:2], seed=0)  # what data.augment cannot take
    if isinstance(program.task, Classifier):
        _choose_loss(program, batch)
        program.kept.renew()  # to leave the choice as it is after a measurement
    written, parameters = _written(x), _parameters(program)
    program = replace(program, differentiates=_differentiates(program, batch))
    classifies, threshold = _classifies(program, batch, name)
    program = replace(program, classifies=classifies, threshold=threshold)
    program = replace(program, measurable=_measurable(program, batch, name))
    if _written(x) != written:
        raise UserError(writes_to_inputs(program.model))
    with program.measuring():
        with suppress(Exception):  # of a forward pass that serves something else
            program.outputs(x)
        found = _parameters(program)  # what a forward pass makes is gone after the measurement
    if found != parameters:
        raise UserError(f"{name} makes, drops or freezes parameters in forward: do it in __init__.")

    def evaluated() -> list[Tensor]:
        loss = [] if program.by_logits or not program.measurable else [program.step_loss(batch, 0)]
        return [program.outputs(x), *loss] if program.classifies else loss

    return replace(program, channels_last=takes_channels_last(program.task, evaluated))


def _choose_loss(program: Program, batch: tuple[Tree, Tree]) -> None:
    """Let a network train by its own loss where neither labels nor the settings say how.

    Raises:
        UserError: If it has none.
    """
    task, form = program.task, program.population.form
    assert isinstance(task, Classifier)
    has_loss = False
    if task.loss is not None or program.population.classifies:
        return
    joined = form.joined(*batch)
    with _trying(), program.measuring():
        if takes(task.net, joined):
            own_loss(task.net, joined)
            has_loss = True
    if has_loss:
        task.own = form  # after the measurement, which leaves the task as it was
        return
    targets = described(batch[1]) if batch[1] is not None else "none"
    raise UserError(
        f"loss must be set, since {type(task.net).__name__} returns no loss, and the targets of an example "
        f"are {targets}, no class label: for example MSELoss for numbers, BCEWithLogitsLoss for several "
        "labels, CrossEntropyLoss for classes of tokens or pixels; a class label is one whole number (of a "
        "one-hot row, its argmax)."
    )


def _classifies(program: Program, batch: tuple[Tree, Tree], name: str) -> tuple[bool, float | None]:
    """Tell whether a task's outputs tell classes, and the threshold if they are one for each example.

    Raises:
        UserError: If a plain network does not take the inputs, or returns something else for class labels.
    """
    x, _ = batch
    plain, size = isinstance(program.task, Classifier), len(tensors(x)[0])
    classes = program.population.wanted_outputs or 0
    if plain and not program.task.own:
        with users_code(_refused_inputs(program, x, name), reads=True), program.measuring():
            output = program.outputs(x)
    elif not program.population.classifies:
        return False, None
    else:
        output = None
        with suppress(Exception), program.measuring():  # a forward pass that serves something else
            output = program.outputs(x)
    if not program.population.classifies:
        return False, None
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if isinstance(output, Tensor) and shape == (size, classes) and output.is_floating_point():
        return True, None
    threshold = _threshold(program, batch, output) if classes == 2 else None
    if threshold is not None:
        return True, threshold
    if not plain or not program.task.by_cross_entropy:
        _LOG.info(
            "%s is not asked for accuracy, since its forward gives no logits of shape (%d, %d)",
            name,
            size,
            classes,
        )
        return False, None
    if isinstance(output, Tensor) and shape == (size, classes):
        raise UserError(f"{name} must return logits that are real numbers, got {output.dtype}.")
    raise UserError(
        f"{name} must return logits of shape ({size}, {classes}) for {size} examples, got {shape}"
        f"{_advice(shape, size, classes)}"
    )


def _threshold(program: Program, batch: tuple[Tree, Tree], output: Any) -> float | None:
    """Return what one output for each example is above for class 1: 0 for logits, 0.5 for probabilities.

    The class of a network's loss says which it is, and the loss that a LightningModule computes.

    Returns:
        None where outputs are something else.
    """
    y = batch[1]
    if not isinstance(output, Tensor) or not isinstance(y, Tensor) or output.numel() != len(y):
        return None
    if isinstance(program.task, Classifier):
        rules = {nn.BCEWithLogitsLoss: 0.0, nn.BCELoss: 0.5}
        return next((at for rule, at in rules.items() if isinstance(program.task.loss, rule)), None)
    functional, values = nn.functional, (output.flatten(), y.to(output))
    with suppress(Exception), program.measuring():  # of a step that needs a Trainer, or other outputs
        loss = program.step_loss(batch, 0)
        if torch.allclose(functional.binary_cross_entropy_with_logits(*values), loss):
            return 0.0
        if torch.allclose(functional.binary_cross_entropy(*values), loss):
            return 0.5
    return None


def _refused_inputs(program: Program, x: Tree, name: str) -> str:
    """Return how the sentence about inputs that a network does not take begins."""
    if isinstance(x, Tensor):
        kind = (
            ""
            if x.is_floating_point()
            else f" of whole numbers ({str(x.dtype)[6:]}), which are for a network that begins with an "
            "embedding, such as --model flsel.models.texts.NextCharacter for characters"
        )
        return f"{name} does not accept inputs of shape {tuple(x.shape[1:])}{kind}"
    named = ", ".join(x) if isinstance(x, Mapping) else f"{len(x)} tensors"
    own = ", ".join(inspect.signature(program.model.forward).parameters) or "nothing"
    return (
        f"{name} does not accept the inputs {named}: its forward takes {own} (data.columns "
        "chooses entries, and arguments of their names take them)"
    )


def _measurable(program: Program, batch: tuple[Tree, Tree], name: str) -> bool:
    """Tell whether a task's loss can be asked outside of training.

    Raises:
        UserError: If the step fails, or a task that only a Trainer can train measures nothing.
    """
    if program.by_logits:
        return True
    if not program.whole:
        given = described(program.as_given(batch))
        with users_code(f"{name} cannot compute its loss of examples {given}"), program.measuring():
            program.step_loss(mapped(Tensor.clone, batch), 0)
        return True
    with suppress(Exception), program.measuring():  # one that asks for its trainer
        program.step_loss(mapped(Tensor.clone, batch), 0)
        return True
    if not own_measures(program.task):  # type: ignore[arg-type]
        raise UserError(
            f"{name} needs a validation_step that logs how good it is: a Trainer alone runs its steps, and "
            "its forward gives no logits of classes."
        )
    return False


def _written(x: Tree) -> list[object]:
    return [writes_to(part, unknown=0) for part in tensors(x)]


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


def _differentiates(program: Program, batch: tuple[Tree, Tree]) -> bool:
    """Tell whether a task's outputs or losses fail without gradients, and only then."""
    plain = isinstance(program.task, Classifier)
    asked: list[Callable[[tuple[Tree, Tree]], object]] = []
    if not (plain and program.task.own):
        asked.append(lambda parts: program.outputs(parts[0]))
    if not (program.whole or (plain and program.task.by_cross_entropy)):
        asked.append(lambda parts: program.step_loss(parts, 0))
    return any(
        _fails(program, ask, batch) and not _fails(replace(program, differentiates=True), ask, batch)
        for ask in asked
    )


def _fails(program: Program, ask: Callable[[tuple[Tree, Tree]], object], batch: tuple[Tree, Tree]) -> bool:
    """Tell whether a measurement raises an error, which is reported by the first call that is in earnest."""
    failed = True
    with _trying(), program.measuring():
        ask(mapped(Tensor.clone, batch))
        failed = False
    return failed


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


def _linear_end(program: Program, features: Features, layer: nn.Module, x: Tree) -> tuple[str, str | None]:
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
        logits, own, head = features.during(
            lambda: program.outputs(mapped(lambda t: t.to(program.task.device), x))
        )
        if own.shape != (len(tensors(x)[0]), layer.in_features) or not torch.allclose(
            logits, head(own).to(logits)
        ):
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
