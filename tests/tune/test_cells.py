"""A comparison's cells played side by side are those played one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs

from flsel.comparison.config import CompareConfig
from flsel.comparison.drive import resume, start


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_side_by_side_gives_the_same_runs(tmp_path):
    config = runs.settings(tmp_path / "unused", threads=1)
    one = start(config, CompareConfig(selectors="Uniform,AFL", seeds="2", name="one"), "")
    many = start(config, CompareConfig(selectors="Uniform,AFL", seeds="1", name="many", max_concurrent=2), "")
    more = resume(many.folder, CompareConfig(seeds="2", max_concurrent=2), "")
    assert len(more.analysis.runs) == 4
    for run in more.analysis.runs:
        assert run.status == "complete"
        other = one.folder / run.folder.relative_to(many.folder)
        assert runs.same(runs.left_behind(run.folder), runs.left_behind(other))
