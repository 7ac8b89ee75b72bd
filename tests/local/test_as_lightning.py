"""Modules as people write them for Lightning: a client ends where a plain ``Trainer.fit`` ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from runs import built, settings, trained
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from flsel.config.groups import LocalConfig
from flsel.errors import UserError
from flsel.local.dropout import visit_key
from flsel.rng import repeatable, seed_layers

EPOCHS = 2


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, batch: Any) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return optim.SGD(self.parameters(), lr=0.1)


class ReadsBatchIdx(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (1 + batch_idx)


class CatchesErrors(Net):
    """Would take a number of its own where it is refused the trainer's."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        try:
            epoch = self.current_epoch
        except Exception:
            epoch = 7
        return self.loss(batch) * (1 + epoch)


class Asleep(Net):
    """Has layers in eval mode, which a Trainer leaves so."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.body(x))


class ReadsLastGradient(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        grad = self.net[0].weight.grad
        return self.loss(batch) * (1.0 if grad is None else 1.0 + float(grad.norm()))


class BackwardInside(Net):
    """Makes gradients that a Trainer drops before its own backward pass."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.loss(batch).backward()
        return self.loss(batch)


class Twice(optim.SGD):
    """Computes the gradients again, at another place, if it is given a closure (as SAM)."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        return loss if closure is None else super().step(closure)


class StepsByClosure(Net):
    def configure_optimizers(self) -> Any:
        return Twice(self.parameters(), lr=0.1)


class NoClosure(optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step()


class IgnoresClosure(Net):
    def configure_optimizers(self) -> Any:
        return NoClosure(self.parameters(), lr=0.1)


class MakesLayers(Net):
    def setup(self, stage: str) -> None:
        self.net[2] = nn.Linear(6, 4)


class Grows(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(0, 4))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        z = self(batch[0])
        self.queue = torch.cat([self.queue, z.detach()])
        return cross_entropy(z - self.queue.mean(0), batch[1])


class DropsLate(Net):
    """Runs its dropout, but drops from the second step on only."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.steps = nn.Dropout(0.5), 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.drop.train(self.steps > 0)
        self.steps += 1
        return cross_entropy(self.net(self.drop(batch[0])), batch[1])


class Batches(LightningDataModule):
    def __init__(self, epochs: list[Any]) -> None:
        super().__init__()
        self.epochs = epochs

    def train_dataloader(self) -> Any:
        return DataLoader(self.epochs[self.trainer.current_epoch], batch_size=None)


def made(folder: Any, model: Callable[[], Net], backend: str = "auto") -> Any:
    local = LocalConfig(batch_size=5, epochs=EPOCHS, optimizer=None, backend=backend)
    return built(settings(folder, model=model, local=local))


def end_of(run: Any, client: int) -> Any:
    start = {name: value.detach().clone()[None] for name, value in run.program.state().items()}
    return {n: value[0] for n, value in trained(run.server.federation, start, [client], 0).items()}


@pytest.mark.filterwarnings("ignore")  # what Lightning advises about loaders
@pytest.mark.parametrize(
    "model", [ReadsBatchIdx, CatchesErrors, Asleep, ReadsLastGradient, BackwardInside, StepsByClosure]
)
def test_a_client_ends_where_a_plain_trainer_ends(model: Any, tmp_path: Any) -> None:
    run, client = made(tmp_path, model), 1
    program, plain = run.program, model()
    plain.load_state_dict(program.model.state_dict())
    given = [program.as_given(program.batch(row[row >= 0])) for row in program.batches(client, 0)]
    length = len(given) // EPOCHS
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=EPOCHS, reload_dataloaders_every_n_epochs=1,
    )  # fmt: skip
    with repeatable(0):
        seed_layers(program.device, visit_key(program.seed, 0, client))
        trainer.fit(plain, datamodule=Batches([given[:length], given[length:]]))
    ends = end_of(run, client)
    assert length > 1
    for name, value in plain.state_dict().items():
        if name in ends:
            torch.testing.assert_close(ends[name], value, rtol=1e-4, atol=1e-6)


def test_a_dropout_that_begins_late_is_the_same_with_a_trainer(tmp_path: Any) -> None:
    one, other = (end_of(made(tmp_path, DropsLate, backend), 1) for backend in ("sequential", "lightning"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (IgnoresClosure, "the step of NoClosure must call the closure that it is given"),
        (MakesLayers, r"MakesLayers makes parameters such as net\.2\.weight"),
        (Grows, r"must not change the shape of a buffer in training, and queue went from \[0, 4\]"),
    ],
)
def test_what_would_be_lost_is_refused(model: Any, sentence: str, tmp_path: Any) -> None:
    with pytest.raises(UserError, match=sentence):
        end_of(made(tmp_path, model), 1)
