"""Every field of every dataclass of settings refuses what it does not declare, and finds the user's home."""

from __future__ import annotations

import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn, optim

import flsel
import flsel.availability
import flsel.objectives
import flsel.partition
import flsel.selectors
from flsel.arguments import arguments
from flsel.arguments.spec import Spec
from flsel.choosing.choose_config import ChooseConfig
from flsel.commands.cli import main
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.judging.designs import Design
from flsel.comparison.judging.settings import Judging
from flsel.comparison.parse_variants import read_variants
from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig, OutputConfig, TrackConfig
from flsel.config.plugin import plugin
from flsel.config.schema import plugins
from flsel.config.simulated_time import AsyncConfig, TimeConfig
from flsel.data.data_config import DataConfig, SyntheticConfig
from flsel.errors import UserError
from flsel.placing.place_config import PlaceConfig
from flsel.selectors.fedgs import FedGS
from flsel_tune.sweep_config import SweepConfig

SETTINGS: dict[type, str] = {
    RunConfig: "",
    AsyncConfig: "asynchronous.",
    LocalConfig: "local.",
    OutputConfig: "output.",
    EvaluationConfig: "evaluation.",
    TrackConfig: "track.",
    DataConfig: "data.",
    SyntheticConfig: "data.synthetic.",
    ChooseConfig: "",
    CompareConfig: "",
    Judging: "judging.",
    PlaceConfig: "",
    SweepConfig: "",
    TimeConfig: "time.",
    Design: "",
}
REQUIRED: dict[type, dict[str, Any]] = {Design: {"comparisons": 3}}
FIELDS = [(made, name) for made in SETTINGS for name in arguments(made)]
WRONG = [object(), {"steps": 3}, {1: 2}, [object()], "wandb and more", 3 + 4j, b"x", lambda: 3]


def accepts(made: type, name: str, value: Any) -> bool:
    """Whether a field may well hold a value, by a reading of its type that is not the code's own."""
    hint = str(arguments(made)[name].hint)
    return {
        dict: "dict[" in hint and all(isinstance(key, str) for key in value)
        if isinstance(value, dict)
        else False,
        str: "str" in hint.replace("tuple[str", "") and "Literal" not in hint,
        type(lambda: 3): "Callable" in hint and "tuple" not in hint,
    }.get(type(value), False)


@pytest.mark.parametrize(("made", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_a_wrong_type_is_refused_by_its_key(made: type, name: str) -> None:
    for value in WRONG:
        if accepts(made, name, value):
            continue
        with pytest.raises(
            UserError, match=rf"^{re.escape(SETTINGS[made] + name)} must be .*, got "
        ) as caught:
            made(**{**REQUIRED.get(made, {}), name: value})
        assert "\n" not in str(caught.value)


def test_every_dataclass_of_settings_is_tried() -> None:
    root = Path(flsel.selectors.__file__).parents[2]
    files = [path for part in ("flsel", "tune") for path in (root / part).rglob("*.py")]
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in files]
    assert (
        sum(text.count("check_settings(self") for _, text in texts) == len(SETTINGS) - 2
    )  # those of a comparison's judge, and of commands that execute runs, are of one base each
    unchecked = [name for name, text in texts if "check_arguments(type(self), vars(self)" in text]
    assert unchecked == ["declared.py"]  # plug-ins, whose arguments may be anybody's classes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": lambda: 3}, "data must be a DataConfig object, such as data=DataConfig(), got <function"),
        ({"local": {"steps": 3}}, "local must be a LocalConfig object, such as local=LocalConfig(), got {'"),
        ({"track": "wandb"}, "track must be a TrackConfig object, such as track=TrackConfig(), got 'wandb'."),
        ({"model": "my.Net"}, "model must be a class or a function that makes a Module, got 'my.Net'."),
        ({"model": LocalConfig}, "model must be a class or a function that makes a Module, got <class"),
        ({"server_optimizer": 1.0}, "server_optimizer must be a class or a function that makes an Opt"),
        ({"callbacks": EarlyStopping}, "callbacks must be a list, each item a class or a function"),
        ({"callbacks": (EarlyStopping("test/loss"),)}, "callbacks must be a list, each item a class"),
        ({"selector": FedGS}, "selector must be a Selector object, such as selector=Uniform(), got <class"),
    ],
)  # fmt: skip
def test_what_the_sentence_says(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        RunConfig(**changes)
    assert str(caught.value).startswith(sentence)


def test_what_is_right_is_taken() -> None:
    RunConfig(
        seed=np.int64(3),  # type: ignore[arg-type]
        model=nn.Linear(3, 3),  # type: ignore[arg-type]
        local=LocalConfig(optimizer=partial(optim.Adam, lr=0.1), lr_schedule=lambda made: made),  # type: ignore[arg-type]
        server_optimizer=Spec("torch.optim.SGD", {"lr": 1.0}, "server_optimizer"),
        callbacks=[partial(EarlyStopping, "test/loss"), lambda: EarlyStopping("test/loss")],  # type: ignore[arg-type]
        track=TrackConfig(tags=["a", "b"]),  # type: ignore[arg-type]
        data=DataConfig("npz", path="x.npz", init_args={}),
    )


def offered() -> list[tuple[type, str]]:
    """Every argument of settings and of classes that flsel brings along."""
    homes = (flsel.selectors, flsel.partition, flsel.availability, flsel.objectives)
    classes = {made for asked in plugins().values() for made in asked.classes().values()}
    ours = {made for made in classes if made.__module__.startswith("flsel.")}
    assert len(ours) > len(homes)
    return [(made, name) for made in (*SETTINGS, *sorted(ours, key=str)) for name in arguments(made)]


def test_every_argument_that_is_a_path_is_declared_as_one() -> None:
    said = re.compile(r"\b(directory|(?<!import )path of a|YAML file|folder of all)\b", re.IGNORECASE)
    for made, name in offered():
        text = re.search(rf"^\s+{name}: (.*?)(?=^\s+\w+: |\Z)", inspect.getdoc(made) or "", re.M | re.S)
        argument = arguments(made)[name]
        if text and said.search(text[1]) and "str" in str(argument.hint) and plugin(argument.hint) is None:
            assert argument.path, f"{made.__name__}.{name} must be declared as UserPath"


def test_every_declared_path_finds_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    np.save(tmp_path / "f.npy", np.eye(3))
    marked = [(made, name) for made, name in offered() if arguments(made)[name].path]
    names = {"root", "path", "dir", "folder", "variants", "space", "graph", "start_from"}
    assert names == {name for _, name in marked}
    for made, name in marked:
        beside = {"name": "npz"} if (made, name) == (DataConfig, "path") else {}  # which reads a path
        assert getattr(made(**{name: "~/f.npy"}, **beside), name) == str(tmp_path / "f.npy")
    assert (
        Spec("flsel.selectors.FedGS", {"graph": "~/f.npy"}, "selector").build().graph == f"{tmp_path}/f.npy"
    )
    with pytest.raises(UserError, match="there is no home folder for ~nobody-there/x"):
        OutputConfig("~nobody-there/x")


def test_pictures_and_features_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    np.save(home / "f.npy", torch.eye(30).numpy())
    assert main(["data", "--picture=~/new/p.png"]) == 0
    assert (home / "new/p.png").is_file()
    words = [
        "--rounds",
        "1",
        "--selector",
        "FedGS",
        "--selector.graph=~/f.npy",
        "--output.dir=~/runs",
        "--quiet",
    ]
    assert main(["train", *words]) == 0, capsys.readouterr().err
    assert [path.name for path in (home / "runs").iterdir()] == ["synthetic-fedgs-s0"]
    assert not list(here.iterdir())


def test_a_file_of_variants_names_a_config_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = RunConfig().to_dict()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    tuned = {**base, "selector": {"class_path": "PowD", "init_args": {"d": 7}}}
    (tmp_path / "home/mine.yaml").write_text(yaml.safe_dump(tuned))
    (tmp_path / "v.yaml").write_text("tuned: ~/mine.yaml\n")
    (variant,) = read_variants(str(tmp_path / "v.yaml"), base)
    assert variant.name == "tuned"
    assert variant.changes["selector"]["init_args"]["d"] == 7


@pytest.mark.parametrize("taken", [flsel.Result.load, flsel.resume])
@pytest.mark.parametrize("given", [3, None, ["runs"]])
def test_what_is_no_path_is_refused(taken: Any, given: Any) -> None:
    with pytest.raises(UserError, match=r"a file or folder is a text or a pathlib\.Path, got "):
        taken(given)


def test_settings_that_are_no_mapping_and_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match=r'settings must be a mapping, such as {"rounds": 50}, got \[1\]'):
        RunConfig.from_dict([1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"RunConfig\.__init__\(\) got an unexpected keyword argument 'foo'"):
        RunConfig(foo=1)  # type: ignore[call-arg]
