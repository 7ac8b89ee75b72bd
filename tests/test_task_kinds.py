"""Tasks of other kinds than one tensor and one class: each beside FedAvg by a loop of a few lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch import LightningModule
from runs import built, differ_when_resumed, settings
from torch import Tensor, nn, optim
from torchmetrics.functional.regression import r2_score
from torchmetrics.regression import R2Score

import flsel
from flsel.availability import YMF
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig
from flsel.errors import UserError
from flsel.metrics import Score
from flsel.partition import IID, Dirichlet
from flsel.runner.result import Spent
from flsel.selectors import FedCBS

SIZE, CLIENTS = 60, 4
DRAW = torch.Generator().manual_seed(3)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW)


def whole(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=DRAW)


class Rows:
    """A data set of whatever it is given, row by row."""

    def __init__(self, row: Callable[[int], Any]) -> None:
        self.row = row

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, at: int) -> Any:
        return self.row(at)


X, IDS, MASK, TOKENS = normal(SIZE, 6), whole(9, SIZE, 5), whole(2, SIZE, 5), whole(9, SIZE, 5)
PICTURES, PIXELS = normal(SIZE, 2, 4, 4), whole(3, SIZE, 4, 4)
NUMBERS, LABELS, SEVERAL = normal(SIZE), whole(3, SIZE), whole(2, SIZE, 4)


class Masked(nn.Module):
    """Takes two inputs by name."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 6), nn.Linear(6, num_classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.out((self.embed(input_ids) * attention_mask[..., None]).mean(dim=1))


class Causal(nn.Module):
    """Returns its own loss, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.out(self.embed(input_ids) * attention_mask[..., None])
        loss = None if labels is None else nn.functional.cross_entropy(logits.movedim(-1, 1), labels)
        return {"loss": loss, "logits": logits}


class Tokens(nn.Module):
    """Gives each token its classes, which come last."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 6), nn.Linear(6, num_classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embed(ids))


class Two(nn.Module):
    """Takes two inputs by place."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(6 + 32, num_classes)

    def forward(self, table: Tensor, picture: Tensor) -> Tensor:
        return self.out(torch.cat([table, picture.flatten(1)], dim=1))


class Own(LightningModule):
    """Gets mappings as its data set gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Masked(3)

    def forward(self, **batch: Tensor) -> Tensor:
        return self.net(batch["input_ids"], batch["attention_mask"])

    def training_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> Tensor:
        logits = self.net(batch["input_ids"], batch["attention_mask"])
        return nn.functional.cross_entropy(logits, batch["label"])

    def configure_optimizers(self) -> Any:
        return optim.SGD(self.parameters(), lr=0.1)


class Three(NamedTuple):
    """An example whose parts have names."""

    table: Tensor
    mask: Tensor
    y: int


class Stepping(LightningModule):
    """Computes its loss of a batch as its data set gives it."""

    def __init__(self, net: Any, loss: Callable[[nn.Module, Any], Tensor]) -> None:
        super().__init__()
        self.net, self.loss = net(), loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.net, batch)

    def configure_optimizers(self) -> Any:
        return optim.SGD(self.parameters(), lr=0.1)


class Encoder(LightningModule):
    """Learns without targets."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 6)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return (self.net(batch) - batch).square().mean()

    def configure_optimizers(self) -> Any:
        return optim.SGD(self.parameters(), lr=0.1)


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y)


# By kind: the data set, the model, its loss, and the loss of a batch of positions by hand.
KINDS: dict[str, tuple[Rows, Any, Any, Callable[[Any, Tensor], Tensor]]] = {
    "masked": (
        Rows(lambda n: {"input_ids": IDS[n], "attention_mask": MASK[n], "label": int(LABELS[n])}),
        Masked, None, lambda net, n: cross_entropy(net(IDS[n], MASK[n]), LABELS[n]),
    ),
    "causal": (
        Rows(lambda n: {"input_ids": IDS[n], "attention_mask": MASK[n], "labels": TOKENS[n]}),
        Causal, None, lambda net, n: net(IDS[n], MASK[n], TOKENS[n])["loss"],
    ),
    "tokens": (
        Rows(lambda n: (IDS[n], TOKENS[n])),
        Tokens, nn.CrossEntropyLoss,
        lambda net, n: cross_entropy(net(IDS[n]).flatten(0, 1), TOKENS[n].flatten()),
    ),
    "regression": (
        Rows(lambda n: (X[n], float(NUMBERS[n]))),
        partial(nn.Linear, 6, 1), nn.MSELoss,
        lambda net, n: (net(X[n])[:, 0] - NUMBERS[n]).square().mean(),
    ),
    "several labels": (
        Rows(lambda n: (X[n], SEVERAL[n])),
        partial(nn.Linear, 6, 4), nn.BCEWithLogitsLoss,
        lambda net, n: nn.functional.binary_cross_entropy_with_logits(net(X[n]), SEVERAL[n].float()),
    ),
    "several labels in a tuple": (
        Rows(lambda n: (tuple(X[n].tolist()), tuple(SEVERAL[n].tolist()))),
        partial(nn.Linear, 6, 4), nn.BCEWithLogitsLoss,
        lambda net, n: nn.functional.binary_cross_entropy_with_logits(net(X[n]), SEVERAL[n].float()),
    ),
    "pixels": (
        Rows(lambda n: (PICTURES[n], PIXELS[n])),
        partial(nn.Conv2d, 2, 3, 3, padding=1), nn.CrossEntropyLoss,
        lambda net, n: cross_entropy(net(PICTURES[n]), PIXELS[n]),
    ),
    "two inputs": (
        Rows(lambda n: ((X[n], PICTURES[n]), LABELS[n])),
        Two, None, lambda net, n: cross_entropy(net(X[n], PICTURES[n]), LABELS[n]),
    ),
    "own batches": (
        Rows(lambda n: {"input_ids": IDS[n], "attention_mask": MASK[n], "label": int(LABELS[n])}),
        Own, None, lambda task, n: cross_entropy(task.net(IDS[n], MASK[n]), LABELS[n]),
    ),
    "no targets": (
        Rows(lambda n: X[n]), Encoder, None, lambda task, n: (task.net(X[n]) - X[n]).square().mean()
    ),
}  # fmt: skip


def config(folder: Path, kind: str, backend: str = "auto", **changes: Any) -> Any:
    data, model, loss, _ = KINDS[kind]
    given = {
        "data": DataConfig(name=data, validation=0.0, server=0.1, test=0.2), "partition": IID(),
        "clients": CLIENTS, "clients_per_round": CLIENTS, "model": model, "loss": loss, "rounds": 2,
        "local": LocalConfig(batch_size=5, epochs=2, backend=backend),
    }  # fmt: skip
    return settings(folder, **{**given, **changes})


def check_round(run: Any, loss: Callable[[Any, Tensor], Tensor]) -> None:
    """Compare a round of all clients with the mean of those trained by hand.

    Args:
        run: The settings of a run that trains by SGD with a learning rate of 0.1.
        loss: Maps the model and positions of examples to the loss of their batch.
    """
    made = built(run)
    server, program = made.server, made.program
    start = {name: value.clone() for name, value in server.params.items()}
    sizes = program.population.sizes.double()
    ends = []
    for client in range(len(sizes)):
        program.load(start)
        optimizer = optim.SGD(program.task.parameters(), lr=0.1)
        for row in program.batches(client, 0):
            optimizer.zero_grad()
            loss(program.model, row[row >= 0]).backward()
            optimizer.step()
        ends.append({name: value.detach().clone() for name, value in program.state().items()})
    program.load(start)
    program.task.zero_grad()
    server.step()
    for name, value in server.params.items():
        mean = sum(share * end[name].double() for share, end in zip(sizes / sizes.sum(), ends, strict=True))
        torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6)
        assert not torch.equal(value, start[name]) or value.grad is None


@pytest.mark.parametrize("backend", ["auto", "sequential", "lightning"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_the_mean_of_clients_trained_by_hand(kind, backend, tmp_path):
    check_round(config(tmp_path, kind, backend), KINDS[kind][3])


@pytest.mark.parametrize("kind", KINDS)
def test_examples_of_every_form_are_compiled(kind, tmp_path, caplog):
    local = LocalConfig(batch_size=5, epochs=2, last_batch="wrap", check="every", backend="compiled")
    with caplog.at_level(logging.INFO, "flsel"):
        check_round(config(tmp_path, kind, local=local), KINDS[kind][3])
    assert "compiled" not in caplog.text


@pytest.mark.parametrize("kind", ["masked", "causal", "regression", "no targets"])
def test_a_resumed_run_is_the_same(kind, tmp_path):
    assert differ_when_resumed(config(tmp_path, kind), [1]) == []


WAYS = "needs class labels, groups or strata: .*data.groups.*data.strata"


@pytest.mark.parametrize(
    ("changes", "who"),
    [({"partition": Dirichlet()}, "partition Dirichlet"), ({"selector": FedCBS()}, "FedCBS"),
     ({"availability": YMF()}, "availability YMF")],
)  # fmt: skip
def test_what_reads_labels_is_refused_without_any(changes, who, tmp_path):
    with pytest.raises(UserError, match=f"^{who} {WAYS}"):
        built(config(tmp_path, "regression", **changes))


def test_quantiles_of_a_number_stand_for_labels(tmp_path):
    data = DataConfig(name=KINDS["regression"][0], validation=0.0, server=0.0, test=0.2, strata=4)
    reads = {"partition": Dirichlet(), "selector": FedCBS(), "availability": YMF()}
    population = built(config(tmp_path, "regression", data=data, **reads)).data.population
    assert population.num_classes == 4
    counts = torch.bincount(population.groups, minlength=4)
    assert counts.tolist() == [SIZE // 4] * 4
    edges = NUMBERS.double().quantile(torch.tensor([0.25, 0.5, 0.75]).double())
    assert torch.equal(population.groups, (NUMBERS.double()[:, None] >= edges).sum(dim=1))
    assert population.label_counts().sum() == sum(map(len, population.shards))


class Grouped(Rows):
    site = tuple(n % 3 for n in range(SIZE))


@pytest.mark.parametrize("entry", [True, False])
def test_groups_stand_for_labels(entry, tmp_path):
    rows = (
        Rows(lambda n: {"x": X[n], "site": n % 3, "y": NUMBERS[n]})
        if entry
        else Grouped(lambda n: (X[n], NUMBERS[n]))
    )
    data = DataConfig(name=rows, validation=0.0, server=0.0, test=0.2, groups="site")
    made = built(config(tmp_path, "regression", data=data, partition=Dirichlet(), selector=FedCBS()))
    assert made.data.population.groups.tolist() == [*Grouped.site]
    assert made.data.population.x.shape == X.shape
    made.server.step()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loss": None}, r"loss must be set, since Linear returns no loss, .* are \[\] float32"),
        ({"model": Masked}, r"model Masked does not accept inputs of shape \(6,\)"),
        ({"data": DataConfig(name=KINDS["masked"][0], server=0.0), "loss": None},
         r"model Linear does not accept the inputs input_ids, attention_mask: its forward takes input"),
        ({"model": Encoder}, "loss must be null for Encoder, a LightningModule"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(changes, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        built(config(tmp_path, "regression", **changes))


def test_columns_choose_entries(tmp_path):
    rows = Rows(lambda n: {"a": X[n], "b": IDS[n], "c": LABELS[n], "label": NUMBERS[n]})
    data = DataConfig(name=rows, columns={"inputs": ["a"], "target": "c"})
    population = built(config(tmp_path, "masked", data=data, model=partial(nn.Linear, 6, 3))).data.population
    assert torch.equal(population.x, X)
    assert torch.equal(population.y, LABELS)
    with pytest.raises(UserError, match=r"must have the entry d, which data.columns .* found a, b, c, label"):
        DataConfig(name=rows, columns={"inputs": ["d"]})
    with pytest.raises(
        UserError, match=r"data\.columns must have inputs, a list of names, and target, a name"
    ):
        DataConfig(name=rows, columns={"input": ["d"]})


class Judged(Own):
    """Logs a metric of torchmetrics and a number when it is validated."""

    def __init__(self) -> None:
        super().__init__()
        self.error = torchmetrics.MeanSquaredError()

    def validation_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        logits = self.net(batch["input_ids"], batch["attention_mask"])
        self.error(logits.softmax(dim=1)[:, 0], (batch["label"] == 0).float())
        self.log("error", self.error)
        self.log("perplexity", nn.functional.cross_entropy(logits, batch["label"]).exp())


@pytest.mark.parametrize(
    ("score", "column", "better"),
    [
        ({}, "test/accuracy", "max"),
        ({"score": "test/error"}, "test/error", "min"),
        ({"score": "test/perplexity", "better": "lower"}, "test/perplexity", "min"),
        ({"score": "test/perplexity", "better": "higher"}, "test/perplexity", "max"),
    ],
)
def test_a_run_is_judged_by_its_score(score, column, better, tmp_path):
    evaluation = EvaluationConfig(target=1e-6 if better == "max" else 1e6, **score)
    run = config(tmp_path, "own batches", model=Judged, evaluation=evaluation)
    result = flsel.run(run)
    assert (result.score.column, result.score.better) == (column, better)
    assert result.summary["rounds_to_target"] == 0
    curve = result.history[column]
    assert result.best[column] == (curve.max() if better == "max" else curve.min())
    middle = float(np.median(curve))
    there = curve >= middle if better == "max" else curve <= middle
    assert result.to_target(middle) == Spent(result.history["round"][int(there.argmax())], True)
    assert column.partition("/")[2] in result._repr_html_()


class AlsoTested(Judged):
    """Logs another number when it is tested."""

    def test_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        logits = self.net(batch["input_ids"], batch["attention_mask"])
        self.log("hits", (logits.argmax(dim=1) == batch["label"]).float().mean())


def test_clients_own_test_data_are_measured_by_the_score(tmp_path):
    data = DataConfig(name=KINDS["own batches"][0], validation=0.2, server=0.0, test=0.2, client_test=0.3)
    evaluation = EvaluationConfig(score="test/error", per_client=True)
    made = built(config(tmp_path, "own batches", model=AlsoTested, data=data, evaluation=evaluation))
    made.server.step()
    found = made.server.evaluate(torch.empty(0, dtype=torch.int64))
    program, own = made.program, made.data.own_test
    assert own is not None
    assert found["test/hits"] == pytest.approx(found["test/accuracy"])
    assert "validation/hits" not in found
    errors = []
    for part in made.data.client_tests or ():
        program.load(made.server.params)
        batch, label = own.read(part)
        with torch.no_grad():
            share = program.task.net(**batch).softmax(dim=1)[:, 0]
        errors.append(float((share - (label == 0).float()).square().mean()))
    assert found["client_test/error_mean"] == pytest.approx(sum(errors) / CLIENTS, rel=1e-5)
    assert found["client_test/error_worst10"] == pytest.approx(max(errors), rel=1e-5)
    assert found["client_test/accuracy_mean"] >= 0


def test_a_regression_is_judged_by_its_loss(tmp_path):
    result = flsel.run(config(tmp_path, "regression", evaluation=EvaluationConfig(metrics=(R2Score,))))
    assert result.score == Score("test/loss", "min")
    assert "test/accuracy" not in result.history
    model, data = result.model, built(config(tmp_path, "regression")).data.test
    with torch.no_grad():
        found = model(data.x)[:, 0]
    assert result.final["test/loss"] == pytest.approx(float((found - data.y).square().mean()), rel=1e-5)
    assert result.final["test/R2Score"] == pytest.approx(float(r2_score(found, data.y)), rel=1e-5)


class OneOutput(LightningModule):
    """Tells two classes apart by one output, a logit or a probability."""

    def __init__(self, loss: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.net, self.loss = nn.Sequential(nn.Linear(6, 1), last), loss

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self(batch[0]).flatten(), batch[1].float())

    def configure_optimizers(self) -> Any:
        return optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("loss", "last", "threshold"),
    [
        (nn.BCEWithLogitsLoss, nn.Flatten(0), 0),
        (nn.BCEWithLogitsLoss, nn.Identity(), 0),
        (nn.BCELoss, nn.Sigmoid(), 0.5),
    ],
)
def test_one_output_tells_two_classes_apart(loss, last, threshold, own, tmp_path):
    rows = Rows(lambda n: (X[n], int(LABELS[n] > 0)))
    run = config(
        tmp_path,
        "regression",
        data=DataConfig(name=rows, validation=0.0, server=0.1, test=0.2),
        model=OneOutput(loss(), last) if own else nn.Sequential(nn.Linear(6, 1), last),
        loss=None if own else loss,
        evaluation=EvaluationConfig(per_client=True),
    )
    result, data = flsel.run(run), built(run).data.test
    with torch.no_grad():
        outputs = result.model(data.x).flatten()
    assert result.score == Score("test/accuracy", "max")
    right = ((outputs > threshold) == data.y).float().mean()
    assert result.final["test/accuracy"] == pytest.approx(float(right))
    assert result.final["test/loss"] == pytest.approx(float(loss()(outputs, data.y.float())), rel=1e-5)
    assert 0 <= result.final["client_train/accuracy_mean"] <= 1


def test_one_output_of_another_loss_tells_no_classes(tmp_path):
    rows = Rows(lambda n: (X[n], int(LABELS[n] > 0)))
    data = DataConfig(name=rows, validation=0.0, server=0.1, test=0.2)
    run = config(tmp_path, "regression", data=data, model=OneOutput(nn.MSELoss(), nn.Identity()), loss=None)
    assert flsel.run(run).score == Score("test/loss", "min")


@pytest.mark.parametrize(
    ("score", "sentence"),
    [
        ({"score": "test/f1"}, r"evaluation\.score must be a column measured on the test set, .*test/loss"),
        ({"score": "test/perplexity"}, r"evaluation\.better must be lower or higher, since test/perplexity"),
        ({"score": "accuracy"}, r"evaluation\.score must be a column on the test set"),
        (
            {"target": 3.0},
            r"evaluation\.target must be in \(0, 1\] for an accuracy, got 3: set",
        ),
    ],
)
def test_a_score_that_cannot_judge_is_refused(score, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        flsel.run(config(tmp_path, "own batches", model=Judged, evaluation=EvaluationConfig(**score)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["masked", "regression"])
def test_clients_are_measured_on_what_is_held_out_of_their_own_examples(kind, tmp_path):
    data = DataConfig(name=KINDS[kind][0], validation=0.0, server=0.1, test=0.2, client_test=0.25)
    evaluation = EvaluationConfig(per_client=True)
    made = built(config(tmp_path, kind, data=data, evaluation=evaluation))
    all_data = replace(data, client_test=0.0)
    whole = built(config(tmp_path, kind, data=all_data)).data.population.shards
    kept, tests = made.data.population.shards, made.data.client_tests
    for all_of_it, left, own in zip(whole, kept, tests, strict=True):
        assert abs(len(own) - 0.25 * len(all_of_it)) < 1
        assert len(left) + len(own) == len(all_of_it)
        assert set(left.tolist()) < set(all_of_it.tolist())
    found = made.server.evaluate(torch.empty(0, dtype=torch.int64))
    values = []
    for own in tests:
        x, y = made.program.ready(made.data.own_test.read(own))
        with torch.no_grad():
            output = made.program.outputs(x)
        right = output.argmax(1) == y if kind == "masked" else (output[:, 0] - y).square()
        values.append(float(right.double().mean()))
    name = "accuracy" if kind == "masked" else "loss"
    assert found[f"client_test/{name}_mean"] == pytest.approx(sum(values) / CLIENTS)
    worst = min(values) if kind == "masked" else max(values)
    assert found[f"client_test/{name}_worst10"] == pytest.approx(worst)
