"""Compare a gradient that was computed for a stack, or by a recorded step, with the module's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from flsel.local.dropout import Masks
from flsel.local.gaps import Gap, gap, less, moved
from flsel.local.head import undisturbed
from flsel.local.memos import equal
from flsel.local.program import Program
from flsel.local.tasks import loss_of
from flsel.params import Params
from flsel.rng import repeatable, seed_layers

OTHER = "its gradient is not the one that the model has by itself (docs/models-and-data.md lists causes)"


@dataclass(frozen=True)
class Sample:
    """A step of one client.

    Attributes:
        model: Parameters that it is taken from.
        start: Model that the visit started from.
        client: Client id.
        models: Frozen models of the objective's contrast.
        drawn: What the step draws for generated features; may be empty.
        places: Examples of the batch, as positions in the population, int64 ``[B]``.
        key: Of the step's dropout masks, int64 ``[]``.
        seed: Of the visit's global generators.
        step: Number of the step.
    """

    model: Params
    start: Params
    client: int
    models: tuple[Params, ...]
    drawn: Params
    places: Tensor
    key: Tensor
    seed: int
    step: int


def apart(program: Program, sample: Sample, found: Params, *, corrected: bool) -> Gap | None:
    """Compare the gradient of a step with that of the module itself, as sequential training computes it.

    Args:
        program: The client's side.
        sample: The step.
        found: Its gradient, by name; what has none is left out.
        corrected: Whether the objective corrected it.

    Returns:
        How far it is away, or None if rounding explains that. Infinitely, if other parameters have a gradient
        or the step writes to the model.
    """
    plain = gradients(program, sample, corrected)
    if plain is None or plain.keys() != found.keys():
        return Gap(float("inf"), 0.0, "")  # no gradient is not one of zeros for every optimizer
    zeros = {name: torch.zeros_like(value) for name, value in program.trainable().items()}
    dtype = getattr(program.task, "compute", None) or next(iter(zeros.values())).dtype

    def turned() -> Params:
        other = replace(sample, model=moved(sample.model, dtype))
        return less(zeros | (gradients(program, other, corrected) or {}), zeros | plain)

    return gap(zeros | plain, less(zeros | found, zeros | plain), None, dtype, turned)


@contextmanager
def blanked(program: Program) -> Iterator[None]:
    """Let the module's own parameters be NaN, where others stand for them: a step that reads them shows.

    Such a step keeps them in a list or a closure, or runs parts of itself again in the backward pass.
    """
    live = program.trainable()
    kept = {name: value.detach().clone() for name, value in live.items()}
    for value in live.values():
        value.data.fill_(torch.nan)
    try:
        yield
    finally:
        for name, value in live.items():
            value.data.copy_(kept[name])


def without_zeros(stack: Params) -> Params:
    """Put small numbers for zeros: a branch of a model that begins with a weight of zero hides what is in it.

    Args:
        stack: Models, each tensor ``[n, ...]``.
    """
    draw = torch.Generator().manual_seed(0)
    filled = {}
    for name, value in stack.items():
        if value.all():
            filled[name] = value.clone()
            continue
        small = torch.rand(value.shape[1:], generator=draw).to(value) * 0.1 + 0.1
        filled[name] = torch.where(value == 0, small, value)
    return filled


def gradients(program: Program, sample: Sample, corrected: bool) -> Params | None:
    """Compute a gradient as sequential training does.

    Args:
        program: The client's side.
        sample: The step.
        corrected: Let the objective correct it.

    Returns:
        It by name; None if the step writes to the model meanwhile.
    """
    program.load(sample.model)
    task, params = program.task, program.trainable()
    _clear(task)  # a stack's backward pass may have reached parameters that a module keeps in a list
    batch = program.batch(sample.places)
    device = task.device
    with undisturbed(task), repeatable(0, [device] if device.type == "cuda" else []):
        seed_layers(device, sample.seed)
        task.train()
        try:
            with torch.enable_grad(), Masks(sample.key):
                with program.fabric.autocast():
                    loss = program.loss(
                        lambda: loss_of(task.training_step(batch, sample.step)),
                        batch,
                        sample.models,
                        sample.drawn,
                    )
                program.fabric.backward(loss)
            grads = {name: param.grad for name, param in params.items() if param.grad is not None}
        finally:
            _clear(task)
    if any(not equal(value, sample.model[name]) for name, value in program.state().items()):
        return None
    if corrected:
        with torch.no_grad():
            grads = program.objective.corrected(grads, params, sample.start, sample.client)
    return grads


def _clear(task: nn.Module) -> None:
    for param in task.parameters():
        param.grad = None
