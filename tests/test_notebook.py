"""In a notebook: one line of progress a cell, no blocks of rich's, results that show themselves."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from runs import settings

import flsel
from flsel.execution.live_table import LiveTable
from flsel.report.notebook import curve, fragment, table
from flsel.runner.terminal import CellLine, in_notebook, open_console
from flsel.selectors import MD


class Cell:
    """A kernel's display: what was shown in blocks, and how often each was written anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: list[list[str]] = []
        self.shell = SimpleNamespace(kernel=object(), execution_count=1)
        display = SimpleNamespace(display=self._display)
        module = SimpleNamespace(get_ipython=lambda: self.shell, display=display)
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setattr(CellLine, "_last", None)
        monkeypatch.setattr(CellLine, "_SECONDS", 0.0)

    def _display(self, shown: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        block: list[str] = []
        self.blocks.append(block)
        return SimpleNamespace(update=lambda shown, raw: block.append(shown["text/html"]))


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    return Cell(monkeypatch)


def test_a_call_shows_one_line_in_a_notebook(tmp_path: Path, cell: Cell, capfd: Any) -> None:
    flsel.run(settings(tmp_path, quiet=False))
    (line,) = cell.blocks
    assert len(line) == 7
    assert '<progress value="1.000" max="1">' in line[-1]
    assert "round 6/6" in line[-1]
    cell.shell.execution_count = 2
    config = settings(tmp_path / "other", quiet=False)
    flsel.compare(config, [MD(), "Uniform"], seeds=2, folder=str(tmp_path))
    _, line = cell.blocks
    assert "4/4 runs done" in line[-1]
    assert capfd.readouterr().out == ""


def test_a_kernel_whose_stream_passes_for_a_terminal_shows_the_same(
    tmp_path: Path, cell: Cell, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar would be written anew into the saved file hundreds of times."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    config = settings(tmp_path, quiet=False)
    flsel.run(config)
    flsel.compare(config, [MD(), "Uniform"], seeds=2, folder=str(tmp_path))
    (line,) = cell.blocks
    assert "4/4 runs done" in line[-1]
    assert capfd.readouterr().out == ""


def test_a_quiet_call_shows_nothing(tmp_path: Path, cell: Cell) -> None:
    flsel.run(settings(tmp_path))
    LiveTable(quiet=True).line("said")
    assert cell.blocks == []


def test_outside_of_a_notebook_there_are_no_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    plain = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", plain)
    assert not in_notebook()
    assert not open_console(io.StringIO()).is_jupyter


def test_a_run_draws_pictures_only_when_asked(tmp_path: Path) -> None:
    result = flsel.run(settings(tmp_path, evaluation=flsel.EvaluationConfig(target=0.3)))
    assert not list(result.folder.glob("*.png"))
    for picture in (result.plot_curves(), result.plot_partition()):
        assert picture._repr_png_().startswith(b"\x89PNG")
    assert result.plot_curves().save(tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
    shown = result._repr_html_()
    last = 100 * result.final["test/accuracy"]
    assert f"Uniform on synthetic: test accuracy {last:.1f} % after 6 rounds. The target 30 % was" in shown
    ElementTree.fromstring(shown)


def test_a_comparison_shows_its_headline_table_and_curves(tmp_path: Path) -> None:
    found = flsel.compare(settings(tmp_path), [MD(), "Uniform"], seeds=2, folder=str(tmp_path))
    shown = found._repr_html_()
    assert found.headline in shown
    assert shown.count("<tr>") == 3
    assert "<svg" in shown
    assert found.folder is not None
    assert not (found.folder / "figures").exists()


def test_a_fragment_is_whole_html() -> None:
    picture = curve([0, 1], [0.5, 0.5], across="rounds", up="a < b", points=[0.1, 0.2])
    shown = fragment("1 < 2", table(["a & b"], [[0.123456], [None], ["<i>"]]), picture, "x")
    root = ElementTree.fromstring(shown)
    assert [cell.text for cell in root.iter("td")] == ["0.1235", "-", "<i>"]
    assert len(list(root.iter("circle"))) == 2
