"""Clients that Lightning's own Trainer trains: as the other trainers do, and what only it can train."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from runs import built, differ_when_resumed, settings
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

from flsel.config.groups import LocalConfig
from flsel.data.data_config import DataConfig
from flsel.engine.server import Server
from flsel.errors import UserError
from flsel.objectives import MOON, SCAFFOLD, FedDyn, FedProx
from flsel.partition import IID

FEATURES, CLASSES = 8, 4
SGD = partial(optim.SGD, lr=0.1, momentum=0.9)


class Noisy(LightningModule):
    """Draws dropout masks and noise in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x + 0.1 * torch.randn_like(x)), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Linear(12, CLASSES))


def server(folder: Path, model: Any, backend: str = "auto", rounds: int = 2, **changes: Any) -> Server:
    local = LocalConfig(batch_size=5, epochs=2, backend=backend, **changes.pop("local", {}))
    made = built(settings(folder, model=model, local=local, **changes)).server
    for _ in range(rounds):
        made.step()
    return made


def same(one: Server, other: Server) -> bool:
    return all(torch.equal(one.params[name], other.params[name]) for name in one.params)


@pytest.mark.parametrize("objective", [None, FedProx(mu=0.1), SCAFFOLD(), FedDyn(alpha=0.1), MOON(mu=1.0)])
@pytest.mark.parametrize("last", ["short", "wrap"])
def test_the_same_bits_as_sequential(objective, last, tmp_path):
    given: dict[str, Any] = {} if objective is None else {"objective": objective}
    one, other = (
        server(tmp_path, Noisy, backend, local={"last_batch": last}, **given)
        for backend in ("sequential", "lightning")
    )
    assert same(one, other)
    cohort = torch.empty(0, dtype=torch.int64)
    metrics = [made.evaluate(cohort)["test/loss"] for made in (one, other)]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("batches", [{"epochs": None, "steps": 7}, {"epochs": 3}])
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_network_has_the_same_bits_as_with_sequential(batches, precision, tmp_path):
    schedule = partial(optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    local = {"optimizer": SGD, "lr_schedule": schedule}
    made = []
    for backend in ("sequential", "lightning"):
        config = LocalConfig(**{"batch_size": 5, "epochs": 2, "backend": backend, **local, **batches})
        made.append(built(settings(tmp_path, model=network, local=config, precision=precision)).server)
        for _ in range(2):
            made[-1].step()
    assert same(*made)


class EpochStart(Noisy):
    def on_train_epoch_start(self) -> None:
        self.epochs = self.current_epoch


class Manual(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers, loss = self.optimizers(), self.loss(batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        params = [*self.parameters()]
        return SGD(params[:2]), SGD(params[2:])


class Scheduled(Noisy):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        still = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": still, "interval": "step"}}


class Asks(Noisy):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert self.trainer.max_epochs == 2
        return self.loss(batch) * (1.0 if self.global_step >= 0 else 0.0)


class Alone(Noisy):
    def on_train_start(self) -> None:
        self.started = True

    def training_step(self, batch: Any) -> Tensor:  # type: ignore[override]
        return self.loss(batch)


@pytest.mark.parametrize("model", [EpochStart, Manual, Scheduled, Asks, Alone])
def test_what_only_a_trainer_can_train_is_trained_by_one(model, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "flsel"):
        one, other = server(tmp_path, Noisy, "sequential"), server(tmp_path, model)
    assert "local.backend auto: lightning, since " in caplog.text
    assert same(one, other)
    with pytest.raises(
        UserError, match=r"which needs Lightning's own Trainer: set local.backend to lightning"
    ):
        server(tmp_path, model, "sequential")


@pytest.mark.parametrize("model", [Manual, Scheduled])
def test_objectives_correct_the_gradients_of_every_optimizer(model, tmp_path):
    one = server(tmp_path, Noisy, "sequential", objective=FedProx(mu=0.5))
    assert same(one, server(tmp_path, model, objective=FedProx(mu=0.5)))


class Halves(Noisy):
    """Its schedule halves the rate after each of a client's epochs."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


class HalvesByHook(Noisy):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch:
            self.trainer.optimizers[0].param_groups[0]["lr"] *= 0.5


def test_a_schedule_over_epochs_begins_anew_with_each_client(tmp_path):
    assert same(server(tmp_path, Halves), server(tmp_path, HalvesByHook))
    assert not same(server(tmp_path, Halves), server(tmp_path, Noisy, "sequential"))


class LBFGS(Noisy):
    def configure_optimizers(self) -> Any:
        return optim.LBFGS(self.parameters(), lr=0.01, max_iter=2)


@pytest.mark.parametrize("model", [EpochStart, LBFGS])
def test_resumed_runs_have_the_same_bits(model, tmp_path):
    config = settings(tmp_path, model=model, rounds=3, local=LocalConfig(batch_size=5, epochs=1))
    assert differ_when_resumed(config, [0, 1, 2]) == []


class Measured(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.f1 = torchmetrics.classification.MulticlassF1Score(num_classes=CLASSES)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.f1(logits, y)
        self.log("f1", self.f1)
        self.log("mean_loss", nn.functional.cross_entropy(logits, y))


@pytest.mark.parametrize("backend", ["sequential", "lightning"])
def test_what_validation_logs_is_measured(backend, tmp_path):
    config = settings(tmp_path, model=Measured, local=LocalConfig(batch_size=5, steps=3, backend=backend))
    run = built(config)
    run.server.step()
    metrics = run.server.evaluate(torch.empty(0, dtype=torch.int64))
    run.program.load(run.server.params)
    task, test = run.program.task.eval(), run.data.test
    with torch.no_grad():
        logits = task(run.program.population.normalize(test.x))
    f1 = torchmetrics.functional.classification.multiclass_f1_score(logits, test.y, CLASSES)
    assert metrics["test/f1"] == pytest.approx(float(f1), rel=1e-6)
    assert metrics["test/mean_loss"] == pytest.approx(
        float(nn.functional.cross_entropy(logits, test.y)), rel=1e-6
    )


class Plateau(Noisy):
    def __init__(self, monitor: str) -> None:
        super().__init__()
        self.monitor = monitor

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": self.monitor}}


def test_a_schedule_follows_what_clients_log(tmp_path):
    server(tmp_path, Plateau("train_loss"), rounds=1)
    with pytest.raises(
        UserError,
        match=r"^configure_optimizers of Plateau must monitor what training_step logs, such as train_loss.*, "
        "got val_loss: a client has no validation set",
    ):
        server(tmp_path, Plateau("val_loss"), rounds=0)


class Doubling(Noisy):
    """Doubles its inputs."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        assert self.trainer.training or self.trainer.validating
        return 2 * batch[0], batch[1]


class Doubled(Noisy):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(2 * x + 0.1 * torch.randn_like(x)), y)


class Data(LightningDataModule):
    """Has the examples, and may double them in batches."""

    num_classes = CLASSES

    def train_dataloader(self) -> Any:
        draw = torch.Generator().manual_seed(1)
        x, y = torch.randn(60, FEATURES, generator=draw), torch.randint(0, CLASSES, (60,), generator=draw)
        return DataLoader(TensorDataset(x, y))


class DoublingData(Data):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return 2 * batch[0], batch[1]


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


LINEAR = partial(nn.Linear, FEATURES, CLASSES)


@pytest.mark.parametrize(
    ("inside", "hooked"),
    [
        (Doubled, (Noisy, DoublingData)),
        (Doubled, (Doubling, Data)),
        (partial(Twice, 8, 4), (LINEAR, DoublingData)),
    ],
)
def test_batches_are_changed_by_hooks_in_training_and_evaluations(inside, hooked, tmp_path):
    made = [
        server(tmp_path, model, data=DataConfig(name=data()), partition=IID())
        for model, data in ((inside, Data), hooked)
    ]
    one, other = (each.evaluate(torch.empty(0, dtype=torch.int64)) for each in made)
    for value, wanted in zip(made[1].params.values(), made[0].params.values(), strict=True):
        assert torch.allclose(value, wanted, atol=1e-6)
    assert other["test/accuracy"] == one["test/accuracy"]
    if inside is not Doubled:  # whose step draws noise
        assert other["test/loss"] == pytest.approx(one["test/loss"], rel=1e-5)
    with pytest.raises(UserError, match="DoublingData changes batches by hooks, which needs Lightning's own"):
        server(tmp_path, Noisy, "sequential", data=DataConfig(name=DoublingData()), partition=IID())


class Skips(Noisy):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.logger.experiment.add_scalar("x", 1.0)
        loss = self.loss(batch)
        return loss if batch_idx else None


class SkipsByHook(Noisy):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.first = batch_idx == 0

    def optimizer_step(self, epoch: Any, batch_idx: int, optimizer: Any, closure: Any) -> None:
        closure()
        if not self.first:
            optimizer.step()


def test_a_step_may_skip_its_batch(tmp_path):
    assert same(server(tmp_path, Skips), server(tmp_path, SkipsByHook))


class NoLoss(Noisy):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        return None


def test_a_client_whose_every_step_is_skipped_is_said(tmp_path, caplog):
    server(tmp_path, NoLoss, rounds=1)
    assert (
        "training_step of NoLoss returned None in every step of a client, which did not train" in caplog.text
    )


class Called(Noisy):
    def __init__(self, watch: Any) -> None:
        super().__init__()
        self.watch, self.net = watch, None

    def configure_model(self) -> None:
        if self.net is None:
            self.net = Noisy().net

    def configure_callbacks(self) -> Any:
        return [self.watch, ModelCheckpoint()]


class Again(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.net = Noisy().net


def test_callbacks_of_the_module_work_for_a_client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert same(server(tmp_path, partial(Called, Timer())), server(tmp_path, Again, "sequential"))
    assert not [*tmp_path.iterdir()]
    with pytest.raises(UserError, match=r"^model Called cannot be trained: RuntimeError: Early stopping"):
        server(tmp_path, partial(Called, EarlyStopping("val_loss")), rounds=0)


def test_arguments_of_the_trainer(tmp_path):
    plain = server(tmp_path, network, local={"optimizer": SGD})
    loose = {"gradient_clip_val": 1e9}
    tight = {"gradient_clip_val": 1e-4, "accumulate_grad_batches": 2}
    clipped = [
        server(tmp_path, network, local={"optimizer": SGD, "trainer": more}) for more in (loose, tight)
    ]
    names = plain.params
    assert all(torch.allclose(plain.params[n], clipped[0].params[n], atol=1e-5) for n in names)
    assert not same(plain, clipped[1])


@pytest.mark.parametrize(("more", "message"), [
    ({"gradient_clip": 1}, r"local.trainer.gradient_clip must be .* did you mean gradient_clip_val\?"),
    ({"gradient_clip_val": -1}, "local.trainer.gradient_clip_val must be a number >= 0, got -1."),
    ({"accumulate_grad_batches": 0}, "local.trainer.accumulate_grad_batches must be a number >= 1, got 0."),
    ({"max_epochs": 3}, "local.trainer.max_epochs must be an argument of Lightning's Trainer that flsel l"),
    ({"gradient_clip_val": "x"}, "local.trainer is refused by Lightning: TypeError"),
])  # fmt: skip
def test_arguments_that_the_trainer_cannot_have(more, message, tmp_path):
    with pytest.raises(UserError, match=message):
        server(tmp_path, network, local={"trainer": more}, rounds=0)


def test_settings_that_exclude_a_trainer(tmp_path):
    with pytest.raises(UserError, match=r"local.trainer must be empty with local.backend compiled"):
        LocalConfig(backend="compiled", trainer={"gradient_clip_val": 1.0})
    with pytest.raises(
        UserError, match=r"local.keep_optimizer must be false where Lightning's Trainer trains"
    ):
        server(tmp_path, Manual, local={"keep_optimizer": True}, rounds=0)
    with pytest.raises(UserError, match=r"local.workers must be 1 where Lightning's Trainer trains"):
        server(tmp_path, Manual, local={"workers": 2}, rounds=0)
    with pytest.raises(
        UserError, match=r"local.optimizer must be torch.optim.SGD for this objective, got OwnSteps"
    ):
        server(tmp_path, Manual, objective=SCAFFOLD(), rounds=0)
