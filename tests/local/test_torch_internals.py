"""Without a name that torch does not document, flsel starts, says so, and trains client by client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flsel.local import torch_internals
from flsel.local.torch_internals import USED, own_buffers, own_parameters

# Torch is imported once, and names are removed in processes of their own that are forked from there.
SCRIPT = """
import json, logging, os, sys, traceback
import jsonargparse, numpy, yaml
import torch, torch.func, torch.fx, torch.utils._pytree, torch.utils._python_dispatch
from torch import nn

used, groups, folder = json.loads(sys.argv[1])


class Gone:
    def __get__(self, owner, kind=None):
        raise AttributeError("gone")


def without(name):
    "Remove a name while flsel is imported; returns what puts it back, as torch cannot do without."
    owner, _, leaf = name.rpartition(".")
    if owner == "torch.Tensor":
        setattr(torch.Tensor, leaf, Gone())
        return lambda: delattr(torch.Tensor, leaf)
    if owner.endswith("()"):
        home, _, kind = owner.removesuffix("()").rpartition(".")
        home, real = (nn if home == "torch.nn" else torch.optim), getattr(sys.modules[home], kind)
        other = type(kind, (), {"__init__": lambda self, *given: vars(self).update(
            {key: value for key, value in vars(real(*given)).items() if key != leaf})})
        setattr(home, kind, other)
        return lambda: setattr(home, kind, real)
    if owner.startswith("torch.ops.aten.") and leaf == "default":
        packet, names = owner.rpartition(".")[2], type(torch.ops.aten)
        find = names.__getattr__
        def other(self, name):
            if name == packet:
                raise AttributeError(name)
            return find(self, name)
        vars(torch.ops.aten).pop(packet, None)
        names.__getattr__ = other
        return lambda: setattr(names, "__getattr__", find)
    value = torch
    for part in owner.split(".")[1:]:
        value = getattr(value, part)
    found = getattr(value, leaf)
    delattr(value, leaf)
    return lambda: setattr(value, leaf, found)


def back(restores):
    for restore in reversed(restores):
        restore()


def gone(names):
    "Import without names; returns those that are missed."
    restores = [without(name) for name in names]
    from flsel.local import torch_internals
    back(restores)
    return torch_internals.gone()


def trained(names):
    "Train without names; returns what was said, and the model's bits."
    # Nothing else can be derived from the substitute of a class.
    kept = [without(name) for name in names if "()" not in name]
    classes = [without(name) for name in names if "()" in name]
    import flsel.local.torch_internals
    back(classes)
    import flsel.commands.train
    from flsel import RunConfig
    from flsel.config.groups import LocalConfig
    from flsel.runner.build import build
    from flsel.selectors import PowD
    back(kept)
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("flsel").addHandler(handler)
    local = LocalConfig(backend="auto" if names else "sequential")
    settings = {"clients": 6, "clients_per_round": 3, "rounds": 2, "selector": PowD(d=4), "local": local}
    server = build(RunConfig(**settings)).server
    server.step()
    server.step()
    return said, [value.numpy().tobytes().hex() for value in server.params.values()]


def forked(call, names, file):
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    try:
        found = call(names)
    except BaseException:
        found = [traceback.format_exc()], None
    with open(f"{folder}/{file}.json", "w") as stream:
        json.dump(found, stream)
    os._exit(0)


for name in used:
    forked(gone, [name], name)
for number, names in enumerate([[], *groups]):
    forked(trained, names, number)
"""
# All are gone in a few trainings, and those of a kind in several of them.
GROUPS = [USED[start::4] for start in range(4)]


def trained(folder: Path, number: int) -> tuple[list[str], list[str]]:
    said, bits = json.loads((folder / f"{number}.json").read_text())
    assert bits, said
    return said, bits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is missed without each name, and what was trained without groups of them: 0 has all."""
    folder = tmp_path_factory.mktemp("gone")
    given = json.dumps([USED, GROUPS, str(folder)])
    done = subprocess.run([sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_is_gone() -> None:
    assert torch_internals.gone() == ()
    assert len(USED) == len(set(USED)) > 20


def test_every_name_may_be_gone_and_is_named(folder: Path) -> None:
    for name in USED:
        assert json.loads((folder / f"{name}.json").read_text()) == [name]


@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_flsel_trains_client_by_client_without(number: int, folder: Path) -> None:
    said, bits = trained(folder, number + 1)
    (line,) = said  # once, although two runs were built
    assert line == (
        f"torch {torch.__version__} has no {', '.join(GROUPS[number])}, which training clients together "
        "needs: clients train one by one, as with local.backend sequential"
    )
    assert bits == trained(folder, 0)[1]


class Layer(nn.Module):
    """Has buffers and parameters of each kind, and one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.again = self.weight
        self.register_parameter("bias", None)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.tensor(3), persistent=False)
        self.inner = nn.BatchNorm1d(2)


def test_documented_names_tell_the_same_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer()
    parameters = {name: value for name, value in own_parameters(layer).items() if value is not None}
    assert own_buffers(layer)["mean"] is layer.mean

    def hidden(module: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(torch_internals, "vars", hidden, raising=False)
    assert [*own_parameters(layer)] == [*parameters] == ["weight", "again"]
    assert all(own_parameters(layer)[name] is value for name, value in parameters.items())
    assert own_buffers(layer) == {}


def test_tensors_are_copied_without_one_call_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_internals, "_foreach_copy_", None)
    to, values = [torch.zeros(2), torch.zeros(3)], [torch.randn(2), torch.randn(3)]
    torch_internals.copy_all(to, values)
    assert all(torch.equal(one, value) for one, value in zip(to, values, strict=True))


def test_where_torch_counts_no_writes_no_two_marks_are_equal() -> None:
    tensor = torch.zeros(2)
    before = torch_internals.writes_to(tensor)
    assert before == torch_internals.writes_to(tensor)
    tensor.add_(1)
    assert before != torch_internals.writes_to(tensor)
    untold: Any = object()
    assert torch_internals.writes_to(untold) != torch_internals.writes_to(untold)
    assert torch_internals.writes_to(untold, unknown=0) == 0
