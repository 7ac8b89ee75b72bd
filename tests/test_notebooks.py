"""The notebooks of the docs run, cell by cell, with fewer rounds and seeds."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first-comparison", "how-long", "own-selector"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch's threads beside those of other tests would wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("here", "one_thread")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("notebook_of_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    shown = 0
    for cell in cells(path):
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        source = re.sub(r"rounds=\d+", "rounds=4", "".join(cell["source"]))
        source = re.sub(r"\bseeds=\d+", "seeds=2", source)
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), module.__dict__)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), module.__dict__)
            for name in ("_repr_html_", "_repr_svg_"):
                if hasattr(value, name):
                    assert getattr(value, name)().startswith(("<div", "<svg"))
                    shown += 1
    assert shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_links_lead_somewhere(path: Path) -> None:
    texts = ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "markdown"]
    links = re.findall(r"\]\(([^)#]+)", "\n".join(texts))
    assert links
    assert all((FOLDER / link).exists() for link in links)
