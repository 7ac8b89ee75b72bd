"""Compute a step's gradient by the module itself, and hide its parameters while others stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flsel.local.dropout import Masks
from flsel.local.head import undisturbed
from flsel.local.memos import equal
from flsel.local.program import Program
from flsel.local.tasks import loss_of
from flsel.params import Params
from flsel.rng import repeatable, seed_layers


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
