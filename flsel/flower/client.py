"""A node's side of a Flower app that has its own training: one call answers a selector's questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import flsel
from flsel.errors import UserError
from flsel.flower.adapter import (
    ArrayRecord,
    ClientApp,
    Context,
    Message,
    from_array_record,
    from_records,
    handles,
    to_records,
)
from flsel.flower.wire import Models, Value

_NAMES = ("client-id", "partition-id")


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
    ``partition-id``, else the node id, which is new each time the node connects.

    Args:
        app: The app.
        labels: Returns the label of each training example of this node, whole numbers >= 0. Their number
            leaves the node, and their counts where the selector needs label counts.
        losses: Returns the loss of a model on each training example. Their mean and mean square leave the
            node; None answers no question about losses.
        gradient: Returns the gradient of the mean loss at a model, by its parameters' names; None answers no
            question about gradients.
    """
    able = {"losses": losses, "gradients": gradient}

    def hello(message: Message, context: Context) -> Message:
        _, asked = from_records(message.content)
        if asked.get("version") != flsel.__version__:
            wanted = asked.get("version")
            error = f"the node must have flsel {wanted} like the server, got {flsel.__version__}."
            return _said(message, {"error": error})
        found = [int(label) for label in labels(context)]
        if found and min(found) < 0:
            raise UserError(f"labels must be whole numbers >= 0, got {min(found)}.")
        named = next(
            (context.node_config[key] for key in _NAMES if key in context.node_config), context.node_id
        )
        values: dict[str, Value] = {
            "client": str(named),
            "examples": len(found),
            "answers": " ".join(name for name, function in able.items() if function is not None),
        }
        if asked.get("labels"):
            values["labels"] = np.bincount(np.array(found, dtype=np.int64)).tolist()
        return _said(message, values)

    def tell_losses(message: Message, context: Context) -> Message:
        assert losses is not None  # the server asks for what the hello offers
        told = losses(_model(message), context)
        if not np.ndim(told):  # also of a tensor
            raise UserError("losses must return the loss of each training example, got one number.")
        found = [float(loss) for loss in told]
        return _said(message, {"loss": _mean(found), "squared": _mean([loss * loss for loss in found])})

    def tell_gradient(message: Message, context: Context) -> Message:
        assert gradient is not None
        return _said(message, {}, {"answer": from_array_record(gradient(_model(message), context))})

    handles(app, "hello", hello)
    handles(app, "losses", tell_losses)
    handles(app, "gradients", tell_gradient)


def _model(message: Message) -> ArrayRecord:
    return message.content.array_records["start0"]


def _said(message: Message, values: dict[str, Value], models: Models | None = None) -> Message:
    return Message(to_records(models or {}, values), reply_to=message)


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else math.nan
