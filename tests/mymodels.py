"""Classes as a user of flsel writes them, good and bad, named by import path in the tests."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flsel.partition import Partition
from flsel.selector import Plan, Selector, Updates, View

INPUTS, CLASSES = 8, 4


class Net(nn.Sequential):
    def __init__(self, width: int, num_classes: int = CLASSES) -> None:
        super().__init__(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, num_classes))


class Logs(LightningModule):
    """A LightningModule as in Lightning's tutorials: it logs its loss in every step."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        self.layer = nn.Linear(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class NoStep(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, CLASSES)


class NoParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class WrongOutput(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(INPUTS, CLASSES - 1))


class OneLogit(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(INPUTS, 1))


class WrongInput(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(INPUTS + 1, CLASSES))


class Fails(nn.Module):
    def __init__(self) -> None:
        raise KeyError("no\nsuch thing")


class Activated(nn.Sequential):
    """Its defaults are a class, which YAML holds as a path, and a lambda, which it cannot hold."""

    def __init__(self, act=nn.ReLU, scale=lambda x: x) -> None:
        super().__init__(nn.Linear(INPUTS, CLASSES), act())


def make_net(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    return nn.Linear(input_shape[0], num_classes)


class First(Selector):
    def __init__(self, power: float) -> None:
        self.power = power

    def select(self, view: View) -> Plan:
        return Plan.star(view.pool[: view.clients_per_round])


class NoSelect(Selector):
    pass


class Divides(Selector):
    def __init__(self, by: float = 1.0) -> None:
        self.share = 1 / by

    def select(self, view: View) -> Plan:
        return Plan.star(view.pool[: view.clients_per_round])


class TakesAll(Selector):
    def select(self, view: View) -> Plan:
        return Plan.star(range(len(view.available)))


class TakesStrangers(Selector):
    def select(self, view: View) -> Plan:
        return Plan.star([len(view.available)])


class NoPlan(Selector):
    def select(self, view: View) -> Plan:
        return [0]  # type: ignore[return-value]


class Peeks(Selector):
    def select(self, view: View) -> Plan:
        return Plan.star(view.labels[:, 0].argsort()[: view.clients_per_round].tolist())


class NoWeights(Selector):
    def select(self, view: View) -> Plan:
        return Plan.star(view.pool[: view.clients_per_round])

    def weigh(self, view: View, updates: Updates) -> Tensor:
        return 1.0  # type: ignore[return-value]


class LeavesSomeOut(Partition):
    def split(self, labels, clients, rng):
        return [labels.nonzero()[0], *[labels[:0].nonzero()[0]] * (clients - 1)]


def one_outlier() -> TensorDataset:
    """Client 0's inputs are so large that a step overflows; the others' are ordinary."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, INPUTS, generator=generator)
    dataset = TensorDataset(x, torch.arange(60) % CLASSES)
    dataset.owner = torch.arange(60) // 15  # type: ignore[attr-defined]
    x[dataset.owner == 0] *= 1e30  # type: ignore[attr-defined]
    return dataset
