"""Models that are given as objects from Python: played, copied, described, and not built from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import flsel
import flsel.errors
from flsel.commands.cli import main
from flsel.config.describe import describe
from flsel.config.groups import OutputConfig


def config(folder: Path, model: object) -> flsel.RunConfig:
    return flsel.RunConfig(
        rounds=2, clients=6, budget=2, model=model, quiet=True, output=OutputConfig(str(folder))
    )


def test_a_model_object_is_trained_as_a_copy_of_it(tmp_path):
    net = nn.Linear(60, 10)
    before = net.weight.detach().clone()
    first, second = (flsel.run(config(tmp_path, net)) for _ in range(2))
    assert torch.equal(net.weight, before)
    assert first.final == second.final
    assert first.fingerprints["model"] == second.fingerprints["model"]
    assert isinstance(first.model, nn.Linear)
    assert not torch.equal(first.model.weight, before)


def test_a_function_without_a_path_is_told_the_shapes_it_asks_for(tmp_path):
    result = flsel.run(config(tmp_path, lambda num_classes: nn.Linear(60, num_classes)))
    assert result.model.out_features == 10


def test_other_parameters_are_other_settings(tmp_path):
    one, other = (describe(config(tmp_path, nn.Linear(60, 10)))["model"] for _ in range(2))
    assert one["init_args"]["name"] == "Linear"
    assert one != other


def test_no_file_builds_it_again(tmp_path, capsys):
    folder = flsel.run(config(tmp_path, nn.Linear(60, 10))).folder
    with pytest.raises(flsel.errors.UserError, match="given as an object from Python"):
        flsel.Result.load(folder).model.eval()
    (folder / "summary.json").unlink()
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["train", "--resume", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Linear was given as an object from Python" in said
    assert {path: path.read_bytes() for path in files} == files
