"""Building blocks of the papers' networks: checked shapes, convolutions and dense layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from flsel.errors import UserError


def centre_crop(shape: tuple[int, ...], side: int) -> nn.Module:
    """Return what cuts the central square of ``side`` pixels out of images: padding below zero."""
    (left, right), (top, bottom) = (((n - side) // 2, (n - side + 1) // 2) for n in (shape[2], shape[1]))
    return nn.ZeroPad2d((-left, -right, -top, -bottom))


def known_shape(
    input_shape: tuple[int, ...] | None, num_classes: int | None, *, image: bool = False
) -> tuple[tuple[int, ...], int]:
    """Return the shape of an example and the number of classes, once they are known to fit."""
    if input_shape is None:
        raise UserError(
            "input_shape must be the shape of an example of one tensor, and the data's have others: name one "
            "with data.columns.inputs, or name a model of your own."
        )
    if num_classes is None:
        raise UserError(
            "num_classes must be the number of outputs, which data without class labels do not tell: set "
            "model.num_classes, and loss."
        )
    if num_classes < 1:
        raise UserError(f"num_classes must be at least 1 (a run takes it from the data), got {num_classes}.")
    if not input_shape or min(input_shape) < 1:
        raise UserError(
            f"input_shape must be the shape of one example (a run takes it from the data), got {input_shape}."
        )
    if image and len(input_shape) != 3:
        raise UserError(f"input_shape must be (channels, height, width), got {tuple(input_shape)}.")
    return tuple(input_shape), num_classes


def share(name: str, value: float) -> float:
    """Return a share of dropped values, once it is known to be in [0, 1)."""
    if not 0 <= value < 1:
        raise UserError(f"{name} must be in [0, 1), got {value}.")
    return value


def conv(
    channels: int, filters: int, kernel: int, *, padding: int = 0, pool: int = 1, dropout: float = 0.0
) -> list[nn.Module]:
    """Return a convolution, max-pooling, ReLU and dropout (pooling first: same numbers, less to rectify)."""
    pooling = [nn.MaxPool2d(pool)] if pool > 1 else []
    dropping = [nn.Dropout(dropout)] if dropout > 0 else []
    return [nn.Conv2d(channels, filters, kernel, padding=padding), *pooling, nn.ReLU(), *dropping]


def dense(inputs: int, hidden: Sequence[int], outputs: int, *, dropout: float = 0.0) -> nn.Sequential:
    """Return fully connected layers on the flattened input, with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers.append(nn.Linear(inputs, width))
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        layers.append(nn.ReLU())
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def image_net(
    features: nn.Sequential,
    input_shape: tuple[int, ...],
    hidden: Sequence[int],
    num_classes: int,
    *,
    dropout: float = 0.0,
) -> OrderedDict[str, nn.Module]:
    """Return ``features`` followed by fully connected layers of the width that they need."""
    try:
        with torch.no_grad():
            width: int = features.eval()(torch.zeros(1, *input_shape)).numel()
    except RuntimeError as error:
        raise UserError(
            f"input_shape {input_shape} is too small for this network's convolutions and poolings."
        ) from error
    classifier = dense(width, hidden, num_classes, dropout=dropout)
    return OrderedDict(features=features.train(), classifier=classifier)
