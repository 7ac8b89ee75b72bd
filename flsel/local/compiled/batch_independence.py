"""Tell whether the examples of a batch meet in a model, so that padding it would change its step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flsel.local.compiled.refusals import TURNS, Refused
from flsel.local.compiled.refuse import watched
from flsel.local.dropout import Masks
from flsel.local.head import undisturbed
from flsel.local.program import Program
from flsel.local.tasks import averages_examples
from flsel.objectives.objective import overrides


def weighs_examples(program: Program) -> bool:
    """Tell whether a batch's loss is known to be the mean of losses that each depend on one example.

    Such a mean can be written with a weight for each example, so that a padded place weighs nothing. The
    answer depends on the model's structure and the data, not on what was trained before.
    """
    averages = program.objective.averages or not overrides(program.objective, "contrast")
    return averages_examples(program.task) and averages and not _mixes(program)


def _mixes(program: Program) -> bool:
    """Tell whether an example's scores depend on the others of its batch or on how many there are, or may.

    So do an embedding's gradients where they are divided by how often the batch has a token.

    Raises:
        Refused: If the scores of the same batch differ from call to call.
    """
    if any(getattr(module, "scale_grad_by_freq", False) for module in program.task.modules()):
        return True
    places = torch.linspace(0, len(program.population.examples) - 1, 4, device=program.task.device).long()
    # Two examples, of which one at most can be what the others are measured by, such as the largest.
    pairs = [(places, 0), (places[:1].expand(3), 0), (places, -1), (places[-1:].expand(3), -1)]
    with _drawn_weights(program.task):
        found = [_scores(program, batch)[row].double() for batch, row in (*pairs, pairs[0])]
    if not torch.allclose(found[0], found.pop(), equal_nan=True):
        raise Refused(TURNS)
    one, other = torch.cat(found[::2]), torch.cat(found[1::2])
    return not torch.allclose(one, other, rtol=0, atol=1e-4 * float(one.abs().max()))


def _scores(program: Program, places: Tensor) -> Tensor:
    """Return a batch's scores in training; every call starts from the same random state."""
    masks = Masks(torch.zeros_like(places[0]))
    with undisturbed(program.task):
        program.task.train()
        with watched(program.kept), masks, program.fabric.autocast():
            scores: Tensor = program.task(program.batch(places)[0])
    return scores


@contextmanager
def _drawn_weights(task: nn.Module) -> Iterator[None]:
    """Put drawn numbers for what trains meanwhile: the answer is about the model, whatever it has learned.

    A weight of zero would hide the branch that begins with it. Matrices keep the scale of what they map.
    """
    live = [param for param in task.parameters() if param.requires_grad]
    kept = [param.detach().clone() for param in live]
    draw = torch.Generator().manual_seed(0)
    try:
        for param in live:
            share = torch.rand(param.shape, generator=draw)
            wide = (
                (share * 2 - 1) * math.sqrt(3 * len(param) / max(param.numel(), 1))
                if param.ndim > 1
                else None
            )
            param.data.copy_(0.5 + 0.5 * share if wide is None else wide)
        yield
    finally:
        for param, value in zip(live, kept, strict=True):
            param.data.copy_(value)
