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

# Torch is imported once, and each name is removed in a process of its own that is forked from there.
SCRIPT = """
import json, logging, os, sys, traceback
import jsonargparse, numpy, yaml
import torch, torch.func, torch.fx, torch.utils._pytree, torch.utils._python_dispatch
from torch import nn

used, folder = json.loads(sys.argv[1])


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


def trained(name):
    "Train without a name; returns what was said, and the model's bits."
    restore = without(name) if name else (lambda: None)
    import flsel.local.torch_internals
    if "()" in name:
        restore()  # nothing else can be derived from the substitute
    import flsel.commands.train
    from flsel import RunConfig
    from flsel.config.groups import LocalConfig
    from flsel.runner.build import build
    from flsel.selectors import PowD
    restore()
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("flsel").addHandler(handler)
    local = LocalConfig(backend="auto" if name else "sequential")
    settings = {"clients": 6, "clients_per_round": 3, "rounds": 2, "selector": PowD(d=4), "local": local}
    server = build(RunConfig(**settings)).server
    server.step()
    server.step()
    return said, [value.numpy().tobytes().hex() for value in server.params.values()]


for number, name in enumerate(["", *used]):
    if not (pid := os.fork()):
        try:
            found = trained(name)
        except BaseException:
            found = [traceback.format_exc()], None
        with open(f"{folder}/{number}.json", "w") as file:
            json.dump(found, file)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def found(folder: Path, number: int) -> tuple[list[str], list[str]]:
    said, bits = json.loads((folder / f"{number}.json").read_text())
    assert bits, said
    return said, bits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was trained without each name, by its place in the list; 0 has all and trains client by client."""
    folder = tmp_path_factory.mktemp("gone")
    given = json.dumps([USED, str(folder)])
    done = subprocess.run([sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_is_gone() -> None:
    assert torch_internals.gone() == ()
    assert len(USED) == len(set(USED)) > 20


@pytest.mark.parametrize("name", USED)
def test_flsel_trains_client_by_client_without(name: str, folder: Path) -> None:
    said, bits = found(folder, USED.index(name) + 1)
    (line,) = said  # once, although two runs were built
    assert line == (
        f"torch {torch.__version__} has no {name}, which training clients together needs: clients train one "
        "by one, as with local.backend sequential"
    )
    assert bits == found(folder, 0)[1]


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
