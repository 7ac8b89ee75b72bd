"""Training, objectives, evaluation, checkpoints and whole runs on a device."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL, built, left_behind, resumed, run_round, same, settings, started
from standin_device import SIM, host_reads
from torch import nn, optim
from torchmetrics.classification import MulticlassF1Score

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.config.simulated_time import AsyncConfig
from flsel.data.data_config import DataConfig
from flsel.devices import LogNormal
from flsel.errors import UserError
from flsel.local.visit import from_one
from flsel.objectives import MOON, SCAFFOLD, FedAvg, FedDyn, FedGen, FedProx, Objective
from flsel.selectors.powd import PowD

OPTIMIZERS: dict[str, Any] = {
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(optim.Adam, lr=0.01),
}
OBJECTIVES: dict[str, tuple[Objective, str]] = {
    "FedAvg": (FedAvg(), "adam"),
    "FedProx": (FedProx(0.1), "adam"),
    "FedDyn": (FedDyn(0.3), "momentum"),
    "SCAFFOLD": (SCAFFOLD(), "momentum"),
    "MOON": (MOON(5.0), "momentum"),
    "FedGen": (FedGen(noise=3, hidden=6, batch=4, steps=3, start=0), "momentum"),
}
TRAINERS = ["sequential", "compiled"]


def network() -> nn.Module:
    """A network with masks."""
    return nn.Sequential(nn.Linear(8, 6), nn.GroupNorm(2, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 4))


def with_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


def plain_network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))


def there(
    folder: Path, backend: Any = "sequential", optimizer: str = "momentum", **changes: Any
) -> RunConfig:
    kept = changes.pop("keep_optimizer", False)
    local = LocalConfig(
        batch_size=5,
        steps=3,
        optimizer=OPTIMIZERS[optimizer],
        backend=backend,
        last_batch="wrap",
        keep_optimizer=kept,
    )
    base = {"rounds": 2, "model": network(), "local": local, "precision": "64-true", "accelerator": "sim"}
    return settings(folder, **(base | changes))


def ended(config: RunConfig) -> Any:
    server = built(config).server
    while not server.finished:
        server.step()
    return server


@pytest.mark.parametrize("backend", TRAINERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_trains_there_as_on_the_cpu(tmp_path: Path, name: str, backend: Any) -> None:
    objective, optimizer = OBJECTIVES[name]
    config = there(tmp_path, backend, optimizer, objective=objective, model=plain_network())
    server = ended(config)
    plain = replace(config, accelerator="cpu", local=replace(config.local, backend="sequential"))
    for key, value in ended(plain).params.items():
        assert server.params[key].device == SIM
        torch.testing.assert_close(server.params[key].cpu(), value.data, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "backend"), [(network, "sequential"), (network, "compiled"), (with_statistics, "sequential")]
)
def test_masks_and_running_statistics_are_those_of_the_cpu(tmp_path: Path, make: Any, backend: Any) -> None:
    config = there(tmp_path, backend, "adam", model=make())
    found = ended(config).params
    for key, value in ended(replace(config, accelerator="cpu")).params.items():
        torch.testing.assert_close(found[key].cpu(), value.data, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", TRAINERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_visit_reads_nothing(tmp_path: Path, optimizer: str, backend: Any) -> None:
    run = built(there(tmp_path, backend, optimizer, rounds=8))
    server = run.server
    trainer, start = server.federation.trainer, server.params
    for round in range(3):  # the first are compared with sequential, and trace the step
        with host_reads() as reads:
            trainer.train(from_one(start, [1, 3, 5], 5 + round, run.program))
    assert not reads


def test_an_evaluation_reads_each_set_once(tmp_path: Path) -> None:
    data = DataConfig(synthetic=SMALL, validation=0.2)
    server = built(there(tmp_path, data=data)).server
    nobody = torch.empty(0, dtype=torch.int64)
    server.evaluate(nobody)
    with host_reads() as reads:
        metrics = server.evaluate(nobody)
    assert {"test/loss", "validation/loss"} <= metrics.keys()
    assert reads.total() == 2


def test_further_metrics_and_the_clients_are_measured_there(tmp_path: Path) -> None:
    evaluation = EvaluationConfig(per_client=True, metrics=(MulticlassF1Score,))
    config = there(tmp_path, evaluation=evaluation)
    nobody = torch.empty(0, dtype=torch.int64)
    found = built(config).server.evaluate(nobody)
    assert "test/MulticlassF1Score" in found
    expected = built(replace(config, accelerator="cpu")).server.evaluate(nobody)
    assert untimed(found) == pytest.approx(untimed(expected), abs=0, rel=0, nan_ok=True)


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("seconds/")}


RESUMED: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "running statistics": {"model": with_statistics()},
    "kept optimizers": {"keep_optimizer": True},
    "SCAFFOLD": {"objective": SCAFFOLD(), "model": plain_network()},
    "PowD, compiled": {"backend": "compiled", "selector": PowD()},
    "server momentum": {"server_optimizer": partial(optim.SGD, lr=1.0, momentum=0.5)},
    "asynchronous": {"asynchronous": AsyncConfig(4), "devices": LogNormal()},
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path, name: str) -> None:
    config = there(tmp_path, **RESUMED[name])
    server = built(config).server
    server.step()
    buffer = io.BytesIO()
    torch.save(server.state_dict(), buffer)
    buffer.seek(0)
    again = built(config).server
    again.load_state_dict(torch.load(buffer, weights_only=True, map_location="cpu"))
    while not server.finished:
        server.step()
        again.step()
    assert same(on_host(again.state_dict()), on_host(server.state_dict()))


def on_host(value: Any) -> Any:
    """A state as a file has it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_a_stopped_run_of_files_goes_on_to_the_same_files(tmp_path: Path) -> None:
    for folder, stops in (("whole", False), ("stopped", True)):
        config = there(tmp_path / folder)
        session = started(replace(config, model=settings(tmp_path).model))
        if stops:
            with session:
                session.step()
                session.save()
            session = resumed(session.folder)
        with session:
            while not session.over:
                session.step()
            session.save()
            session.end()
    one, other = (left_behind(tmp_path / folder / "run") for folder in ("whole", "stopped"))
    assert same(one["state"], other["state"])
    assert (one["metrics"], one["plans"]) == (other["metrics"], other["plans"])


def test_a_model_that_writes_to_its_data_is_refused_there_too(tmp_path: Path) -> None:
    class Writes(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = super().forward(x.mul_(2))
            return found

    with pytest.raises(UserError, match="writes to"):
        ended(there(tmp_path, model=Writes(8, 4)))


def test_a_round_whose_clients_diverge_is_told_from_one_number(tmp_path: Path) -> None:
    from flsel.errors import DivergedError

    server = built(there(tmp_path)).server
    for value in server.params.values():
        value.fill_(float("nan"))
    with pytest.raises(DivergedError, match="non-finite"):
        run_round(server)
