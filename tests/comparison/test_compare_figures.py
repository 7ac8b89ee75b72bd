"""Figures for papers, and the comparison from Python."""

from __future__ import annotations

from pathlib import Path

import made
import pytest
import runs

import flsel
from flsel.comparison.reporting.figures import FORMATS
from flsel.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, alpha in enumerate((0.1, 1.0)):
        spec = {"class_path": "flsel.partition.dirichlet.Dirichlet", "init_args": {"alpha": alpha}}
        for name, end in (("Uniform", 0.5), ("PowD", 0.6), ("HiCS", 0.7)):
            for seed in (1, 2, 3):
                made.run(
                    tmp_path / f"{name}{number}{seed}", made.climb(end + seed / 100),
                    selector=name, seed=seed, partition=spec,
                )  # fmt: skip
    return tmp_path


def test_every_figure_has_units_and_every_variant(folder):
    found = flsel.compare([folder / "*"], target=0.45)
    drawn = [
        found.plot_curves(), found.plot_curves(cost="bytes", measure="loss"), found.plot_cost(),
        found.plot_target(), found.plot_profile(),
    ]  # fmt: skip
    for figure in drawn:
        assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
        named = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
        assert named == {"Uniform", "PowD", "HiCS"}
    pairs = found.plot_pairs()
    assert len(pairs.axes) == 2
    assert {t.get_text() for t in pairs.axes[0].get_yticklabels()} == {"PowD", "HiCS"}
    assert "mean rank over 2 settings" in found.plot_ranks().axes[0].get_xlabel()


def test_figures_that_cannot_be_drawn_are_refused(folder):
    found = flsel.compare([folder / "*0*"], target=0.45)
    with pytest.raises(
        UserError, match="cost must be one of rounds, models, bytes, passes, seconds, got 'time'"
    ):
        found.plot_cost(cost="time")
    with pytest.raises(UserError, match="measure must be one of accuracy, loss, got 'f1'"):
        found.plot_curves(measure="f1")
    with pytest.raises(UserError, match="ranks need two variants, and two settings that have them all"):
        found.plot_ranks()


def test_files_are_written_and_the_same_numbers_give_the_same_bytes(folder, tmp_path):
    found = flsel.compare([folder / "*"], target=0.45)
    assert repr(found) == "Comparison(folder=None)"
    with pytest.raises(UserError, match=r"has no folder of its own: name one, as in write\('report'\)"):
        found.write()
    paths = found.write(tmp_path / "new" / "report")
    assert paths[0].name == "report.html"
    assert all(path.stat().st_size for path in paths)
    assert {path.suffix.removeprefix(".") for path in paths} >= set(FORMATS)
    before = {path: path.read_bytes() for path in paths}
    found.write(tmp_path / "new" / "report")
    assert {path: path.read_bytes() for path in paths} == before


def test_a_comparison_is_played_from_python(tmp_path):
    config = runs.settings(tmp_path / "unused")
    spec = {
        "config": config,
        "selectors": "Uniform,AFL",
        "seeds": "2",
        "folder": str(tmp_path / "c"),
        "name": "x",
    }
    found = flsel.compare(spec, baseline="AFL")
    assert found.analysis.options.baseline == "AFL"
    assert len(found.results) == 4
    again = flsel.compare(tmp_path / "c" / "x")
    assert again.results["accuracy/final"].tolist() == found.results["accuracy/final"].tolist()
    assert any("Pairs are verified" in note for note in again.notes)


def test_a_setting_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no setting selectrs of a comparison"):
        flsel.compare({"selectrs": "Uniform"})
