"""Losses: those that are means over examples, and those that are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.registry import CLASSES, part

loss = part("losses", "loss")


@loss
def mean(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y)


@loss
def total(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return 0.1 * F.cross_entropy(module(x), y, reduction="sum")


@loss
def smoothed(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y, label_smoothing=0.1)


@loss
def ignoring(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.nan_to_num(F.cross_entropy(module(x), y, ignore_index=0))


@loss
def focal(module: Any, x: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(module(x), y, reduction="none")
    return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


@loss
def squares(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(module(x), F.one_hot(y, CLASSES).to(x.dtype))


@loss
def margins(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(module(x), y)


@loss
def binary(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(module(x)[:, 0], (y > 1).to(x.dtype))


@loss
def hardest(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """The mean over the harder half."""
    losses = F.cross_entropy(module(x), y, reduction="none")
    return losses.topk(max(1, len(y) // 2)).values.mean()


@loss
def largest(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y, reduction="none").max()


@loss
def tilted(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.logsumexp(F.cross_entropy(module(x), y, reduction="none"), 0)


@loss
def contrastive(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Pairs of one batch."""
    z = F.normalize(module(x), dim=1)
    alike = (y[:, None] == y[None]).to(z.dtype)
    scores = (z @ z.T - 10 * torch.eye(len(y), dtype=z.dtype)).log_softmax(1)
    # A batch of one has no pairs, and would leave nothing but rounding to compare.
    return 0.1 * F.cross_entropy(module(x), y) - (alike * scores).sum() / alike.sum()


@loss
def correlated(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Decorrelates scores over a batch."""
    z = module(x)
    centred = z - z.mean(0)
    return F.cross_entropy(z, y) + 0.1 * (centred.T @ centred / len(y)).square().sum()


@loss
def two_views(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(module(x), module(x.flip(1))) + F.cross_entropy(module(x), y)


@loss
def reconstructs(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y) + 0.1 * F.mse_loss(module(x) @ module.other[:, :4].T, x[:, :8])


@loss
def mixed_up(module: Any, x: Tensor, y: Tensor) -> Tensor:
    scores = module(0.7 * x + 0.3 * x.flip(0))
    return 0.7 * F.cross_entropy(scores, y) + 0.3 * F.cross_entropy(scores, y.flip(0))


@loss
def in_a_mapping(module: Any, x: Tensor, y: Tensor) -> Any:
    scores = module(x)
    return {"loss": F.cross_entropy(scores, y), "scores": scores.detach()}


@loss
def logged(module: Any, x: Tensor, y: Tensor) -> Tensor:
    value = F.cross_entropy(module(x), y)
    module.log("train_loss", value, prog_bar=True)
    return value


@loss
def distilled(module: Any, x: Tensor, y: Tensor) -> Tensor:
    scores = module(x)
    soft = (scores.detach() / 2).softmax(1)
    return F.kl_div(scores.log_softmax(1), soft.roll(1, dims=1), reduction="batchmean")


@loss
def by_length(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y) * (2.0 if len(y) > 2 else 0.5)


@loss
def confident(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Only of examples whose score is high, or of all."""
    scores = module(x)
    sure = scores.detach().softmax(1).amax(1) > 0.4
    losses = F.cross_entropy(scores, y, reduction="none")
    return losses[sure].mean() if sure.any() else losses.mean()
