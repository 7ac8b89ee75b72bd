"""Selectors, models and the like that raise where flsel calls them, named by import path in the tests."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule
from mymodels import CLASSES, INPUTS, Logs
from torch import Tensor, nn

from flsel.availability import Availability
from flsel.objectives import Objective
from flsel.partition import Partition
from flsel.selector import Need, Plan, Selector


class Uniform(Selector):
    def select(self, view):
        return Plan.star(view.pool[: view.clients_per_round])


class Resets(Uniform):
    def reset(self, sizes, num_classes):
        raise KeyError("reset")


class Returns(Uniform):
    def __init__(self):
        return 3


class Selects(Uniform):
    def select(self, view):
        return self._score(view.clients_per_round - 2)

    def _score(self, by):
        return 1 / by


class Asks(Uniform):
    def select(self, view):
        return Plan.star(view.pool[view.clients_per_round, "all"])


class Weighs(Uniform):
    def weigh(self, view, updates):
        return updates.sizes @ torch.zeros(7)


class Observes(Uniform):
    def observe(self, view, updates, weights):
        if view.round == 2:
            raise SystemExit("observe")


class Hides(Uniform):
    """Raises where Python looks at it on behalf of flsel."""

    def __getattribute__(self, name):
        if name == "__dict__":
            raise LookupError("hidden")
        return super().__getattribute__(name)


class HidesLater(Uniform):
    def __getattribute__(self, name):
        if name == "__dict__" and object.__getattribute__(self, "budget_"):
            raise LookupError("hidden")
        return super().__getattribute__(name)

    budget_ = 0

    def select(self, view):
        type(self).budget_ = view.clients_per_round
        return super().select(view)


class NoRoutine(Uniform):
    def __get__(self, instance, owner=None):
        raise LookupError("no routine")


class Halves(Uniform):
    def select(self, view):
        return Plan.star([0.5, 1.5])


class Masks(Uniform):
    def select(self, view):
        return Plan.star(view.available[: view.clients_per_round])


class Flat(Uniform):
    def select(self, view):
        return Plan(torch.tensor([0, 1]))


class AsksStrangers(Uniform):
    needs = Need.LOSSES

    def select(self, view):
        view.losses([0, -1])
        return super().select(view)


class Needy(Uniform):
    needs = "LABELS"


class Imagines(Uniform):
    def weigh(self, view, updates):
        return torch.tensor([1j, 1])


class Remembers(Uniform):
    def reset(self, sizes, num_classes):
        self.values_ = {"scores": np.zeros(len(sizes))}


class Queues(Uniform):
    def reset(self, sizes, num_classes):
        self.queue_ = [deque([1])]


class Deals(Partition):
    def split(self, labels, clients, rng):
        return [][clients]


class Comes(Availability):
    def formula(self, counts, rng):
        raise RuntimeError("formula")


class ComesNever(Availability):
    def formula(self, counts, rng):
        return 0.5


class ComesLate(Availability):
    def formula(self, counts, rng):
        def schedule(rounds):
            return np.ones((1, len(counts))) / (2 if rounds[0] < 2 else "none")

        return schedule


class Corrects(Objective):
    def correct(self, grads, params, starts, clients):
        raise NotImplementedError


class Aggregates(Objective):
    def aggregate(self, delta):
        return delta["nothing"]


class AggregatesNothing(Objective):
    def aggregate(self, delta):
        return {name: value[:1] for name, value in delta.items()}


class NamesModels(Objective):
    def models(self, starts, clients):
        return "models"


class HasNoContrast(Objective):
    def models(self, starts, clients):
        return (starts,)


class Starts(Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        raise RecursionError("callback")


class Steps(Logs):
    def training_step(self, batch, batch_idx):
        return self.nothing


class Configures(Logs):
    def configure_optimizers(self):
        raise OSError("configure")


class Strays(Logs):
    def configure_optimizers(self):
        return torch.optim.SGD([*self.parameters(), nn.Parameter(torch.zeros(1))])


class Forwards(nn.Linear):
    def __init__(self) -> None:
        super().__init__(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) == 0, "no examples please"
        return super().forward(x)


class Normed(nn.Sequential):
    """BatchNorm cannot train on a batch of one."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(INPUTS, CLASSES), nn.BatchNorm1d(CLASSES))


class Recurrent(nn.Module):
    """A network that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Centres(nn.Linear):
    def __init__(self) -> None:
        super().__init__(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5))


class Whole(nn.Linear):
    def __init__(self) -> None:
        super().__init__(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).long()


class Complex(nn.Module):
    """Complex outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(INPUTS, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).to(torch.complex64)


class Detached(Logs):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).detach()


class WholeLoss(Logs):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).round().long()


class Odd(LightningModule):
    """What is allowed though unusual: prints, unused, shared, strided, frozen and whole-numbered tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
        self.lazy = nn.LazyLinear(6)
        self.layer = nn.Linear(6, CLASSES)
        self.layer.weight = nn.Parameter(torch.randn(6, CLASSES).t())
        self.unused = nn.Linear(2, 2)
        self.same = self.layer.bias

    def forward(self, x):
        return self.layer(self.lazy(x))

    def training_step(self, batch, batch_idx):
        print("a step")
        return {"loss": nn.functional.cross_entropy(self(batch[0]), batch[1]), "more": 3}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def builds(num_classes, input_shape, width=4):
    """A builder without annotations."""
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Linear(width, num_classes))


class Phases(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(INPUTS, CLASSES, dtype=torch.complex64)

    def forward(self, x):
        return self.net(x.to(torch.complex64)).abs()


class Unmade(nn.Linear):
    def __init__(self):
        super().__init__(INPUTS, CLASSES, device="meta")


made = nn.Linear(INPUTS, CLASSES)


class Negative:
    def __len__(self):
        return -1

    def __getitem__(self, index):
        return torch.zeros(INPUTS), 0


def negative():
    return Negative(), None


def sparse():
    return [(torch.eye(INPUTS)[n % INPUTS].to_sparse(), n % CLASSES) for n in range(60)], None


class Grows(nn.Linear):
    """Makes a layer when it is first called."""

    def __init__(self) -> None:
        super().__init__(INPUTS, CLASSES)

    def forward(self, input: Tensor) -> Tensor:
        self.more = nn.Linear(INPUTS, CLASSES)
        return super().forward(input) + self.more(input)


class Freezes(nn.Linear):
    def __init__(self) -> None:
        super().__init__(INPUTS, CLASSES)

    def forward(self, input: Tensor) -> Tensor:
        self.bias.requires_grad_(False)
        return super().forward(input)


class DealsFew(Partition):
    def split(self, labels, clients, rng):
        return np.array_split(np.arange(len(labels)), clients - 1)


class DealsOwners(Partition):
    def split(self, labels, clients, rng):
        return np.arange(len(labels)) % clients


class ComesTwice(Availability):
    def formula(self, counts, rng):
        return lambda rounds: np.full((1, len(counts)), 2.0)


class ComesShort(Availability):
    def formula(self, counts, rng):
        return lambda rounds: np.ones(1)


class CorrectsCopies(Objective):
    def correct(self, grads, params, starts, clients):
        return {name: grad * 2 for name, grad in grads.items()}


class CorrectsAway(Objective):
    def correct(self, grads, params, starts, clients):
        grads.clear()


class ObservesMore(Objective):
    def observe(self, updates):
        for start in updates.starts.values():
            start.mul_(100)


class StartsWithLess(Callback):
    def on_train_epoch_start(self):
        pass


class StepsWithMore(Steps):
    def training_step(self, batch, batch_idx, more):
        raise AssertionError(more)


class ComesUncalled(Availability):
    def formula(self, counts, rng):
        return lambda: 1


class NeverSteps(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
