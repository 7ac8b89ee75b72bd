"""What a run returns, and the same read from its folder, whatever state that is in."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from runs import Quadratic, built, points, same, settings
from torch import Tensor, nn

import flsel
from flsel.availability import LDF
from flsel.config import RunConfig
from flsel.config.fingerprint import alike
from flsel.config.groups import EvaluationConfig
from flsel.data.data_config import DataConfig
from flsel.errors import UserError
from flsel.models import MLP
from flsel.partition import IID
from flsel.runner.build import build
from flsel.runner.digest import fingerprints, rounded_digest
from flsel.runner.result import Result, Spent
from flsel.runner.run_log import MetricsCsv
from flsel.selectors import MD, FedCat, PowD


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    root = tmp_path_factory.mktemp("whole")
    return flsel.run(
        settings(root, selector=PowD(d=5), model=MLP, evaluation=EvaluationConfig(every=2, target=0.4))
    )


@pytest.fixture
def folder(whole: Result, tmp_path: Path) -> Path:
    return shutil.copytree(whole.folder, tmp_path / "run")


def test_a_result_holds_what_the_files_hold(whole: Result) -> None:
    assert whole.history["round"].tolist() == [0, 2, 4, 6]
    assert whole.history["round"].dtype == np.int64
    assert all(len(column) == 4 for column in whole.history.values())
    assert whole.rows[-1]["test/loss"] == whole.history["test/loss"][-1] == whole.final["test/loss"]
    assert whole.best["test/loss"] == whole.history["test/loss"].min()
    assert not any(name.startswith("seconds/") for name in whole.final)
    assert (whole.name, whole.selector, whole.seed) == ("run", "PowD", 0)
    assert whole.dataset == "synthetic"
    assert whole.settings["selector"]["init_args"] == {"d": 5} == {"d": whole.config.selector.d}
    assert [step.round for step in whole.rounds] == list(range(6))
    assert whole.ledger["bytes_up"] == sum(step.ledger["bytes_up"] for step in whole.rounds)
    assert whole.counts.tolist() == [sum(p.clients.count(k) for p in whole.rounds) for k in range(8)]
    assert whole.counts.sum() == 18


def test_a_run_with_older_names_of_columns_is_read_and_continued(tmp_path: Path) -> None:
    fresh = flsel.run(settings(tmp_path, rounds=2, evaluation=EvaluationConfig(per_client=True)))
    for name in ("metrics.csv", "summary.json"):
        file = fresh.folder / name
        text = file.read_text()
        assert "client_train/accuracy_mean" in text
        file.write_text(text.replace("client_train/", "client/"))
    old = Result.load(fresh.folder)
    assert old.final == fresh.final
    assert list(old.history) == list(fresh.history)
    table = MetricsCsv(fresh.folder / "metrics.csv")
    table.append(table.rows()[-1])
    assert len(table.rows()) == len(fresh.history["round"]) + 1


def test_results_are_compared_as_they_are(whole: Result) -> None:
    found = flsel.compare([whole])
    assert [run.folder for run in found.analysis.runs] == [whole.folder]
    assert flsel.compare(whole).analysis.options == found.analysis.options


def test_last_averages_evaluations_and_leaves_the_initial_model_out(whole: Result) -> None:
    assert whole.last(2)["test/loss"] == pytest.approx(whole.history["test/loss"][-2:].mean())
    assert whole.last(99)["test/loss"] == pytest.approx(whole.history["test/loss"][1:].mean())
    with pytest.raises(UserError, match="evaluations must be a whole number >= 1, got 0"):
        whole.last(0)


def test_costs_to_a_target_are_censored_where_it_was_not_reached(whole: Result) -> None:
    curve = whole.history["test/accuracy"]
    first = int(np.flatnonzero(curve >= 0.4)[0])
    assert whole.to_target() == Spent(whole.history["round"][first], True)
    assert whole.summary["rounds_to_target"] == whole.to_target().value
    sent = whole.history["ledger/bytes_down"]
    assert whole.to_target(0.4, cost="ledger/bytes_down") == Spent(sent[first], True)
    assert whole.to_target(1.0, cost="ledger/bytes_down") == Spent(sent[-1], False)
    assert whole.to_target(0.4, cost="bytes_down") == Spent(sent[first], True)
    assert whole.to_target(0.4, cost="bytes").value == sent[first] + whole.history["ledger/bytes_up"][first]
    losses = whole.history["test/loss"]
    assert whole.to_target(losses[2], metric="test/loss").value <= 4
    assert whole.to_target(0.0, metric="test/loss") == Spent(6.0, False)
    seconds = whole.to_target(1.0, cost="seconds").value
    parts = ("select", "train", "aggregate")
    assert seconds == pytest.approx(sum(whole.history[f"seconds/{part}"].sum() for part in parts))


def test_a_running_mean_reaches_a_target_when_its_whole_window_has(whole: Result) -> None:
    curve = whole.history["test/accuracy"]
    means = [curve[i : i + 3].mean() for i in range(2)]
    assert whole.to_target(means[0], window=3).value in (4, 6)
    assert whole.to_target(1e-9, window=4) == Spent(6.0, True)
    assert whole.to_target(1e-9, window=5) == Spent(6.0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cost": "ledger/byte_up"}, "has no column ledger/byte_up: round, test/loss"),
        ({"metric": "none"}, "has no column none"),
        ({"cost": "test/loss"}, "cost must be rounds, models, .* or a column of ledger/, got test/loss"),
        ({"window": 0}, "window must be a whole number >= 1, got 0"),
        ({"target": 60}, r"target must be in \(0, 1\], as accuracies are shares, got 60"),
        ({"target": math.nan}, r"target must be in .* as accuracies are shares, got nan"),
        ({"target": "high"}, "target must be a number or null, got .high."),
    ],
)
def test_costs_that_cannot_be_told(whole: Result, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        whole.to_target(**{"target": 0.5} | arguments)


def test_without_a_target_one_must_be_named(tmp_path: Path) -> None:
    result = flsel.run(settings(tmp_path))
    with pytest.raises(UserError, match=r"has no target: set evaluation\.target, or name one"):
        result.to_target()
    assert result.to_target(1e-9) == Spent(0.0, True)


def test_the_model_is_the_trained_one_and_ready(whole: Result) -> None:
    again = Result.load(whole.folder)
    model, data = again.model, built(whole.config).data
    assert isinstance(model, MLP)
    assert not model.training
    with torch.inference_mode():
        hits = model(again.normalize(data.test.x)).argmax(dim=1) == data.test.y
    assert float(hits.double().mean()) == whole.final["test/accuracy"]


class Net(nn.Sequential):
    """Convolution and running statistics on uint8 images."""

    def __init__(self, num_classes: int | None = None) -> None:
        assert num_classes is not None
        super().__init__(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2 * 36, num_classes))


def images() -> tuple[torch.utils.data.TensorDataset, torch.utils.data.TensorDataset]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(256, (90, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return torch.utils.data.TensorDataset(x[:60], torch.arange(60) % 3), torch.utils.data.TensorDataset(
        x[60:], torch.arange(30) % 3
    )


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_images_are_normalised_as_in_training(tmp_path: Path, precision: Any) -> None:
    data = DataConfig(name="test_result.images", validation=0.0)
    result = flsel.run(settings(tmp_path, data=data, partition=IID(), model=Net, precision=precision))
    test = images()[1].tensors
    inputs = result.normalize(test[0])
    assert inputs.is_floating_point()
    with torch.inference_mode():
        hits = result.model(inputs.to(next(result.model.parameters()))).argmax(dim=1) == test[1]
    assert float(hits.double().mean()) == result.final["test/accuracy"]


def test_a_lightning_module_is_returned_as_such(tmp_path: Path) -> None:
    data = DataConfig(name="runs.points")
    result = flsel.run(settings(tmp_path, data=data, partition=IID(), model=partial(Quadratic, lr=0.2)))
    assert isinstance(result.model, LightningModule)
    assert float(result.model.w.detach().abs().max()) < 1
    assert points()[0].tensors[0].dtype == torch.float64


def test_a_saved_result_is_a_run_of_its_own(whole: Result, tmp_path: Path) -> None:
    copy = whole.save(tmp_path / "copy")
    assert copy.folder == tmp_path / "copy"
    assert same(copy.rows, whole.rows) or copy.rows[0]["round"] == 0
    assert copy.summary == whole.summary
    assert same(dict(copy.model.state_dict()), dict(whole.model.state_dict()))
    with pytest.raises(UserError, match="copy exists; a run is never written over something else"):
        whole.save(tmp_path / "copy")


def test_runs_of_one_seed_are_paired_and_others_are_not(tmp_path: Path) -> None:
    base = settings(tmp_path, rounds=2, availability=LDF(0.7))
    one = flsel.run(base).fingerprints
    assert set(one) == {"partition", "holdouts", "availability", "model"}
    assert flsel.run(replace(base, selector=MD())).fingerprints == one
    changes: dict[str, tuple[Any, set[str]]] = {
        "seed": (1, set(one)),
        "availability": (LDF(0.1), {"availability"}),
        "model": (MLP, {"model"}),
        "rounds": (3, {"availability"}),
        "clients": (7, {"partition", "holdouts", "availability"}),
    }
    for name, (value, expected) in changes.items():
        other = flsel.run(replace(base, **{name: value})).fingerprints
        assert {part for part in one if one[part] != other[part]} == expected, name


def test_fingerprints_tell_other_data_from_rounding() -> None:
    """Every other value changes a fingerprint; what processors round differently does not."""
    plain = {
        "data": {"name": "synthetic", "synthetic": {"size_max": 200}},
        "clients": 8, "clients_per_round": 2, "rounds": 9,
        "partition": {"class_path": "Dirichlet", "init_args": {"alpha": 0.5}},
        "availability": {"class_path": "LN"}, "model": {"class_path": "MLP"},
        "devices": {"class_path": "LogNormal"},
    }  # fmt: skip

    def prints(
        change: dict[str, Any] | None = None, rounded: Callable[[Tensor], Tensor] | None = None
    ) -> dict[str, str]:
        server = build(RunConfig.from_dict(plain, change or {})).server
        population, params = server.federation.data.population, server.params
        if rounded is not None:
            population.examples.x.copy_(rounded(population.examples.x))
            params = {name: rounded(value) for name, value in params.items()}
        return fingerprints(server.federation, rounded_digest(params))

    def differing(one: dict[str, str], two: dict[str, str]) -> set[str]:
        return {name for name in one if not alike(one[name], two[name])}

    base = prints()
    noise = torch.Generator().manual_seed(0)

    def times(share: float) -> Callable[[Tensor], Tensor]:
        return lambda x: x * (1 + share * torch.randn(x.shape, generator=noise))

    again = prints(rounded=times(1e-7))
    assert again["partition"] != base["partition"]
    assert not differing(base, again)
    assert differing(base, prints(rounded=times(1e-2))) == {"partition", "model"}
    assert differing(base, prints({"seed": 1})) == set(base)
    data = {"partition", "holdouts"}
    for change, expected in (
        ({"data.synthetic.beta": 0.6}, data),
        ({"data.synthetic.generator": "fedpns"}, data),
        ({"data.synthetic.size_max": 199}, data),
        ({"partition.init_args.alpha": 0.6}, {"partition"}),
        ({"data.server": 0.06}, data),
        ({"devices.init_args.sigma": 0.7}, {"devices"}),
    ):
        assert expected <= differing(base, prints(change)), change

    # A hash of all bits, which has no figures, agrees with the same bits only.
    bits = base["model"].split()[0]
    assert alike(bits, base["model"])
    assert not alike(bits, again["model"])
    assert not alike(base["model"] + " 1.0", again["model"])
    assert not alike(base["model"].replace(".", "x"), again["model"])
    assert not alike("", base["model"])


def test_plans_of_several_hops_are_counted_by_hops(tmp_path: Path) -> None:
    result = flsel.run(settings(tmp_path, selector=FedCat()))
    assert sum(max(map(len, step.plan)) for step in result.rounds) == 6
    assert result.counts.sum() == sum(len(step.clients) for step in result.rounds)


# --- folders that are none, half-written, foreign or damaged ---


def change(name: str, **fields: Any) -> Any:
    def act(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**found, **fields}))

    return act


def write(name: str, content: bytes) -> Any:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str, share: float) -> Any:
    def act(folder: Path) -> None:
        text = (folder / name).read_bytes()
        (folder / name).write_bytes(text[: int(len(text) * share)])

    return act


def change_text(name: str, before: str, after: str) -> Any:
    def act(folder: Path) -> None:
        text = (folder / name).read_text()
        assert before in text
        (folder / name).write_text(text.replace(before, after, 1))

    return act


def repeat_last(name: str) -> Any:
    def act(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join([*lines, lines[-1]]))

    return act


BINARY = bytes(range(256)) * 9
DAMAGES = {
    "no config": (lambda f: (f / "config.yaml").unlink(), "is not the folder of a run: it holds no config"),
    "no summary": (lambda f: (f / "summary.json").unlink(), "is not finished: flsel train --resume"),
    "empty summary": (write("summary.json", b""), r"summary\.json is damaged"),
    "binary summary": (write("summary.json", BINARY), r"summary\.json is damaged"),
    "cut summary": (cut("summary.json", 0.5), r"summary\.json is damaged"),
    "deep summary": (write("summary.json", b"[" * 100_000), r"summary\.json is damaged"),
    "list": (write("summary.json", b"[1]"), r"summary\.json is damaged \(it must hold a JSON object\)"),
    "other version": (change("summary.json", format=7), "has format 7, this flsel reads format 1"),
    "nothing in it": (write("summary.json", b"{}"), "format is missing"),
    "no version": (write("summary.json", b'{"rounds": 6}'), "format is missing"),
    "mistyped rounds": (change("summary.json", rounds="6"), "rounds must be a whole number >= 0"),
    "negative clients": (change("summary.json", clients=-1), "clients must be a whole number >= 0"),
    "mistyped final": (change("summary.json", final={"a": "b"}), "final must be numbers by name"),
    "mistyped prints": (change("summary.json", fingerprints=[]), "fingerprints must be texts by name"),
    "other rounds": (change("summary.json", rounds=9), "ends with round 6, but the run has 9 rounds"),
    "few clients": (change("summary.json", clients=1), "names a client that the run does not have"),
    "no metrics": (lambda f: (f / "metrics.csv").unlink(), r"metrics\.csv has no rows"),
    "cut metrics": (cut("metrics.csv", 0.6), r"metrics\.csv ends with round \d, but the run has 6"),
    "binary metrics": (write("metrics.csv", BINARY), r"metrics\.csv must hold a header with `round`"),
    "empty metrics": (write("metrics.csv", b""), r"metrics\.csv has no rows"),
    "no rounds": (lambda f: (f / "rounds.jsonl").unlink(), r"rounds\.jsonl holds 0 of the run's 6 rounds"),
    "cut rounds": (cut("rounds.jsonl", 0.5), r"rounds\.jsonl holds \d of the run's 6 rounds"),
    "binary rounds": (write("rounds.jsonl", BINARY), r"rounds\.jsonl must hold one JSON object"),
    "mistyped rounds file": (write("rounds.jsonl", b'{"round":0,"plan":3}\n'), r"rounds\.jsonl is damaged"),
    "other seed": (
        change_text("config.yaml", "seed: 0", "seed: 4"),
        "has seed 4, but the run was executed with 0",
    ),
    "other selector": (change_text("config.yaml", "powd.PowD", "md.MD"), "has selector MD, but the run was"),
    "rows twice": (repeat_last("metrics.csv"), r"metrics\.csv is damaged: its rounds do not ascend"),
    "binary config": (write("config.yaml", BINARY), r"config\.yaml is damaged: the file must be YAML text"),
    "text config": (
        write("config.yaml", b"hello"),
        r"config\.yaml is damaged: the file must be a mapping",
    ),
    "bad tag in the config": (
        write("config.yaml", b'seed: !!int ""'),
        r"config\.yaml is damaged: .* tag",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_finished_run_is_one_sentence(folder: Path, damage: str) -> None:
    act, message = DAMAGES[damage]
    act(folder)
    with pytest.raises(UserError, match=message) as caught:
        Result.load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(folder)) * 3


def test_a_damaged_summary_is_written_again_as_the_message_says(folder: Path, whole: Result) -> None:
    (folder / "summary.json").write_bytes(b"{")
    with pytest.raises(UserError) as caught:
        Result.load(folder)
    command = re.search(r"remove it and write it again: flsel (train --resume \S+)\.$", str(caught.value))
    assert command is not None
    (folder / "summary.json").unlink()
    from flsel.commands.cli import main

    assert main(command[1].split()) == 0
    assert Result.load(folder).final == whole.final


def test_a_missing_checkpoint_is_missed_when_the_model_is_asked_for(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    result = Result.load(folder)
    with pytest.raises(UserError, match=r"last\.ckpt is missing, and with it the trained model"):
        _ = result.model
