"""What an evaluation measures, whatever the number of examples at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import built, settings

from flsel.config.groups import EvaluationConfig


@pytest.mark.parametrize("batch_size", [1, 3, 4, 1000, None])
def test_losses_are_means_over_examples(tmp_path: Path, batch_size: int | None) -> None:
    config = settings(tmp_path, evaluation=EvaluationConfig(batch_size=batch_size, per_client=True))
    run = built(config)
    data, net = run.data, run.program.model
    loss, accuracy = run.server.evaluator.measure(run.server.params, data.test)
    with torch.no_grad():
        logits = net(data.population.normalize(data.test.x))
    expected = float(torch.nn.functional.cross_entropy(logits.double(), data.test.y))
    assert loss == pytest.approx(expected, rel=1e-6)
    assert accuracy == float((logits.argmax(dim=1) == data.test.y).double().mean())
    losses, accuracies = run.server.evaluator.on_clients(run.server.params)
    for client, shard in enumerate(data.population.shards):
        with torch.no_grad():
            logits = net(data.population.normalize(data.population.x[shard]))
        own = torch.nn.functional.cross_entropy(logits.double(), data.population.y[shard])
        assert float(losses[client]) == pytest.approx(float(own), rel=1e-6)
        right = (logits.argmax(dim=1) == data.population.y[shard]).double().mean()
        assert float(accuracies[client]) == pytest.approx(float(right), abs=1e-12)
