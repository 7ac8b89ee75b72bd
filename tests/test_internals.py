"""What libraries do not document is used by one module for each library, and by no other."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import Timer

from flsel.execution.on_ray import ray_internals
from flsel.local import lightning_internals
from flsel.runner.callbacks import check_callbacks

ROOT = Path(__file__).parents[1]
FILES = [path for home in ("flsel", "tune/flsel_tune") for path in sorted((ROOT / home).rglob("*.py"))]
OURS = {"flsel", "flsel_tune"}
# Documented although it begins with an underscore, and the type of a hash, which has no other name.
DOCUMENTED = {("os", "_exit"), ("hashlib", "_Hash")}
# Methods of every named tuple, documented under these names.
OF_NAMED_TUPLES = {"_asdict", "_replace", "_fields", "_field_defaults", "_make"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES | {"_"}


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """All modules, but for those that may use what is not documented."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in FILES
        if not path.stem.endswith("_internals")
    }


@functools.cache
def own_names() -> frozenset[str]:
    """Private names that flsel's own classes and modules define."""
    found: set[str] = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if getattr(node.value, "id", None) in ("self", "cls") else set()
    return frozenset(name for name in found if is_private(name))


def uses(tree: ast.Module, own: frozenset[str]) -> Iterator[str]:
    """List the private names of others that a module uses: attributes, imports, and names as texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            if (getattr(node.value, "id", None), node.attr) not in DOCUMENTED:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            names = [*module.split("."), *(alias.name for alias in node.names)]
            if module.partition(".")[0] not in OURS and any(map(is_private, names)):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Import):
            if any(is_private(part) for alias in node.names for part in alias.name.split(".")):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call):
            texts = [given.value for given in node.args if isinstance(given, ast.Constant)]
            parts = [part for text in texts if isinstance(text, str) for part in text.split(".")]
            if not own.issuperset(part for part in parts if part.isidentifier() and is_private(part)):
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_no_other_module_uses_what_is_not_documented() -> None:
    assert 0 < len(trees()) < len(FILES)
    found = [
        f"{path.relative_to(ROOT)}:{use}" for path, tree in trees().items() for use in uses(tree, own_names())
    ]
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._foreach_add_([], [])",
        "from torch.utils._pytree import tree_flatten",
        "import ray._private.worker",
        "from torch.nn.modules.batchnorm import _BatchNorm as Norm",
        "getattr(tensor, '_version', 0)",
        "import_module('ray._private.worker')",
        "trial._trial_id",
    ],
)
def test_such_a_use_is_seen(code: str) -> None:
    assert [*uses(ast.parse(code), own_names())]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "flsel"]
    caplog.clear()
    return found


def test_reports_of_ray_that_cannot_be_hushed_are_announced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_internals, "_WORKER", "ray._private.gone")
    ray_internals.hush_reports()
    ray_internals.hush_reports()
    (said,) = messages(caplog)
    assert "has no ray._private.gone.print_to_stdstream: tracebacks of dead processes" in said


def test_a_timer_whose_interval_is_unknown_is_accepted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lightning_internals._warn.cache_clear()
    timer = Timer({"days": 1}, interval="epoch")
    check_callbacks([timer])
    assert not messages(caplog)
    del timer._interval
    check_callbacks([timer, timer])
    (said,) = messages(caplog)
    assert "has no Timer._interval" in said


def test_a_trainer_whose_signals_cannot_be_left_alone_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lightning_internals._warn.cache_clear()
    for _ in range(2):
        lightning_internals.leave_signals(SimpleNamespace())
    (said,) = messages(caplog)
    assert "has no Trainer._signal_connector" in said
