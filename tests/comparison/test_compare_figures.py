"""Figures for papers, and the comparison from Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import made
import pytest
import runs

import flsel
from flsel.comparison.reporting.chart_data import chart_data
from flsel.comparison.reporting.client_data import POINTS
from flsel.comparison.reporting.draw import drawn
from flsel.comparison.reporting.figures import COLUMN, FORMATS, Drawing
from flsel.comparison.reporting.result_charts import charts
from flsel.errors import UserError
from flsel.files.escaping import chart_text
from flsel.report.style import looks
from flsel.selectors import AFL, Uniform

pytestmark = pytest.mark.figures


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


def svgs(drawings: Sequence[Drawing]) -> list[str]:
    """Render figures as ``render("svg")`` does, in one process for all."""
    return [svg.decode() for (svg,) in drawn([chart_text(drawing.spec) for drawing in drawings], ["svg"])]


def test_every_figure_has_units_and_every_variant(folder):
    found = flsel.compare([folder / "*"], target=0.45)
    figures = {
        "communication rounds": found.plot_curves(),
        "test loss (nats)": found.plot_curves(cost="bytes", measure="loss"),
        "bytes sent": found.plot_cost(), "share of runs": found.plot_target(),
        "test accuracy at the end": found.plot_profile(), "mean rank (1 is best)": found.plot_ranks(),
    }  # fmt: skip
    *shown, pairs = svgs([*figures.values(), found.plot_pairs()])
    for title, svg in zip(figures, shown, strict=True):
        texts = re.findall(r">([^<>]+)</text>", svg)
        assert title in texts
        assert {"Uniform", "PowD", "HiCS"} <= set(texts)
        assert not [text for text in texts if "$" in text], "a placeholder that was not filled"
    assert {"partition.alpha=0.1", "partition.alpha=1.0"} <= set(re.findall(r">([^<>]+)</text>", pairs))


def test_lines_have_round_corners_and_a_caption_that_says_what_they_leave_out(tmp_path):
    """A mitred corner of a spike is drawn far above its value."""
    spike = [0.5, 0.67, 0.5]
    for seed in (1, 2):
        made.run(tmp_path / f"u{seed}", spike, seed=seed)
        made.run(tmp_path / f"p{seed}", spike, selector="PowD", seed=seed)
    found = flsel.compare([tmp_path / "*"], last=1)
    curves = found.plot_curves().render("svg").decode()
    assert curves.count('stroke-linejoin="round"') >= 2
    assert "Lines show" not in found.to_html()
    made.run(tmp_path / "long" / "u", [0.5] * 300, seed=1)
    made.run(tmp_path / "long" / "p", [0.6] * 300, selector="PowD", seed=1)
    assert f"Lines show {POINTS} of 300 evaluations." in flsel.compare([tmp_path / "long" / "*"]).to_html()


def test_figures_are_the_charts_of_the_page(folder):
    """Every chart of a figure is one of the page's specifications, so that one declaration serves both."""
    found = flsel.compare([folder / "*"], target=0.45).analysis
    data, styles = chart_data(found), looks(found.variants)
    page = {chart.name: chart.spec for chart in charts(found, styles, data)}
    paper = {chart.name: chart.spec for chart in charts(found, styles, data, legend=True)}
    assert page.keys() == paper.keys()
    assert {"curves", "cost", "pairs", "arrivals", "survival", "ranks", "profile"} <= page.keys()


def test_a_figure_fits_a_column_and_looks_the_same_in_all(folder):
    found = flsel.compare([folder / "*0*"], target=0.45)
    panels = flsel.compare([folder / "*"], target=0.45)
    *of_variants, pairs = svgs(
        [found.plot_curves(), found.plot_cost(), found.plot_target(), found.plot_pairs()]
    )
    for svg in (*of_variants, pairs, *svgs([panels.plot_curves(), panels.plot_cost(), panels.plot_pairs()])):
        width = re.search(r'width="([0-9.]+)"', svg)
        assert width is not None
        assert float(width[1]) <= COLUMN
    colours = looks(found.analysis.variants)
    for svg in of_variants:
        assert all(look.colour in svg for look in colours.values())


def test_more_variants_than_a_panel_shows_are_drawn_in_several(tmp_path):
    names = [
        "Uniform",
        "PowD",
        "HiCS",
        "FedCor",
        "FedPNS",
        "FedCat",
        "AFL",
        "DivFL",
        "FedGS",
        "MD",
        "GradientNorm",
    ]
    for name in names:
        made.run(tmp_path / name, made.climb(0.5), selector=name)
    curves = flsel.compare([tmp_path / "*"], target=0.45, last=1).plot_curves().spec
    panels = {}
    for row in curves["data"]["values"]:
        panels.setdefault(row["panel"], set()).add(row["variant"])
    assert all("Uniform" in shown and len(shown) <= 8 for shown in panels.values())
    assert set().union(*panels.values()) == set(names)


def test_a_drawing_is_saved_in_the_format_of_its_name(folder, tmp_path):
    drawing = flsel.compare([folder / "*0*"], target=0.45).plot_pairs()
    starts = {"pdf": b"%PDF-1.5", "png": b"\x89PNG", "svg": b"<svg"}
    for kind in FORMATS:
        assert drawing.save(tmp_path / f"x.{kind}").read_bytes().startswith(starts[kind])
    with pytest.raises(UserError, match="format must be one of pdf, svg, png, got 'jpg'"):
        drawing.save(tmp_path / "x.jpg")
    assert not (tmp_path / "x.jpg").exists()
    assert drawing._repr_svg_().startswith("<svg")


def test_figures_that_cannot_be_drawn_are_refused(folder):
    found = flsel.compare([folder / "*0*"], target=0.45)
    with pytest.raises(
        UserError, match=r"cost must be one of rounds, models, bytes, .*, simulated_seconds, got 'time'"
    ):
        found.plot_cost(cost="time")
    with pytest.raises(UserError, match="measure must be one of accuracy, loss, got 'f1'"):
        found.plot_curves(measure="f1")
    with pytest.raises(UserError, match="ranks need two variants, and two scenarios that have them all"):
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


def test_a_comparison_is_executed_from_python(tmp_path):
    config = runs.settings(tmp_path / "unused")
    found = flsel.compare(
        config, [Uniform(), AFL()], seeds=2, baseline="AFL", folder=str(tmp_path / "c"), name="x"
    )
    assert found.analysis.options.baseline == "AFL"
    assert len(found.results) == 4
    again = flsel.compare(tmp_path / "c" / "x")
    assert again.results["accuracy/final"].tolist() == found.results["accuracy/final"].tolist()
    assert any("Pairs are verified" in note for note in again.notes)


def test_all_colours_of_a_figure_differ():
    usual = looks(["Uniform", "FedCat", "PowD"])
    assert len({look.colour for look in usual.values()}) == 3
    assert usual["Uniform"] == looks(["Uniform"])["Uniform"]
    assert len({look.colour for look in looks([f"PowD:d={d}" for d in range(9)]).values()}) == 9
