"""The table of metrics against what a run measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import built, settings

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig
from flsel.config.simulated_time import AsyncConfig
from flsel.devices import Equal
from flsel.metrics import METRICS, Metric, names


def test_a_run_measures_what_the_table_says(tmp_path: Path) -> None:
    config = settings(tmp_path, evaluation=EvaluationConfig(per_client=True))

    def measured(config: RunConfig) -> list[str]:
        server = built(config).server
        data = server.federation.data
        own = tuple(torch.arange(len(data.test)).tensor_split(len(data.population)))
        server.federation = replace(server.federation, data=replace(data, client_tests=own))
        return list(server.evaluate(torch.tensor([0, 1])))

    arriving = [name for name in METRICS if name.startswith("async/")]
    timed = [name for name in METRICS if name.startswith("clock/") or name == "ledger/client_seconds"]
    assert measured(config) == [name for name in METRICS if name not in timed + arriving]
    clocked = replace(config, devices=Equal())
    assert measured(clocked) == [name for name in METRICS if name not in arriving]
    asynchronous = replace(clocked, asynchronous=AsyncConfig(4))
    assert set(measured(asynchronous)) == set(METRICS)


def test_labels_tell_metrics_apart() -> None:
    labels = [metric.label for metric in METRICS.values()]
    assert len(set(labels)) == len(labels)
    assert {metric.unit for metric in METRICS.values() if metric.column.endswith("/accuracy")} == {""}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.column)
def test_every_value_beats_the_worst_and_none_itself(metric: Metric) -> None:
    if metric.better is None:
        assert not metric.beats(1.0, 0.0)
        assert not metric.beats(0.0, 1.0)
    else:
        assert metric.beats(0.5, metric.worst)
        assert not metric.beats(0.5, 0.5)
        assert metric.beats(1.0, 0.5) is (metric.better == "max")
        assert not metric.beats(float("nan"), metric.worst)


def test_only_held_out_metrics_have_a_best() -> None:
    assert [name for name, metric in METRICS.items() if metric.held_out] == [
        "test/loss", "test/accuracy", "validation/loss", "validation/accuracy",
    ]  # fmt: skip
    assert names("seconds") == ("select", "train", "aggregate", "evaluate")
