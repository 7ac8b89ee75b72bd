"""A file of settings is no program: of what it names, only what a plug-in may be is called."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import settings
from torch import nn

import flsel
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.runner.build import build

OS = {"class_path": "os.system", "init_args": {"command": "touch executed"}}
EVIL: list[Any] = [
    OS,
    {"class_path": "posix.system", "init_args": {"command": "touch executed"}},
    {"class_path": "torch.os.system", "init_args": {"command": "touch executed"}},
    {"class_path": "subprocess.run", "init_args": {"args": ["touch", "executed"]}},
    {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "executed"]}},
    {"class_path": "builtins.exec", "init_args": {"source": "open('executed', 'w')"}},
    {"class_path": "builtins.eval", "init_args": {"source": "open('executed', 'w')"}},
    {"class_path": "builtins.open", "init_args": {"file": "executed", "mode": "w"}},
    {"class_path": "shutil.rmtree", "init_args": {"path": "kept"}},
    {"class_path": "functools.partial", "init_args": {"func": "os.getcwd"}},
    {"class_path": "torch.load", "init_args": {"f": "x.pt", "weights_only": False}},
    {"class_path": "torch.hub.load", "init_args": {"repo_or_dir": ".", "model": "x", "source": "local"}},
    {"class_path": "torch.serialization.load", "init_args": {"f": "x.pt", "weights_only": False}},
    {"class_path": "numpy.load", "init_args": {"file": "x.npy", "allow_pickle": True}},
    {"class_path": "lightning.pytorch.LightningModule.load_from_checkpoint", "init_args": {}},
    {"class_path": "flsel.run", "init_args": {"config": None}},
    {"class_path": "os.getcwd"},
    {"class_path": "antigravity.fly"},
]  # fmt: skip
PLACES = [
    "model", "selector", "partition", "availability", "devices", "objective", "server_optimizer",
    "local.optimizer", "local.lr_schedule", "callbacks", "evaluation.metrics", "data",
]  # fmt: skip


def placed(place: str, evil: dict[str, Any]) -> dict[str, Any]:
    """Return settings with a class at a plug-in point."""
    if place == "data":
        return {"data": {"name": evil["class_path"], "init_args": evil.get("init_args", {})}}
    value: Any = [evil] if place in ("callbacks", "evaluation.metrics") else evil
    for name in reversed(place.split(".")):
        value = {name: value}
    return value


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    return tmp_path


@pytest.mark.parametrize("evil", EVIL, ids=lambda evil: evil["class_path"])
@pytest.mark.parametrize("place", PLACES)
def test_settings_call_nothing_but_plug_ins(place: str, evil: dict[str, Any], here: Path) -> None:
    with pytest.raises(UserError, match=evil["class_path"].rpartition(".")[2]):
        build(RunConfig.from_dict({"rounds": 1, "clients": 6, "clients_per_round": 2, **placed(place, evil)}))
    assert [path.name for path in here.iterdir()] == ["kept"]


class Holds(nn.Linear):
    """A network with arguments of every kind that may name a class or a function."""

    def __init__(
        self,
        untyped=None,
        act=nn.ReLU,
        inner: nn.Module | None = None,
        made: Any = None,
        rates: Callable[[int], float] | None = None,
        norm: Callable[..., nn.Module] = nn.BatchNorm2d,
        **more: Any,
    ) -> None:
        super().__init__(60, 10)
        self.inner, self.untyped = inner, untyped


@pytest.mark.parametrize("evil", EVIL, ids=lambda evil: evil["class_path"])
@pytest.mark.parametrize("name", ["untyped", "act", "inner", "made", "more"])
def test_what_is_nested_follows_the_same_rule(name: str, evil: dict[str, Any], here: Path) -> None:
    nested = {"class_path": "torch.nn.Sequential", "init_args": {"arg": evil}}
    for value in (evil, [evil], nested):
        model = {"class_path": f"{__name__}.Holds", "init_args": {name: value}}
        with suppress(UserError):  # what is no class in its place stays a plain value
            build(RunConfig.from_dict({"rounds": 1, "model": model}))
    assert [path.name for path in here.iterdir()] == ["kept"]


@pytest.mark.parametrize("path", ["os._exit", "os.close", "time.sleep", "builtins.print"])
def test_functions_among_the_arguments_follow_it_too(path: str) -> None:
    for name in ("act", "rates", "norm"):
        with pytest.raises(UserError, match=f"model.{name} "):
            RunConfig.from_dict({"model": {"class_path": f"{__name__}.Holds", "init_args": {name: path}}})


OWN = "call it in a function of your own, and name that."


def no_model() -> Any:
    return 3


def declares() -> int:
    raise AssertionError("called")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (f"{__name__}.no_model", f"make a Module, and {__name__}.no_model returned int."),
        (f"{__name__}.declares", f"make a Module, and {__name__}.declares declares that it returns int."),
        ("os.getcwd", f"cannot be os.getcwd: settings call nothing of Python's standard library; {OWN}"),
        ("torch.hub.load", f"make a Module, and torch.hub.load does not declare what it returns: {OWN}"),
    ],
)  # fmt: skip
def test_what_makes_no_module_is_refused_in_one_sentence(model: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        build(RunConfig.from_dict({"rounds": 1, "model": model}))
    assert str(refused.value).removeprefix("model ").removeprefix("must ") == message


@pytest.mark.parametrize("made", [no_model, lambda: 3, partial(no_model)])
def test_functions_given_from_python_must_make_a_module(made: Any) -> None:
    with pytest.raises(UserError, match=r"model must make a Module, and .* returned int"):
        build(RunConfig(rounds=1, model=made))


def test_what_declares_a_module_is_called() -> None:
    pytest.importorskip("torchvision")
    data = {"data": {"synthetic": {"dimension": 60}}, "clients": 6, "clients_per_round": 2}
    own = {"class_path": f"{__name__}.Holds", "init_args": {"inner": {"class_path": "torch.nn.ReLU"}}}
    built = build(RunConfig.from_dict({**data, "model": own}))
    assert isinstance(built.program.model.inner, nn.ReLU)
    resnet = RunConfig.from_dict({"model": "torchvision.models.resnet18"}).model
    assert isinstance(resnet.build(), nn.Module)


def test_reading_a_run_executes_nothing(here: Path) -> None:
    run = flsel.run(settings(here)).folder
    described = yaml.safe_load((run / "config.yaml").read_text())
    (here / "mine.py").write_text("open('executed', 'w')\ndef make(): open('executed', 'w')\n")
    described["callbacks"] = ["mine.make"]
    (run / "config.yaml").write_text(yaml.safe_dump(described))
    result = flsel.Result.load(run)
    assert isinstance(result.model, nn.Module)
    result.plot_partition()
    result.plot_curves()
    other = flsel.run(settings(here, seed=1)).folder
    shutil.copy(run / "config.yaml", other / "config.yaml")
    (other / "config.yaml").write_text((run / "config.yaml").read_text().replace("seed: 0", "seed: 1"))
    flsel.compare([run, other])
    flsel.resume(run)
    assert not (here / "executed").exists()


class Evil:
    def __reduce__(self) -> Any:
        return open, ("executed", "w")


def test_a_checkpoint_executes_nothing(here: Path) -> None:
    run = flsel.run(settings(here)).folder
    torch.save({"version": 3, "server": Evil()}, run / "checkpoints" / "last.ckpt")
    with pytest.raises(UserError, match="is damaged or not a checkpoint"):
        _ = flsel.Result.load(run).model
    assert not (here / "executed").exists()
