"""A node's side of a Flower app that has its own training: one call answers a selector's questions.

Flower starts a process for each message, so this module imports no torch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flsel.errors import UserError, short
from flsel.flower.records import (
    CONFIG,
    MODEL,
    ArrayRecord,
    ClientApp,
    Context,
    Message,
    from_array_record,
    handles,
    to_records,
)
from flsel.flower.wire import PROTOCOL, Value

_NAMES = ("client-id", "partition-id")
_MOST_LABEL = 10**6


def answer(
    app: ClientApp,
    *,
    labels: Callable[[Context], Sequence[int]],
    losses: Callable[[ArrayRecord, Context], Sequence[float]] | None = None,
    gradient: Callable[[ArrayRecord, Context], ArrayRecord] | None = None,
) -> None:
    """Let a ClientApp answer what a :class:`flsel.flower.SelectorStrategy` asks.

    The training stays the app's own, as it is for Flower's FedAvg; a probe training is the same with
    ``flsel-probe`` in its config. A client's name is ``client-id`` in the node's configuration, else
    ``partition-id``, else the node id, which is new each time the node connects. Mods of the app see each
    question with a model ``arrays`` and a ``config`` with ``server-round``, and its answer with a model of
    the same names.

    Args:
        app: The app.
        labels: Returns the label of each training example of this node, whole numbers in [0, 1e6). Their
            number leaves the node, and their counts where the selector needs label counts.
        losses: Returns the loss of a model on each training example. Their mean and mean square leave the
            node; None answers no question about losses.
        gradient: Returns the gradient of the mean loss at a model, by its parameters' names; None answers no
            question about gradients.
    """
    able = {"losses": losses, "gradients": gradient}

    def hello(asked: Mapping[str, Any], message: Message, context: Context) -> Message:
        if asked.get("protocol") != PROTOCOL:
            raise UserError(
                f"the node must speak version {asked.get('protocol')} of flsel's protocol like the server, "
                f"got {PROTOCOL}: install the server's version of flsel."
            )
        found = _whole_labels(labels(context))
        named = next(
            (context.node_config[key] for key in _NAMES if key in context.node_config), context.node_id
        )
        values: dict[str, Value] = {
            "client": str(named),
            "examples": len(found),
            "answers": " ".join(name for name, function in able.items() if function is not None),
        }
        if asked.get("labels"):
            values["labels"] = np.bincount(found).tolist()
        return _said(message, values)

    def tell_losses(asked: Mapping[str, Any], message: Message, context: Context) -> Message:
        assert losses is not None  # the server asks for what the hello offers
        found = _loss_of_each(losses(message.content.array_records[MODEL], context))
        return _said(message, {"loss": _mean(found), "squared": _mean(found * found)})

    def tell_gradient(asked: Mapping[str, Any], message: Message, context: Context) -> Message:
        assert gradient is not None
        sent = message.content.array_records[MODEL]
        moved, names = _stepped(from_array_record(sent), from_array_record(gradient(sent, context)))
        return Message(to_records({MODEL: moved}, {"trained": names}), reply_to=message)

    for action, tell in (("hello", hello), ("losses", tell_losses), ("gradients", tell_gradient)):
        handles(app, action, functools.partial(_answered, tell))


def _answered(
    tell: Callable[[Mapping[str, Any], Message, Context], Message], message: Message, context: Context
) -> Message:
    """Answer a question; what the user can correct is in the answer, as one sentence."""
    try:
        return tell(message.content.config_records.get(CONFIG, {}), message, context)
    except UserError as error:
        return _said(message, {"error": str(error)})


def _said(message: Message, values: dict[str, Value]) -> Message:
    """Return an answer of plain values.

    Mods such as Flower's ``LocalDpMod`` take every answer for a trained model: they want the names of the
    model that was sent, and divide by how far it moved. One number for each array is enough.
    """
    sent = from_array_record(message.content.array_records.get(MODEL, ArrayRecord()))
    moved = {
        name: np.full(1, array.flat[0] + 1 if array.size else 1, array.dtype) for name, array in sent.items()
    }
    return Message(to_records({MODEL: moved}, values), reply_to=message)


def _stepped(
    model: Mapping[str, np.ndarray], gradient: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return a model after one step of gradient descent at rate 1, and the names of what moved.

    So mods that limit or blur a trained model's update do the same to a gradient. The difference of float64
    arrays gives a gradient of float32 back exactly.
    """
    for name, array in gradient.items():
        if name not in model or array.shape != model[name].shape:
            wanted = f"{list(model[name].shape)}" if name in model else f"one of {', '.join(model)}"
            raise UserError(
                f"gradient must return arrays like the model's, got {name} {list(array.shape)}, and the "
                f"model has {short(wanted, 200)}."
            )
    moved = {n: model[n].astype(np.float64) - array for n, array in gradient.items()}
    return {**model, **moved}, list(gradient)


def _whole_labels(told: Any) -> np.ndarray:
    """Return labels as int64 ``[n]``."""
    found = _as_array(told, "labels")
    rule = f"labels must be whole numbers in [0, {_MOST_LABEL:g}), one for each training example"
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise UserError(f"{rule}, got an array of shape {list(found.shape)}.")
    if not found.size:
        return np.zeros(0, np.int64)
    if found.dtype.kind not in "bui":
        every = found.tolist()
        other = next((entry for entry in every if type(entry) is not int), every[0])
        raise UserError(f"{rule}, got {short(repr(other), 60)}.")
    if int(found.min()) < 0 or int(found.max()) >= _MOST_LABEL:
        raise UserError(f"{rule}, got {found.min() if int(found.min()) < 0 else found.max()}.")
    return found.astype(np.int64)


def _loss_of_each(told: Any) -> np.ndarray:
    """Return losses as float64 ``[n]``."""
    found = _as_array(told, "losses")
    rule = "losses must return the loss of each training example"
    if not found.ndim:
        raise UserError(f"{rule}, got one number.")
    if found.ndim != 1 or (found.size and found.dtype.kind not in "buif"):
        raise UserError(f"{rule}, got {found.dtype} {list(found.shape)}.")
    return found.astype(np.float64)


def _as_array(told: Any, name: str) -> np.ndarray:
    """Return a list, an array, or a tensor of any framework as an array."""
    try:
        if isinstance(told, list | tuple):
            return np.asarray([entry.detach().cpu() if hasattr(entry, "detach") else entry for entry in told])
        return np.asarray(told.detach().cpu() if hasattr(told, "detach") else told)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name} must return numbers, got {type(told).__name__} ({short(error, 100)})."
        ) from None


def _mean(numbers: np.ndarray) -> float:
    return float(numbers.mean()) if numbers.size else math.nan
