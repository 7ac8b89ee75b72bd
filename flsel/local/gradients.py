"""Gradients of many clients' losses at one model, a stack of clients per pass."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from flsel.local.plain import mixes
from flsel.local.program import Program
from flsel.local.tasks import averages_examples
from flsel.params import Params, called

_LOG = logging.getLogger("flsel")
_REFUSED: WeakSet[Program] = WeakSet()

Piece = tuple[int, Tensor]


def gradients_at_once(program: Program, clients: Sequence[int]) -> Params:
    """Return the gradients of clients' mean losses at the loaded model, in eval mode, if they can be stacked.

    Args:
        program: The client's side of the run.
        clients: The clients.

    Returns:
        The gradients over the trainable parameters, each ``[len(clients), ...]``, NaN for a client without
        examples; nothing where stacking is not possible or does not pay.
    """
    if program in _REFUSED or not _stackable(program):
        return {}
    shards = [program.population.shards[client] for client in clients]
    weights = torch.tensor([1 / max(len(shard), 1) for shard in shards], dtype=torch.float64)
    blank = torch.tensor([0.0 if len(shard) else math.nan for shard in shards]).to(program.task.device)
    out = {
        name: blank.to(param.dtype).view(-1, *[1] * param.ndim).repeat(1, *param.shape)
        for name, param in program.trainable().items()
    }
    try:
        for pieces in _packs(shards, program.at_once):
            rows = torch.tensor([row for row, _ in pieces])
            found = _pack(program, [where for _, where in pieces], weights[rows])
            for name, value in out.items():
                value.index_add_(0, rows.to(value.device), found[name])
    except RuntimeError as error:
        # What torch.func.vmap cannot do, for instance branch on data.
        said = str(error).splitlines()[0][:100]
        _LOG.info("gradients are asked client by client, since stacking them raised: %s", said)
        _REFUSED.add(program)
        return {}
    return out


def _stackable(program: Program) -> bool:
    """Tell whether the loss is a mean over examples, of a model that can be vectorised, and stacking pays."""
    task = program.task
    if not averages_examples(task):
        return False
    recurrent = any(isinstance(module, nn.RNNBase) for module in task.modules())
    return not recurrent and not mixes(program.fabric) and _pays(task.device)


def _pays(device: torch.device) -> bool:
    # On a CPU one client at a time is as fast or faster (benchmarks/backends.md); a GPU would be idle.
    return device.type != "cpu"


def _packs(shards: Sequence[Tensor], room: int) -> Iterator[list[Piece]]:
    """Cut shards into pieces of at most ``room`` examples and pack pieces of like size, padding included."""
    pieces = [
        (row, piece) for row, shard in enumerate(shards) if len(shard) for piece in torch.split(shard, room)
    ]
    pack: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: -len(piece[1])):
        longest = len(pack[0][1]) if pack else 0
        if pack and ((len(pack) + 1) * longest > room or 2 * len(piece[1]) < longest):
            yield pack
            pack = []
        pack.append(piece)
    if pack:
        yield pack


def _pack(program: Program, pieces: list[Tensor], weights: Tensor) -> Params:
    """Return the gradients of some pieces' losses, each ``[len(pieces), ...]``."""
    positions = pad_sequence(pieces, batch_first=True, padding_value=-1)
    share = torch.where(positions >= 0, weights[:, None], 0.0)
    x, y = program.batch(positions.clamp(min=0))
    live = program.trainable()
    device = program.task.device

    def loss(params: Params, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        logits = called(program.model, params, x)
        return (nn.functional.cross_entropy(logits, y, reduction="none") * share).sum()

    gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))
    start = {name: value.detach() for name, value in live.items()}
    with program.fabric.autocast():
        found: Params = gradient(start, x, y, share.to(device, next(iter(live.values())).dtype))
    return found
