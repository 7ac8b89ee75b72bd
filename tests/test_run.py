"""What a run writes, measures and reports."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from runs import SMALL, built, left_behind, same, settings, started
from torch import nn, optim

from flsel.availability import LDF
from flsel.comparison.from_python import compare
from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig, OutputConfig
from flsel.data import population
from flsel.data.data_config import DataConfig
from flsel.data.population import Population
from flsel.errors import UserError
from flsel.execution.run import run
from flsel.execution.single_run import single_run
from flsel.models import MLP
from flsel.partition import Dirichlet
from flsel.runner import pictures
from flsel.selectors.md import MD
from flsel.selectors.powd import PowD

FASHION = Path(__file__).resolve().parents[1] / "../shared/data"


def metrics_of(folder: Path) -> list[dict[str, float]]:
    with open(folder / "metrics.csv", newline="") as stream:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(stream)]


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_a_run_writes_its_files(tmp_path: Path) -> None:
    result = run(settings(tmp_path), pictures=True)
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml", "metrics.csv", "rounds.jsonl", "checkpoints", "summary.json", "curves.png",
        "partition.png",
    }  # fmt: skip
    rows = metrics_of(folder)
    assert [row["round"] for row in rows] == list(range(7))
    assert rows[-1]["test/accuracy"] == result.final["test/accuracy"]
    assert rows[-1]["test/loss"] < rows[0]["test/loss"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["final"]["test/accuracy"] == result.final["test/accuracy"]
    assert summary["best"]["test/loss"] == min(row["test/loss"] for row in rows)
    assert summary["rounds"] == 6
    assert {"torch", "lightning", "flsel", "python"} <= summary["versions"].keys()
    for picture in ("curves.png", "partition.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")


def test_the_config_it_writes_repeats_the_run(tmp_path: Path) -> None:
    config = settings(tmp_path, selector=MD(), local=LocalConfig(optimizer=partial(optim.Adam, lr=0.01)))
    run(config)
    again = RunConfig.from_file(tmp_path / "run" / "config.yaml")
    assert again.to_dict() == replace(again, output=again.output).to_dict()
    run(replace(again, output=OutputConfig(dir=str(tmp_path), name="again", checkpoint_every=1)))
    assert same(left_behind(tmp_path / "run"), left_behind(tmp_path / "again"))


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    run(settings(tmp_path))
    first = (tmp_path / "run" / "metrics.csv").read_bytes()
    run(settings(tmp_path, seed=1))
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == first
    assert (tmp_path / "run-2" / "metrics.csv").exists()


def test_the_last_round_is_always_evaluated(tmp_path: Path) -> None:
    run(settings(tmp_path, rounds=7, evaluation=EvaluationConfig(every=3)))
    assert [row["round"] for row in metrics_of(tmp_path / "run")] == [0, 3, 6, 7]


def test_a_target_is_reported_and_ends_the_run_only_if_asked(tmp_path: Path) -> None:
    run(settings(tmp_path / "free", rounds=12))
    curve = [row["test/accuracy"] for row in metrics_of(tmp_path / "free" / "run")]
    target = max(curve[:8])
    first = next(i for i, accuracy in enumerate(curve) if accuracy >= target)
    assert 0 < first < 12, "the toy problem must learn within 8 rounds"
    for stop in (True, False):
        goal = replace(EvaluationConfig(target=target), **({"stop_at_target": True} if stop else {}))
        run(settings(tmp_path / str(stop), rounds=12, evaluation=goal))
        summary = json.loads((tmp_path / str(stop) / "run" / "summary.json").read_text())
        assert summary["rounds_to_target"] == first
        assert summary["rounds"] == (first if stop else 12)


def test_selection_metrics_follow_the_plans(tmp_path: Path) -> None:
    run(settings(tmp_path, selector=PowD(d=5), availability=LDF(0.7)))
    counts: Counter[int] = Counter()
    rows = metrics_of(tmp_path / "run")[1:]
    for record, row in zip(rounds_of(tmp_path / "run"), rows, strict=True):
        counts.update(client for path in record["plan"] for client in path)
        table = torch.tensor([counts[client] for client in range(8)]).double()
        assert row["selection/variance"] == pytest.approx(float(table.var(correction=0)))
        assert row["selection/distinct"] == len(counts)
        assert 1 <= record["available"] <= 8
        assert sum(record["weights"]) == pytest.approx(1.0)


def test_per_client_metrics_are_means_over_clients(tmp_path: Path) -> None:
    config = settings(tmp_path, evaluation=EvaluationConfig(per_client=True))
    server = built(config).server
    server.step()
    metrics = server.evaluate(torch.tensor([0]))
    data, weights = server.federation.data.population, list(server.params.values())
    hits, losses = [], []
    for shard in data.shards:
        logits = data.x[shard] @ weights[0].T + weights[1]
        hits.append(float((logits.argmax(1) == data.y[shard]).double().mean()))
        losses.append(float(nn.functional.cross_entropy(logits, data.y[shard])))
    table = torch.tensor(hits, dtype=torch.float64)
    assert metrics["client_train/accuracy_mean"] == pytest.approx(float(table.mean()))
    assert metrics["client_train/accuracy_worst10"] == pytest.approx(min(hits))
    assert metrics["client_train/accuracy_variance"] == pytest.approx(float(table.var(correction=0)))
    assert metrics["client_train/loss_mean"] == pytest.approx(sum(losses) / 8, rel=1e-5)


def test_accuracy_on_the_clients_own_test_data(tmp_path: Path) -> None:
    server = built(settings(tmp_path, evaluation=EvaluationConfig(per_client=True))).server
    assert not [name for name in server.evaluate(torch.tensor([0])) if name.startswith("client_test/")]
    data = server.federation.data
    none, *parts = (torch.arange(0), *torch.arange(len(data.test)).tensor_split(3))
    tests = (parts[0], none, parts[1], parts[2], none, none, none, none)
    server.federation = replace(server.federation, data=replace(data, client_tests=tests))
    found = server.evaluate(torch.tensor([0]))
    weights = list(server.params.values())
    hits = [
        float(
            ((data.test.x[part] @ weights[0].T + weights[1]).argmax(1) == data.test.y[part]).double().mean()
        )
        for part in parts
    ]
    assert found["client_test/accuracy_mean"] == pytest.approx(sum(hits) / 3)
    assert found["client_test/accuracy_worst10"] == pytest.approx(min(hits))
    assert found["client_test/accuracy_variance"] == pytest.approx(
        float(torch.tensor(hits).var(correction=0))
    )


def test_a_client_whose_loss_is_nan_is_no_client_without_examples(tmp_path: Path) -> None:
    server = built(settings(tmp_path)).server
    nan = float("nan")
    server.evaluator.on_clients = lambda params, round=0: (
        torch.tensor([0.5, nan, nan]),
        torch.tensor([0.8, 0.4, nan]),
    )
    found = server._client_metrics()
    assert found["client_train/accuracy_mean"] == pytest.approx(0.6)
    assert math.isnan(found["client_train/loss_mean"])


def test_the_trace_is_the_same_for_every_selector(tmp_path: Path) -> None:
    for name, selector in (("a", PowD()), ("b", MD())):
        run(settings(tmp_path / name, selector=selector, availability=LDF(0.7), rounds=20))
    available = [
        [record["available"] for record in rounds_of(tmp_path / name / "run")] for name in ("a", "b")
    ]
    assert available[0] == available[1]
    assert len(set(available[0])) > 1


class Recorder(Callback):
    """Writes down which hooks were called."""

    calls: list[str] = []  # noqa: RUF012 (a run makes the instance, the test reads the class)

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self.calls.append("train start")

    def on_train_epoch_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self.calls.append(f"epoch end {trainer.round}")

    def on_round_start(self, server: Any) -> None:
        self.calls.append(f"round start {server.round}")

    def on_round_end(self, server: Any, record: Any) -> None:
        self.calls.append(f"round end {record.round}")

    def on_evaluation(self, server: Any, metrics: dict[str, float]) -> None:
        self.calls.append(f"evaluation {server.round} {len(metrics) > 5}")

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self.calls.append("train end")


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_run_that_needs_no_lightning_ends_in_the_same_bits(tmp_path: Path, precision: Any) -> None:
    for name, callbacks in (("plain", ()), ("lightning", (Callback,))):
        made = built(settings(tmp_path, precision=precision, callbacks=callbacks))
        assert isinstance(made.program.task, LightningModule) == bool(callbacks)
        run(settings(tmp_path / name, precision=precision, callbacks=callbacks))
    plain, lightning = (left_behind(tmp_path / name / "run") for name in ("plain", "lightning"))
    assert same(plain, lightning)


def test_results_do_not_depend_on_global_random_state(tmp_path: Path) -> None:
    torch.manual_seed(1)
    run(settings(tmp_path / "a"))
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    run(settings(tmp_path / "b"))
    assert torch.equal(state, torch.random.get_rng_state())
    assert same(left_behind(tmp_path / "a" / "run"), left_behind(tmp_path / "b" / "run"))


def test_threads_execute_one_run_at_a_time(tmp_path: Path) -> None:
    compared = partial(compare, settings(tmp_path), "Uniform,MD", seeds=1)
    with ThreadPoolExecutor(1) as thread, single_run():
        for other in (partial(run, settings(tmp_path)), compared):
            with pytest.raises(UserError, match="another thread of this process executes a run"):
                thread.submit(other).result()
    assert not list(tmp_path.iterdir())


def test_backends_agree_over_a_run_in_float64(tmp_path: Path) -> None:
    models = []
    for backend in ("sequential", "compiled"):
        local = LocalConfig(batch_size=7, epochs=2, backend=backend, optimizer=partial(optim.SGD, lr=0.1))
        server = built(settings(tmp_path, local=local, precision="64-true", model=MLP)).server
        for _ in range(6):
            server.step()
        models.append(server.params)
    for name, value in models[0].items():
        for other in models[1:]:
            torch.testing.assert_close(value.data, other[name].data, atol=1e-10, rtol=0)


def test_a_dataset_without_natural_clients_needs_a_partition(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--partition Dirichlet"):
        built(settings(tmp_path, data=DataConfig(name="runs.points")))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_changes_data_and_plans(tmp_path: Path, seed: int) -> None:
    one, other = (built(settings(tmp_path, seed=s)).server for s in (seed, seed + 1))
    assert one.step().outcome.plan != other.step().outcome.plan or not same(one.params, other.params)


@pytest.mark.real_data
@pytest.mark.skipif(not (FASHION / "FashionMNIST").exists(), reason="../shared/data is not there")
def test_fashion_mnist_learns(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        rounds=30,
        clients=100,
        clients_per_round=10,
        data=DataConfig(name="fashion_mnist", root=str(FASHION), synthetic=SMALL),
        partition=Dirichlet(0.5),
        model=partial(MLP, hidden=(64, 30)),
        local=LocalConfig(batch_size=64, steps=20, optimizer=partial(optim.SGD, lr=0.05)),
        evaluation=EvaluationConfig(every=10),
    )
    assert run(config).final["test/accuracy"] > 0.6


def test_many_labels_of_many_clients_are_counted_only_where_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(population, "LARGE_TABLE", 10)
    monkeypatch.setattr(pictures, "LARGE_TABLE", 10)
    asked, count = [], Population.label_counts

    def counted(self, clients=None):
        asked.append(clients)
        return count(self, clients)

    monkeypatch.setattr(Population, "label_counts", counted)
    with started(settings(tmp_path, rounds=1)) as session:
        record = session.step()
        session.end()
    assert None not in asked
    labels = session.built.data.population.examples.labels
    own = torch.cat([session.built.data.population.shards[c] for (c,) in record.outcome.plan.paths])
    shares = torch.bincount(labels[own]).double() / len(own)
    assert record.metrics["cohort/entropy"] == pytest.approx(float(torch.special.entr(shares).sum()))
