"""Models that are given as objects from Python: executed, copied, described, and not built from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import flsel
import flsel.errors
from flsel.commands.cli import main
from flsel.config.groups import OutputConfig
from flsel.partition import IID


def config(folder: Path, model: object) -> flsel.RunConfig:
    return flsel.RunConfig(
        rounds=2, clients=6, clients_per_round=2, model=model, quiet=True, output=OutputConfig(str(folder))
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


class Asks(nn.Linear):
    def __init__(self, num_classes=None, input_shape=None):
        super().__init__(input_shape[0], num_classes)


class PassesOn(Asks):
    def __init__(self, scale=2.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale


class AsksNothing(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        assert kwargs == {}
        self.layer = nn.Linear(60, 10)

    def forward(self, x):
        return self.layer(x)


def declared(**kwargs) -> Asks:
    return Asks(**kwargs)


class Tokens(nn.Module):
    """A lazy layer behind an embedding."""

    def __init__(self, num_classes=None):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.LazyLinear(num_classes))

    def forward(self, x):
        return self.net(x)


def test_a_lazy_layer_behind_an_embedding_is_shown_integers(tmp_path):
    x = torch.arange(120).view(40, 3) % 9
    data = flsel.DataConfig(name=(x, torch.arange(40) % 5), server=0, validation=0)
    result = flsel.run(
        flsel.RunConfig(
            rounds=2, clients=3, clients_per_round=2, model=Tokens, data=data, partition=IID(), quiet=True,
            output=OutputConfig(str(tmp_path)),
        )
    )  # fmt: skip
    assert result.model.net[2].weight.shape == (5, 12)
    assert flsel.Result.load(result.folder).model(x).shape == (40, 5)


@pytest.mark.parametrize("made", [PassesOn, AsksNothing, declared])
def test_arguments_that_a_class_passes_on_to_its_base_are_told_too(tmp_path, made):
    assert isinstance(flsel.run(config(tmp_path, made)).model, Asks if made is declared else made)


def test_other_parameters_are_other_settings(tmp_path):
    one, other = (config(tmp_path, nn.Linear(60, 10)).to_dict()["model"] for _ in range(2))
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


def test_a_model_whose_name_became_anothers_is_the_one_that_was_given(tmp_path, monkeypatch):
    def wide(num_classes):
        return nn.Sequential(nn.Linear(60, 32), nn.Linear(32, num_classes))

    def narrow(num_classes):
        return nn.Linear(60, num_classes)

    for made in (wide, narrow):
        made.__qualname__ = "net"
        made.__module__ = "mymodels"
    monkeypatch.setattr("mymodels.net", narrow, raising=False)
    assert config(tmp_path, narrow).to_dict()["model"] == "mymodels.net"
    result = flsel.run(config(tmp_path, wide))
    assert isinstance(result.model, nn.Sequential)
    assert result.settings["model"]["class_path"].endswith("Given")


def test_another_plug_in_whose_name_became_anothers_is_refused(tmp_path, monkeypatch):
    import mymodels

    from flsel.selectors import Uniform

    old = type("Mine", (Uniform,), {"__module__": "mymodels"})
    new = type("Mine", (Uniform,), {"__module__": "mymodels"})
    monkeypatch.setattr(mymodels, "Mine", old, raising=False)
    asked = flsel.RunConfig(selector=old(), output=OutputConfig(str(tmp_path)))
    asked.to_dict()
    monkeypatch.setattr(mymodels, "Mine", new)
    with pytest.raises(flsel.errors.UserError, match=r"selector must be what mymodels\.Mine stands for"):
        flsel.run(asked)
    assert not list(tmp_path.iterdir())
