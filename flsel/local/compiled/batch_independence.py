"""Tell whether the examples of a batch meet in a model, so that padding it would change its step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flsel.local.compiled.refuse import TURNS, Unstackable, watched
from flsel.local.dropout import Masks
from flsel.local.head import undisturbed
from flsel.local.program import Program
from flsel.local.tasks import averages_examples
from flsel.objectives.objective import overrides


def weighs_examples(program: Program) -> bool:
    """Tell whether a batch's loss is known to be the mean of losses that each depend on one example.

    Such a mean can be written with a weight for each example, so that a padded place weighs nothing.
    """
    averages = program.objective.averages or not overrides(program.objective, "contrast")
    return averages_examples(program.task) and averages and not _mixes(program)


def _mixes(program: Program) -> bool:
    """Tell whether an example's scores depend on the others of its batch or on how many there are.

    So do an embedding's gradients where they are divided by how often the batch has a token.

    Raises:
        Unstackable: If the scores of the same batch differ from call to call.
    """
    if any(getattr(module, "scale_grad_by_freq", False) for module in program.task.modules()):
        return True
    places = torch.linspace(0, len(program.population.y) - 1, 4, device=program.task.device).long()
    # Two examples, of which one at most can be what the others are measured by, such as the largest.
    pairs = [(places, 0), (places[:1].expand(3), 0), (places, -1), (places[-1:].expand(3), -1)]
    with _without_zeros(program.task):
        found = [_scores(program, batch)[row].double() for batch, row in (*pairs, pairs[0])]
    if not torch.allclose(found[0], found.pop(), equal_nan=True):
        raise Unstackable(TURNS)
    one, other = torch.cat(found[::2]), torch.cat(found[1::2])
    largest = float(one.abs().nan_to_num(0.0, posinf=0.0).max())
    return not torch.allclose(one, other, rtol=0, atol=1e-4 * largest, equal_nan=True)


def _scores(program: Program, places: Tensor) -> Tensor:
    """Return a batch's scores in training; every call starts from the same random state."""
    masks = Masks(torch.zeros_like(places[0]))
    with undisturbed(program.task):
        program.task.train()
        with watched(program.kept), masks, program.fabric.autocast():
            scores: Tensor = program.task(program.batch(places)[0])
    return scores


@contextmanager
def _without_zeros(task: nn.Module) -> Iterator[None]:
    """Put small numbers for weights of zero meanwhile: a branch that begins with one hides what is in it."""
    kept = [(p, p.detach().clone()) for p in task.parameters() if not p.all()]
    draw = torch.Generator().manual_seed(0)
    try:
        for param, value in kept:
            small = torch.rand(value.shape, generator=draw).to(value) * 0.1 + 0.1
            param.data.copy_(torch.where(value == 0, small, value))
        yield
    finally:
        for param, value in kept:
            param.data.copy_(value)
