"""The algorithms of the FedDyn, SCAFFOLD and MOON papers, written out by hand on a run's own batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flsel.local.schedule import BatchSpec, batch_table
from flsel.runner.build import Built

LR, STEPS, BATCH = 0.1, 4, 5
Model = list[Tensor]


class Net(nn.Module):
    """Two layers, whose forward pass the reference loops below write out."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        assert num_classes is not None
        assert input_shape is not None
        self.hidden = nn.Linear(input_shape[0], 5)
        self.out = nn.Linear(5, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def features(model: Model, x: Tensor) -> Tensor:
    return torch.tanh(x @ model[0].T + model[1])


def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
    logits = features(model, x) @ model[2].T + model[3]
    return (torch.logsumexp(logits, dim=1) - logits[torch.arange(len(y)), y]).mean()


def batches(run: Built, round: int, client: int) -> list[tuple[Tensor, Tensor]]:
    data = run.data.population
    shard = data.shards[client].numpy()
    rows = batch_table(BatchSpec(BATCH, steps=STEPS), shard, seed=0, round=round, client=client)
    return [(data.x[row[row >= 0]].double(), data.y[row[row >= 0]]) for row in rows]


def gradient(model: Model, value: Any) -> tuple[Model, Model]:
    leaves = [p.detach().clone().requires_grad_() for p in model]
    return leaves, list(torch.autograd.grad(value(leaves), leaves))


def descend(model: Model, gradients: Model) -> Model:
    return [p.detach() - LR * g for p, g in zip(model, gradients, strict=True)]


def mean(models: list[Model]) -> Model:
    return [torch.stack(parts).mean(dim=0) for parts in zip(*models, strict=True)]


def zeros(model: Model) -> Model:
    return [torch.zeros_like(p) for p in model]


def combine(*terms: tuple[float, Model]) -> Model:
    return [
        sum(factor * part for (factor, _), part in zip(terms, parts, strict=True))
        for parts in zip(*(model for _, model in terms), strict=True)
    ]


class PaperFedDyn:
    """Algorithm 1 of Acar et al.: gradients g_k = ∇L_k(θ_k) and the server's h, as printed."""

    def __init__(self, model: Model, clients: int, alpha: float) -> None:
        self.alpha, self.clients = alpha, clients
        self.g = [zeros(model) for _ in range(clients)]
        self.h = zeros(model)

    def round(self, run: Built, round: int, glb: Model, cohort: list[int]) -> Model:
        ends = []
        for k in cohort:
            model = glb
            for x, y in batches(run, round, k):

                def risk(m: Model, k: int = k, x: Tensor = x, y: Tensor = y) -> Tensor:
                    linear = sum((g * p).sum() for g, p in zip(self.g[k], m, strict=True))
                    square = sum(((p - s) ** 2).sum() for p, s in zip(m, glb, strict=True))
                    return loss(m, x, y) - linear + self.alpha / 2 * square

                model = descend(*gradient(model, risk))
            self.g[k] = combine((1, self.g[k]), (-self.alpha, combine((1, model), (-1, glb))))
            ends.append(model)
        moved = [combine((1, end), (-1, glb)) for end in ends]
        total = [torch.stack(parts).sum(dim=0) for parts in zip(*moved, strict=True)]
        self.h = combine((1, self.h), (-self.alpha / self.clients, total))
        return combine((1, mean(ends)), (-1 / self.alpha, self.h))


class PaperSCAFFOLD:
    """Algorithm 1 of Karimireddy et al., option II, as printed; global step size 1."""

    def __init__(self, model: Model, clients: int) -> None:
        self.clients = clients
        self.c = zeros(model)
        self.c_i = [zeros(model) for _ in range(clients)]

    def round(self, run: Built, round: int, x: Model, cohort: list[int]) -> Model:
        delta_y, delta_c = [], []
        for i in cohort:
            y = x
            for inputs, labels in batches(run, round, i):
                _, g = gradient(y, lambda m, a=inputs, b=labels: loss(m, a, b))
                y = descend(y, combine((1, g), (-1, self.c_i[i]), (1, self.c)))
            drift = combine((1 / (STEPS * LR), x), (-1 / (STEPS * LR), y))
            c_plus = combine((1, self.c_i[i]), (-1, self.c), (1, drift))
            delta_y.append(combine((1, y), (-1, x)))
            delta_c.append(combine((1, c_plus), (-1, self.c_i[i])))
            self.c_i[i] = c_plus
        self.c = combine((1, self.c), (len(cohort) / self.clients, mean(delta_c)))
        return combine((1, x), (1, mean(delta_y)))


class PaperMOON:
    """Algorithm 1 of Li et al., with no contrast at a client's first visit."""

    def __init__(self, model: Model, clients: int, mu: float, tau: float) -> None:
        self.mu, self.tau = mu, tau
        self.previous: list[Model | None] = [None] * clients

    def round(self, run: Built, round: int, glb: Model, cohort: list[int]) -> Model:
        ends = []
        for k in cohort:
            model = glb
            for x, y in batches(run, round, k):
                model = descend(*gradient(model, lambda m, k=k, x=x, y=y: self.risk(m, glb, k, x, y)))
            self.previous[k] = model
            ends.append(model)
        return mean(ends)

    def risk(self, model: Model, glb: Model, k: int, x: Tensor, y: Tensor) -> Tensor:
        previous = self.previous[k]
        if previous is None:
            return loss(model, x, y)
        z = features(model, x)

        def similarity(other: Tensor) -> Tensor:
            return (z * other).sum(dim=1) / (z.norm(dim=1) * other.norm(dim=1)) / self.tau

        near, far = similarity(features(glb, x)).exp(), similarity(features(previous, x)).exp()
        return loss(model, x, y) - self.mu * torch.log(near / (near + far)).mean()


def one_point(examples: int = 40) -> tuple[TensorDataset, TensorDataset]:
    """The same point over and over: all clients are alike."""
    x = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64).expand(examples, -1).clone()
    y = torch.arange(examples) % x.shape[1]
    return TensorDataset(x, y), TensorDataset(x[:9], y[:9])
