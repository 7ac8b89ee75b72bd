"""What the compiled trainer leaves to sequential, with the reason in one line that says what to change."""

from __future__ import annotations

from torch import nn, optim

from flsel.errors import UserError
from flsel.local.optimizers import does_more
from flsel.local.plain import mixes
from flsel.local.program import Program
from flsel.local.torch_internals import BATCH_NORM, gradients_are_hooked

# Optimizers whose step treats every element alike, so that stacking models changes nothing.
ELEMENTWISE = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad,
    optim.Adadelta, optim.RMSprop, optim.ASGD, optim.Rprop,
)  # fmt: skip

TURNS = "it gives another loss each time (let that depend on model and batch alone)"
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
    for module in program.task.modules():
        kind = type(module).__name__
        if isinstance(module, BATCH_NORM):
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
    if sent := sorted(set(program.state()) - set(program.trainable())):
        named = ", ".join(sent[:3]) + (", ..." if len(sent) > 3 else "")
        return f"floating-point buffers are sent, here {named} (register constants with persistent=False)"
    return None
