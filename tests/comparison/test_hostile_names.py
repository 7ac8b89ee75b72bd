"""Reports of runs with names that mean something to a page or a library, and reports without memory."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import made
import pytest

from flsel.comparison.compare import compare_runs
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.comparison import Comparison
from flsel.comparison.reporting import draw, webpage
from flsel.errors import UserError

pytestmark = pytest.mark.figures
NAMES = [
    "constructor",
    "__proto__",
    "toString",
    "<!--<script>",
    "[a](javascript:x)",
    "a\x1b[2J\nb",
    "\u202ex",
]


def compared(folder: Path, *names: str) -> Comparison:
    """A comparison of made-up runs, by the names of their selectors."""
    for number, name in enumerate(names):
        for seed in (1, 2):
            made.run(
                folder / "runs" / f"{number}{seed}", made.climb(0.5 + number / 20), selector=name, seed=seed
            )
    return replace(compare_runs([str(folder / "runs" / "*")], CompareConfig()), folder=folder)


def test_names_are_texts_in_every_file(tmp_path: Path) -> None:
    written = compared(tmp_path, "Uniform", *NAMES).write()
    assert {path.name for path in written} >= {"report.html", "report.md", "curves.svg", "curves.pdf"}
    texts = {
        p.name: p.read_text(encoding="utf-8") for p in written if p.suffix in (".html", ".md", ".csv", ".tex")
    }
    for text in texts.values():
        assert not set(text) & {"\x1b", "\u202e"}
    assert "<script" not in texts["report.md"].replace("\\<", "")
    assert "](" not in texts["report.md"]
    page = texts["report.html"]
    assert page.count("<!--<script>") == 0
    (data,) = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    words = set(json.loads(data)["data"]["curves"]["columns"]["variant"]["words"])
    assert {"constructor\u00a0", "__proto__\u00a0"} <= words
    assert not {"constructor", "__proto__"} & words
    svg = (tmp_path / "figures" / "curves.svg").read_text(encoding="utf-8")
    assert all(name in svg for name in ("constructor", "__proto__", "toString"))


def test_a_report_outlives_the_process_that_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    webpage.library.cache_clear()
    started = tmp_path / "started"
    code = f"import os, signal; open({str(started)!r}, 'a').write('x'); os.kill(os.getpid(), signal.SIGTRAP)"
    monkeypatch.setattr(draw, "_START", code)
    with caplog.at_level(logging.WARNING, "flsel"):
        written = compared(tmp_path, "Uniform", "PowD").write()
    names = {path.name for path in written}
    assert names >= {"report.html", "report.md", "results.csv", "table.tex"}
    assert not any(name.endswith(("svg", "pdf", "png")) for name in names)
    assert "The charts are missing: vl-convert was ended by SIGTRAP" in (tmp_path / "report.html").read_text()
    assert len(caplog.messages) == 2
    assert "figures lacks the figures curves, cost" in caplog.messages[1]
    assert started.read_text() == "xx"  # one for the page, and one for all figures


def test_a_figure_that_cannot_be_drawn_is_one_sentence() -> None:
    right: dict[str, Any] = {"data": {"values": [{"a": 1}]}, "mark": "bar", "encoding": {"x": {"field": "a"}}}
    refused, made = draw.drawn([{"mark": 3}, right], ["svg"])
    assert isinstance(refused, UserError)
    assert str(refused).startswith("vl-convert failed: Vega")
    assert "\n" not in str(refused)
    assert not isinstance(made, UserError), "the next figure is fine"
    assert made[0].startswith(b"<svg")


def test_too_little_memory_costs_the_figures_only(tmp_path: Path) -> None:
    made_: Any = compared(tmp_path, "Uniform", "PowD")
    assert made_.analysis.variants
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)); "
        "from flsel.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "compare", "runs/*"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.rglob("report.md")
    assert page.is_file()
