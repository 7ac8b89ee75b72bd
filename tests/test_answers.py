"""Gradients and outputs on noise: what a federation answers is what it claims, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, run_round, settings
from torch import Tensor, nn

import flsel.engine.evaluation
from flsel.availability import LN
from flsel.config.groups import EvaluationConfig
from flsel.data.data_config import DataConfig
from flsel.errors import UserError
from flsel.metrics import Ledger
from flsel.params import Params, model_bytes
from flsel.selector import Need, Plan, Selector, View


class Asking(Selector):
    """Keeps its view, so that a test can ask the federation."""

    needs = Need.GRADIENTS | Need.NOISE_OUTPUTS

    def select(self, view: View) -> Plan:
        self.view = view
        return Plan.star(view.pool[:1])


def asked(folder: Path, **changes: Any) -> tuple[Any, View]:
    run = built(settings(folder, selector=Asking(), precision="64-true", **changes))
    run_round(run.server)
    view, ledger = run.server.selector.view, Ledger()
    return run, replace(view, ledger=ledger, answers=replace(view.answers, ledger=ledger))


@pytest.mark.parametrize("batch_size", [3, 2048])
def test_gradients_are_those_of_the_whole_local_loss(tmp_path: Path, batch_size: int) -> None:
    run, view = asked(tmp_path, evaluation=EvaluationConfig(batch_size=batch_size))
    data, clients = run.data.population, [5, 2, 0]
    gradients = view.gradients(clients)
    params = {name: value.clone().requires_grad_() for name, value in view.params.items()}
    weight, bias = params.values()
    for row, client in enumerate(clients):
        x, y = data.x[data.shards[client]].double(), data.y[data.shards[client]]
        loss = nn.functional.cross_entropy(x @ weight.T + bias, y)
        for name, expected in zip(params, torch.autograd.grad(loss, [weight, bias]), strict=True):
            torch.testing.assert_close(gradients[name][row], expected, atol=1e-12, rtol=0)
    assert all(parameter.grad is None for parameter in run.program.task.parameters())
    size = model_bytes(view.params)
    assert dict(view.ledger) == {
        "models_down": 3,
        "bytes_down": 3 * size,
        "models_up": 3,
        "bytes_up": 3 * size,
        "passes": 3,
    }


def test_gradients_of_a_client_without_examples_are_unknown(tmp_path: Path) -> None:
    run, view = asked(tmp_path)
    shards = list(run.data.population.shards)
    shards[1] = shards[1][:0]
    object.__setattr__(run.program.population, "shards", tuple(shards))
    for gradient in view.gradients([1, 2]).values():
        assert gradient[0].isnan().all()
        assert gradient[1].isfinite().all()


def test_gradients_may_only_be_asked_of_clients_that_are_available(tmp_path: Path) -> None:
    _, view = asked(tmp_path, availability=LN())
    absent = int((~view.available).nonzero()[0])
    with pytest.raises(UserError, match=f"asked client {absent} for its gradient, who is not available"):
        view.gradients([absent])


class Moments(nn.Module):
    """Logits that show what the noise is: two inputs, a square and a product, plus a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], x[:, 1], x[:, 0] ** 2, x[:, 0] * x[:, 1]], dim=1) + self.shift


def test_noise_has_the_moments_of_the_server_holdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flsel.engine.evaluation, "_NOISE", 200_000)
    run, view = asked(tmp_path, model=Moments)
    x = run.data.server.x.double().numpy()
    mean, cov = x.mean(axis=0), np.cov(x.T)
    models: Params = {"shift": torch.tensor([0.0, 2.0]).double()}
    plain, shifted = view.noise_outputs(models)
    expected = [mean[0], mean[1], cov[0, 0] + mean[0] ** 2, cov[0, 1] + mean[0] * mean[1]]
    np.testing.assert_allclose(plain.numpy(), expected, atol=0.03 * (cov[0, 0] + mean[0] ** 2))
    torch.testing.assert_close(shifted, plain + 2.0)
    assert torch.equal(view.noise_outputs(models)[0], plain)
    assert dict(view.ledger) == {"server_passes": 4}


def test_noise_outputs_need_a_server_holdout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Asking needs the server's holdout: set data\.server above 0"):
        asked(tmp_path, data=DataConfig(synthetic=settings(tmp_path).data.synthetic, server=0.0))
