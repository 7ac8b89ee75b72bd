"""Values that leave torch: NumPy, lists, numbers."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import CLASSES, part

leaves = part("values that leave torch")
inputs = part("values that leave torch", "input")
loss = part("values that leave torch", "loss")


@loss
def class_weights_by_numpy(module: Any, x: Tensor, y: Tensor) -> Tensor:
    counts = np.bincount(y, minlength=CLASSES)
    weights = torch.tensor(1.0 / (1.0 + counts), dtype=x.dtype)
    return F.cross_entropy(module(x), y, weight=weights)


@loss
def class_weights_by_list(module: Any, x: Tensor, y: Tensor) -> Tensor:
    found = y.tolist()
    weights = torch.tensor([1.0 / (1 + found.count(c)) for c in range(CLASSES)], dtype=x.dtype)
    return F.cross_entropy(module(x), y, weight=weights)


@loss
def class_weights_by_item(module: Any, x: Tensor, y: Tensor) -> Tensor:
    weights = [1.0 / (1 + int((y == c).sum().item())) for c in range(CLASSES)]
    return F.cross_entropy(module(x), y, weight=torch.tensor(weights, dtype=x.dtype))


@loss
def class_weights_by_torch(module: Any, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.bincount(y, minlength=CLASSES)
    return F.cross_entropy(module(x), y, weight=1.0 / (1.0 + counts.to(x.dtype)))


@loss
def class_weights_by_unique(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y) * len(torch.unique(y))


@loss
def loop_over_labels(module: Any, x: Tensor, y: Tensor) -> Tensor:
    scores = module(x)
    return torch.stack([-scores[n].log_softmax(0)[label] for n, label in enumerate(y)]).mean()


@loss
def loop_over_numbers(module: Any, x: Tensor, y: Tensor) -> Tensor:
    scores = module(x)
    return sum(-scores[n].log_softmax(0)[int(label)] for n, label in enumerate(y)) / len(y)


@loss
def only_classes_there(module: Any, x: Tensor, y: Tensor) -> Tensor:
    scores, there = module(x), sorted(set(y.tolist()))
    return sum(F.cross_entropy(scores[y == c], y[y == c]) for c in there) / len(there)


@leaves
class ScaleByNumPy(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * float(np.abs(h.detach().numpy()).max())


@leaves
class ScaleByArray(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * float(np.asarray(h.detach().cpu()).std() + 1.0)


@leaves
class ScaleByItem(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h / (1.0 + h.detach().norm().item())


@leaves
class ScaleByFloat(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * math.sqrt(1.0 + float(h.detach().square().mean()))


@leaves
class Branch(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h if h.sum() > 0 else 2.0 * h


@inputs
class InputByNumPy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 + float(np.abs(x.numpy()).max()))


@inputs
class InputFromNumPy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(np.sort(x.numpy(), axis=1))


@inputs
class InputByList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 + abs(x.tolist()[0][0]))


@inputs
class InputByBytes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.001 * (sum(bytes(x[0].contiguous().numpy().tobytes())) % 7)


@inputs
class InputCopied(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return copy.deepcopy(x) * 2.0


@inputs
class InputByDLPack(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_dlpack(x.contiguous()) * 2.0 + float(np.from_dlpack(x.contiguous()).max())


@inputs
class InputPrinted(nn.Module):
    """Takes the digits of a text."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.01 * len(str(x.tolist())) % 3


@inputs
class InputNewTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor(x.tolist(), dtype=x.dtype) * 0.5


@inputs
class MaskByNonzero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        for row, column in torch.nonzero(x > 1.0).tolist():
            x[row, column] = 1.0
        return x


@inputs
class SortsOnce(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, x.mean(0).argsort()]
