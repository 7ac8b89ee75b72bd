"""What the compiled trainer leaves to sequential, with the reason in one line that says what to change."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn, optim

from flsel.errors import UserError
from flsel.local.dropout import Masks
from flsel.local.optimizers import does_more
from flsel.local.plain import mixes
from flsel.local.program import Program
from flsel.local.snapshot import ModuleSnapshot, undisturbed
from flsel.local.tasks import BATCH_NORM, averages_examples
from flsel.local.torch_internals import gradients_are_hooked
from flsel.objectives.objective import overrides
from flsel.params import Params
from flsel.rng import plain_states

# Optimizers whose step treats every element alike, so that stacking models changes nothing.
ELEMENTWISE = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad,
    optim.Adadelta, optim.RMSprop, optim.ASGD, optim.Rprop,
)  # fmt: skip

BRANCHES = "it branches on data (torch.where can take the branch's place)"
DRAWS = "it draws random numbers (dropout may, if attention's own dropout is 0)"
_OPERATION = "torch.func.vmap does not support one of its operations (another may take its place)"
# Words of torch's own errors.
_ERRORS = {
    "randomness error mode": DRAWS,
    "data-dependent control flow": BRANCHES,
    ".item()": BRANCHES,
    "Cannot access data pointer": "numbers leave torch in its step (compute with tensors)",
    "Cannot access storage": "its step reads a tensor's memory (compute with tensors)",
    "doesn't require gradient": "its step hooks the gradient of an activation (the loss may do that)",
    "escaped from inside a function": "its backward pass runs parts of it again (leave checkpointing out)",
    "does not require grad and": "it computes gradients within its step (sequential alone can)",
    "last dimension with stride": "one of its operations needs a single model's memory (take reshape)",
    "vmap": _OPERATION,
    "Batching rule": _OPERATION,
    "match the broadcast shape": "it writes to a buffer (a callback may, between rounds)",
    "functorch": _OPERATION,
}


class Refused(Exception):
    """The step is not compiled; the message says what it does, and in brackets what can take its place."""


def reason_of(error: Exception) -> str:
    """Say why a step could not be recorded, from what it raised when that was tried."""
    if isinstance(error, Refused):
        return str(error)
    said = str(error).splitlines()[0] if str(error) else ""
    known = (why for word, why in _ERRORS.items() if isinstance(error, RuntimeError) and word in str(error))
    return next(known, f"tracing it raised {type(error).__name__}: {said[:100]}")


def _measures(norm: nn.Module, sent: Params) -> bool:
    """Tell whether a layer measures batches in training: its statistics change, or it has none."""
    floats = {id(value) for value in norm.buffers(recurse=False) if value.is_floating_point()}
    return not floats or bool(floats & set(map(id, sent.values())))


def require_compiled(program: Program) -> None:
    """Refuse a program that cannot be compiled.

    Raises:
        UserError: Saying why.
    """
    reason = why_not_compiled(program)
    if reason is not None:
        raise UserError(f"local.backend compiled cannot train this model: {reason}; use sequential.")


def why_not_compiled(program: Program) -> str | None:
    """Say why no step of a program can be compiled, or None if one may be; tracing it decides then."""
    if reason := program.population.why_one_by_one():
        return reason
    if mixes(program.fabric):
        return "torch.func.vmap does not apply mixed precision to all layers (take precision bf16-true)"
    sent = {name: value for name, value in program.state().items() if not value.requires_grad}
    for module in program.task.modules():
        kind = type(module).__name__
        if isinstance(module, BATCH_NORM) and _measures(module, sent):
            what = "keeps running statistics" if module.track_running_stats else "measures whole batches"
            return f"{kind} {what}, which a stack cannot (GroupNorm can take its place)"
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            return f"{kind} is not supported by torch.func.vmap (a cell of linear layers is)"
    if type(program.optimizer) not in ELEMENTWISE:
        name = type(program.optimizer).__name__
        return f"{name} is none of torch's optimizers that treat every element alike (SGD, Adam)"
    if does_more(program.optimizer):
        return "something was added to its optimizer's step (an objective's correct may change gradients)"
    if any(gradients_are_hooked(owner) for owner in (*program.task.modules(), *program.task.parameters())):
        return "hooks change its gradients (an objective's correct may)"
    if sent:
        named = ", ".join(sorted(sent)[:3]) + (", ..." if len(sent) > 3 else "")
        return f"its step changes floating-point buffers, here {named} (a callback may, between rounds)"
    return None


class Convolves(Refused):
    """A step for a stack of models has convolutions, which a CPU computes faster for one model at a time."""


@contextmanager
def watched(kept: ModuleSnapshot) -> Iterator[None]:
    """Refuse a step that leaves traces of itself elsewhere than in the loss.

    The self-check misses them where they matter late: ``LateCounter`` in tests/local/test_rare_steps.py.
    """
    drawn = plain_states()
    said = io.StringIO()
    with redirect_stdout(said):
        yield
    if plain_states() != drawn:
        raise Refused(DRAWS)
    if said.getvalue():
        raise Refused("it prints (take that out)")
    if kept.changed():
        raise Refused("it keeps something in the module (a callback may, between rounds)")


@contextmanager
def out_of_place(task: nn.Module) -> Iterator[None]:
    """Let activations return new values: in place, their gradients are written in parts of others."""
    changed = [module for module in task.modules() if getattr(module, "inplace", None) is True]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in changed:
            module.inplace = True  # type: ignore[assignment]


def _unread(self: Any, *values: Any) -> Any:
    raise Refused("it reads batch_idx (leave it unread)")


_USES = {*vars(int), "__str__", "__getattr__"} - {"__new__", "__doc__", "__getattribute__"}
# Stands for batch_idx, which a graph would keep as the number it was traced with.
Unread: Any = type("Unread", (), dict.fromkeys(_USES, _unread))


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
    """
    if any(getattr(module, "scale_grad_by_freq", False) for module in program.task.modules()):
        return True
    places = torch.linspace(0, len(program.population.examples) - 1, 4, device=program.task.device).long()
    # Two examples, of which one at most can be what the others are measured by, such as the largest.
    pairs = [(places, 0), (places[:1].expand(3), 0), (places, -1), (places[-1:].expand(3), -1)]
    scores = [_scores(program, batch)[row].double() for batch, row in pairs]
    one, other = torch.cat(scores[::2]), torch.cat(scores[1::2])
    return not torch.allclose(one, other, rtol=0, atol=1e-4 * float(one.abs().max()))


def _scores(program: Program, places: Tensor) -> Tensor:
    """Return a batch's scores in training; every call starts from the same random state."""
    masks = Masks(torch.zeros_like(places[0]))
    with undisturbed(program.task), watched(program.kept), masks, program.fabric.autocast():
        scores: Tensor = program.task(program.batch(places)[0])
    return scores
