"""Decide what ``torch.func.vmap`` can train, and when a stack is no slower than one model at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest

from torch import nn, optim

from flsel.errors import UserError
from flsel.local.optimizers import does_more
from flsel.local.plain import mixes
from flsel.local.program import Program
from flsel.local.torch_internals import BATCH_NORM, gradients_are_hooked
from flsel.local.visit import Visit, alike

# Optimizers whose step treats every element alike, so that stacking models changes nothing.
ELEMENTWISE = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad,
    optim.Adadelta, optim.RMSprop, optim.ASGD, optim.Rprop,
)  # fmt: skip

# A stack of larger models moves more memory than the calls that it saves are worth, and so does one whose
# calls replace fewer (benchmarks/backends.md).
_NUMBERS = 100_000
_REPLACED = 6

DRAWS = "it draws random numbers other than dropout's (attention's own dropout must be 0)"
_CANNOT = "local.backend vmap cannot train this model: {}; use sequential."
_BRANCHES = "its step branches on data (torch.where can take the branch's place)"
_OPERATION = "torch.func.vmap does not support one of its operations (another may take its place)"
# Words of torch's own errors.
_REFUSALS = {
    "randomness error mode": DRAWS,
    "data-dependent control flow": _BRANCHES,
    ".item()": _BRANCHES,
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


class Unmapped(UserError):
    """A step that ``torch.func.vmap`` cannot run."""

    def __init__(self, reason: str) -> None:
        super().__init__(_CANNOT.format(reason))
        self.reason = reason


@contextmanager
def refusing() -> Iterator[None]:
    """Say in a sentence what of a step ``torch.func.vmap`` cannot run."""
    try:
        yield
    except RuntimeError as error:
        reason = reason_of(error)
        if reason is None:
            raise
        raise Unmapped(reason) from error


def reason_of(error: Exception) -> str | None:
    """Say why ``torch.func.vmap`` cannot run a step, from torch's own error; None if that is not known."""
    return next((why for word, why in _REFUSALS.items() if word in str(error)), None)


def pays(visits: Sequence[Visit]) -> bool:
    """Tell whether a stack of models trains some visits no slower than sequential, as far as shapes tell.

    On a CPU a model may have 100,000 numbers, and a call has to replace six steps in the mean: clients with
    batches of one size in a step make one call. The answer depends on the visits alone.
    """
    calls = steps = 0
    for group in alike(visits, start=False):
        first = visits[group[0]]
        if first.program.task.device.type != "cpu":
            return True
        if sum(value.numel() for value in first.start.values()) > _NUMBERS:
            return False
        tables = [visits[row].program.dealt(visits[row].client, visits[row].draw) for row in group]
        sizes = [(table >= 0).sum(axis=1).tolist() for table in tables]
        steps += sum(map(len, sizes))
        calls += sum(len(set(others) - {None}) for others in zip_longest(*sizes))
    return steps >= _REPLACED * calls


def require_vmap(program: Program) -> None:
    """Refuse a program that cannot be vectorised over clients.

    Raises:
        UserError: Saying why.
    """
    reason = why_not_vmap(program)
    if reason is not None:
        raise UserError(_CANNOT.format(reason))


def _hooked(task: nn.Module) -> bool:
    """Tell whether a module's gradients go through hooks, which ``torch.func`` does not call."""
    return any(gradients_are_hooked(owner) for owner in (*task.modules(), *task.parameters()))


def why_not_vmap(program: Program) -> str | None:
    """Say why a program cannot be vectorised over clients, or None if it can."""
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
    if _hooked(program.task):
        return "hooks change its gradients (an objective's correct may)"
    if sent := sorted(set(program.state()) - set(program.trainable())):
        named = ", ".join(sent[:3]) + (", ..." if len(sent) > 3 else "")
        return f"floating-point buffers are sent, here {named} (register constants with persistent=False)"
    return None
