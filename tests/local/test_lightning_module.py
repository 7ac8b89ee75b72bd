"""What of a LightningModule clients run, what is refused, and what is told of."""

from __future__ import annotations

import logging
import math
import warnings
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from runs import built, resumed, settings, started
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from flsel.config.groups import LocalConfig
from flsel.config.simulated_time import AsyncConfig
from flsel.devices import LogNormal
from flsel.errors import UserError
from flsel.local.lightning_module import REPLACED, NeedsTrainer, without_trainer
from flsel.local.lightning_trainer import TrainerFlags
from flsel.local.tasks import as_task
from flsel.metrics import CLIENT_LOG
from flsel.objectives import SCAFFOLD
from flsel.selectors import Uniform

DIMENSION, CLASSES = 8, 4


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIMENSION, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.parameters(), lr=0.1)


TRAINING_HOOKS = (
    "backward", "configure_callbacks", "configure_gradient_clipping", "lr_scheduler_step",
    "on_after_backward", "on_after_batch_transfer", "on_before_backward", "on_before_batch_transfer",
    "on_before_optimizer_step", "on_before_zero_grad", "on_fit_start", "on_train_batch_end",
    "on_train_batch_start", "on_train_end", "on_train_epoch_end", "on_train_epoch_start", "on_train_start",
    "optimizer_step", "optimizer_zero_grad", "setup", "transfer_batch_to_device",
)  # fmt: skip


@pytest.mark.parametrize("hook", TRAINING_HOOKS)
def test_a_hook_that_only_a_trainer_calls_needs_one(hook):
    model = type("Hooked", (Net,), {hook: lambda self, *given, **named: None})()
    with pytest.raises(
        NeedsTrainer, match=rf"model Hooked overrides {hook}, which needs Lightning's own Trai"
    ):
        as_task(model, None)
    assert as_task(type(model)(), None, whole=True).trainer is not None


@pytest.mark.parametrize("hook", sorted(REPLACED))
def test_a_hook_in_whose_place_flsel_does_something_is_told_of_once(hook, caplog):
    name = f"Replaced_{hook}"
    made = type(name, (Net,), {hook: lambda self, *given, **named: None})
    with caplog.at_level(logging.WARNING, "flsel"):
        for _ in range(2):
            as_task(made(), None)
    assert [record.getMessage().split(" will not")[0] for record in caplog.records] == [
        f"model {name}: {hook}"
    ]


class Logs(Net):
    def __init__(self) -> None:
        super().__init__()
        self.hits = MulticlassAccuracy(CLASSES, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.hits(self(batch[0]), batch[1])
        self.log("train/loss", loss)
        self.log("mean", loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("worst", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.log_dict({"a": 1, "hits": self.hits}, on_step=True, on_epoch=True)
        return loss


class LogsEpochs(Logs):
    def on_train_epoch_end(self) -> None:
        self.log("epoch", float(self.current_epoch))


def test_what_clients_log_is_the_mean_of_what_their_trainers_would_log(tmp_path):
    local = LocalConfig(batch_size=5, epochs=2, backend="auto")
    config = settings(tmp_path, model=Logs, local=local, rounds=2, clients_per_round=3)
    made = {
        name: built(replace(config, local=replace(local, backend=name))) for name in ("auto", "lightning")
    }
    found = {}
    for name, run in made.items():
        start = {n: v.clone() for n, v in run.server.params.items()}
        assert [
            math.isnan(v)
            for n, v in run.server.evaluate(torch.tensor([])).items()
            if n.startswith(CLIENT_LOG)
        ]
        record = run.server.step()
        found[name] = {n: v for n, v in record.metrics.items() if n.startswith(CLIENT_LOG)}
    program, wanted = run.program, defaultdict(list)
    for client in record.outcome.plan.visits:
        model, table = Logs(), program.batches(client[0], 0)
        model.load_state_dict(start, strict=False)
        passes = -(-int(program.population.sizes[client[0]]) // 5)
        for first in range(0, len(table), passes):
            batches = [program.batch(at[at >= 0]) for at in table[first : first + passes]]
            trainer = TrainerFlags("cpu", 1, "32-true").make(max_epochs=1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trainer.fit(model, DataLoader(batches, batch_size=None, collate_fn=list))
        for logged, value in trainer.callback_metrics.items():
            wanted[logged].append(float(value))
    assert sorted(wanted) == sorted([
        "train/loss", "mean", "worst", "a", "a_step", "a_epoch", "hits", "hits_step", "hits_epoch",
    ])  # fmt: skip
    for name in made:
        assert found[name] == pytest.approx({CLIENT_LOG + n: sum(v) / len(v) for n, v in wanted.items()})


def test_logs_of_hooks_are_columns_of_metrics(tmp_path):
    local = LocalConfig(batch_size=5, epochs=2)
    config = settings(tmp_path, model=LogsEpochs, local=local, rounds=1)
    with started(config) as session:
        session.step()
        first, second = session.rows()
    assert math.isnan(first["client_log/epoch"])
    assert second["client_log/epoch"] == 1


class LogsNumbers(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        self.log("both", 2 * loss, on_epoch=True, batch_size=3)
        self.log_dict({"mean": loss, "one": 1.0}, on_step=False, on_epoch=True)
        return loss


class LogsPictures(LogsNumbers):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(6, CLASSES)
        )


@pytest.mark.parametrize("model", [LogsNumbers, LogsPictures])
def test_compiled_steps_log_as_sequential_ones(model, tmp_path, caplog):
    found = []
    with caplog.at_level(logging.INFO, "flsel"):
        for backend in ("auto", "sequential"):
            local = LocalConfig(batch_size=5, epochs=2, last_batch="wrap", backend=backend)
            server = built(settings(tmp_path, model=model, local=local, clients_per_round=4)).server
            server.step()
            metrics = server.step().metrics
            found.append({name: value for name, value in metrics.items() if name.startswith(CLIENT_LOG)})
    assert "local.backend auto: compiled" in caplog.text
    assert "the step is not compiled" not in caplog.text
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    names = ("both", "both_epoch", "both_step", "loss", "mean", "one")
    assert sorted(found[0]) == [CLIENT_LOG + name for name in names]


@pytest.mark.parametrize("concurrency", [None, 4])
def test_a_resumed_run_logs_the_same(concurrency, tmp_path):
    rules = AsyncConfig(concurrency, **({} if concurrency is None else {"buffer": 2}))
    devices = None if concurrency is None else LogNormal()
    local = LocalConfig(batch_size=5, steps=3, last_batch="wrap")
    config = settings(
        tmp_path, model=LogsNumbers, local=local, rounds=4, asynchronous=rules, devices=devices,
        selector=Uniform(weights="equal"),
    )  # fmt: skip
    rows = []
    for stops in (False, True):
        output = replace(config.output, name=str(stops))
        with started(replace(config, output=output)) as session:
            for _ in range(2 if stops else 4):
                session.step()
            session.save()
            rows.append(session.rows())
    with resumed(tmp_path / "True") as session:
        for _ in range(2):
            session.step()
        rows.append(session.rows())
    for whole, again in zip(rows[0][-2:], rows[2][-2:], strict=True):
        logs = {name: value for name, value in whole.items() if name.startswith(CLIENT_LOG)}
        assert len(logs) == 6
        assert logs == {name: again[name] for name in logs}


def test_steps_that_log_metrics_are_not_compiled(tmp_path, caplog):
    local = LocalConfig(batch_size=5, steps=3, last_batch="wrap")
    with caplog.at_level(logging.INFO, "flsel"):
        made = built(settings(tmp_path, model=type("Told", (Logs,), {}), local=local))
        metrics = made.server.step().metrics
    assert "the step is not compiled, since it" in caplog.text
    assert metrics[CLIENT_LOG + "hits"] >= 0


class BatchAlone(Net):
    def training_step(self, batch: Any) -> Tensor:  # type: ignore[override]
        return super().training_step(batch, 0)


class WritesToItsBatch(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x.mul_(3.0)
        y.fill_(0)
        return nn.functional.cross_entropy(self(x), y)


class CopiesItsBatch(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x * 3.0), torch.zeros_like(y))


def after_rounds(folder: Any, model: Any, backend: str = "auto", **changes: Any) -> Any:
    config = settings(
        folder, model=model, local=LocalConfig(batch_size=5, steps=3, backend=backend), **changes
    )
    server = built(config).server
    metrics = [dict(server.evaluate(torch.empty(0, dtype=torch.int64)))]
    metrics += [dict(server.step().metrics or {}) for _ in range(3)]
    return server, [
        {k: v for k, v in row.items() if k.startswith(("test/", "validation/"))} for row in metrics
    ]


@pytest.mark.parametrize("backend", ["auto", "sequential"])
def test_a_step_may_leave_out_the_batchs_number(backend, tmp_path):
    one, other = (after_rounds(tmp_path, model, backend) for model in (Net, BatchAlone))
    assert one[1] == other[1]
    assert all(torch.equal(one[0].params[name], other[0].params[name]) for name in one[0].params)


def test_a_step_that_writes_to_its_batch_writes_to_no_set(tmp_path):
    one, other = (after_rounds(tmp_path, model, "sequential") for model in (WritesToItsBatch, CopiesItsBatch))
    assert one[1] == other[1]
    assert all(torch.equal(one[0].params[name], other[0].params[name]) for name in one[0].params)


class WritesWhenAsked(nn.Module):
    writes = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIMENSION, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.clamp_(-1, 1) if self.writes else x)


def test_a_network_that_comes_to_write_to_its_inputs_ends_the_evaluation(tmp_path):
    run = built(settings(tmp_path, model=WritesWhenAsked))
    run.program.model.writes = True
    with pytest.raises(UserError, match="model WritesWhenAsked writes to its inputs, which are the dataset"):
        run.server.evaluate(torch.empty(0, dtype=torch.int64))


class Adversarial(Net):
    """Trains on inputs that are moved along the loss's gradient (FGSM)."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x = x.detach().clone().requires_grad_()
        (grad,) = torch.autograd.grad(nn.functional.cross_entropy(self(x), y), x)
        return nn.functional.cross_entropy(self((x + 0.1 * grad.sign()).detach()), y)


class BackwardInside(Adversarial):
    """The same by backward(), which leaves gradients at the parameters."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x = x.detach().clone().requires_grad_()
        nn.functional.cross_entropy(self(x), y).backward()
        moved = (x + 0.1 * x.grad.sign()).detach()
        self.zero_grad()
        return nn.functional.cross_entropy(self(moved), y)


class Penalised(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x = x.detach().clone().requires_grad_()
        loss = nn.functional.cross_entropy(self(x), y)
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + grad.pow(2).sum()


class Energy(nn.Module):
    """Logits that are minus the gradient of an energy of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(DIMENSION, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().clone().requires_grad_()
        energy = self.outer(torch.tanh(self.inner(x))).sum()
        return -torch.autograd.grad(energy, x, create_graph=True)[0][:, :CLASSES]


class MetaLearner(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        names = dict(self.layer.named_parameters())

        def loss(params: Any) -> Tensor:
            return nn.functional.cross_entropy(torch.func.functional_call(self.layer, params, (x,)), y)

        grads = torch.autograd.grad(loss(names), list(names.values()), create_graph=True)
        return loss({name: p - 0.1 * grad for (name, p), grad in zip(names.items(), grads, strict=True)})


@pytest.mark.parametrize("model", [Adversarial, BackwardInside, Penalised, Energy, MetaLearner])
def test_gradients_in_evaluations(model, tmp_path):
    server, metrics = after_rounds(tmp_path, model, "sequential")
    run = built(settings(tmp_path, model=model))
    assert run.program.differentiates
    task, test = run.program.task.eval(), run.data.test
    x = run.program.population.normalize(test.x)
    if model is Energy:
        expected = nn.functional.cross_entropy(task(x), test.y)
    else:
        expected = task.training_step((x, test.y), 0)
    assert metrics[0]["test/loss"] == pytest.approx(float(expected.detach()), rel=1e-6)
    assert all(p.grad is None for p in server.federation.program.task.parameters())


def test_other_models_are_measured_without_gradients(tmp_path):
    assert not built(settings(tmp_path, model=Net)).program.differentiates


class PartlyTrained(Net):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(DIMENSION, DIMENSION)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.features(x))

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.layer.parameters(), lr=0.1)


class Frozen(PartlyTrained):
    def __init__(self) -> None:
        super().__init__()
        self.features.requires_grad_(False)


@pytest.mark.parametrize("backend", ["auto", "sequential"])
def test_scaffold_with_an_optimizer_of_some_parameters(backend, tmp_path):
    part, frozen = (
        after_rounds(tmp_path, model, backend, objective=SCAFFOLD()) for model in (PartlyTrained, Frozen)
    )
    assert all(torch.allclose(part[0].params[name], value) for name, value in frozen[0].params.items())
    control = part[0].federation.program.objective.control_
    assert not control["features.weight"].any()
    assert control["layer.weight"].any()


def test_a_copied_model_keeps_the_hooks_of_its_parameters(tmp_path):
    calls = []
    net = nn.Linear(DIMENSION, CLASSES)
    net.weight.register_hook(lambda grad: calls.append("hook") or grad * 0)
    net.bias.register_post_accumulate_grad_hook(lambda p: calls.append("after") or setattr(p, "grad", None))
    config = settings(tmp_path, model=net)
    config = replace(config, local=replace(config.local, optimizer=partial(optim.SGD, lr=0.1)))
    server = built(config).server
    server.step()
    assert {"hook", "after"} <= set(calls)
    assert torch.equal(server.params["weight"], net.weight)
    assert torch.equal(server.params["bias"], net.bias)


@pytest.mark.parametrize("asked", [
    "global_step", "current_epoch", "trainer.max_epochs", "optimizers().zero_grad()", "lr_schedulers()",
])  # fmt: skip
def test_what_only_a_trainer_has_is_refused_in_a_sentence(asked: str) -> None:
    model = as_task(Net(), None)
    Fabric(accelerator="cpu").setup_module(model)
    without_trainer(model)
    with pytest.raises(NeedsTrainer, match=r"^the model (asks for|uses) .*: set local.backend to lightning"):
        eval(f"model.{asked}", {"model": model})


def test_what_is_written_to_a_logger_is_not_kept(caplog: Any) -> None:
    model = as_task(Net(), None)
    model.logger.experiment.add_scalar("loss", 1.0)
    model.loggers[0].log_metrics({"loss": 1.0})
    assert "what a model writes to self.logger is not kept" in caplog.text
