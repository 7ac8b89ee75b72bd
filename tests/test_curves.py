import subprocess
import sys

import matplotlib.figure
import numpy as np
import pytest
from PIL import Image

from flsel.errors import UserError
from flsel.report.curves import curves_figure
from flsel.report.style import save_figure


def rows(rounds, names=("test", "validation")):
    return [
        {
            "round": t,
            **{f"{n}/accuracy": 1 - 1 / (t + 2) for n in names},
            **{f"{n}/loss": 1 / (t + 1) for n in names},
        }
        for t in rounds
    ]


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_curves_show_what_was_measured():
    metrics = rows(range(0, 50, 5))
    accuracy, loss = curves_figure(metrics, title="a run").axes
    for axes, kind in ((accuracy, "accuracy"), (loss, "loss")):
        for name in ("test", "validation"):
            x, y = lines(axes)[name].get_data()
            assert list(x) == [row["round"] for row in metrics]
            assert list(y) == [row[f"{name}/{kind}"] for row in metrics]
    assert accuracy.get_xlabel() == loss.get_xlabel() == "communication round"


def test_series_differ_in_colour_and_in_line_style():
    metrics = [
        row | {"client_train/accuracy_mean": 0.4, "client_train/accuracy_worst10": 0.1}
        for row in rows(range(5))
    ]
    drawn = lines(curves_figure(metrics, title="x").axes[0])
    assert set(drawn) == {"test", "validation", "clients' mean training", "clients' worst 10 % of training"}
    assert len({line.get_color() for line in drawn.values()}) == 4
    assert len({line.get_linestyle() for line in drawn.values()}) == 4


def test_only_what_is_there_is_drawn():
    figure = curves_figure(rows(range(5), ("test",)), title="x")
    assert [set(lines(axes)) for axes in figure.axes] == [{"test"}, {"test"}]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["test"]


@pytest.mark.parametrize(
    ("target", "text"), [(0.8, "target 0.8 (round 3)"), (0.99, "target 0.99 (not reached)")]
)
def test_the_target_tells_when_it_was_reached(target, text):
    figure = curves_figure(rows(range(10)), title="x", target=target)
    assert list(lines(figure.axes[0])[text].get_ydata()) == [target, target]
    assert figure.axes[0].get_ylim()[1] > target


def test_participation_is_sorted_and_has_its_mean():
    figure = curves_figure(rows(range(3)), title="x", counts=[1, 5, 0, 2])
    panel = figure.axes[2]
    assert list(panel.patches[0].get_data().values) == [5, 2, 1, 0]
    assert list(lines(panel)["mean 2"].get_ydata()) == [2, 2]


def test_non_finite_values_are_gaps():
    metrics = rows(range(4), ("test",))
    metrics[1]["test/loss"], metrics[2]["test/loss"] = float("nan"), float("inf")
    x, y = lines(curves_figure(metrics, title="x").axes[1])["test"].get_data()
    assert list(x) == [0, 3]
    assert np.isfinite(y).all()


def test_a_loss_over_decades_gets_a_logarithmic_axis():
    metrics = [{"round": t, "test/loss": loss} for t, loss in enumerate((1e4, 3.0, 1.0))]
    assert curves_figure(metrics, title="x").axes[1].get_yscale() == "log"
    assert curves_figure(metrics[1:], title="x").axes[1].get_yscale() == "linear"


@pytest.mark.parametrize("metrics", [rows([0]), [{"round": 0}]], ids=["one row", "nothing measured"])
@pytest.mark.parametrize("counts", [None, [0], [0] * 1000])
def test_small_runs_make_a_picture(tmp_path, metrics, counts):
    figure = curves_figure(metrics, title="x", target=0.5, counts=counts)
    save_figure(figure, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as image:
        assert image.format == "PNG"
        assert image.width > 1000
    low, high = figure.axes[0].get_xlim()
    assert high - low >= 2


def test_the_same_rows_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        save_figure(curves_figure(rows(range(30)), title="x", counts=[3, 1]), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_letters_are_not_left_to_latex(tmp_path):
    """Which may not be there, and takes what follows a % in a name for a comment."""
    with matplotlib.rc_context({"text.usetex": True}):
        figure = curves_figure(rows(range(9)), title="x_1, 5 %", counts=[3, 1])
        save_figure(figure, tmp_path / "a.png")
    assert not any(text.get_usetex() for text in figure.findobj(matplotlib.text.Text))


def test_a_figure_that_cannot_be_saved_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        save_figure(matplotlib.figure.Figure(), tmp_path / "gone" / "a.png")


def test_pyplot_is_never_loaded_and_matplotlib_only_when_drawing():
    code = (
        "import sys; from flsel.report.curves import curves_figure\n"
        "assert 'matplotlib' not in sys.modules\n"
        "curves_figure([{'round': 0, 'test/loss': 1.0}], title='x')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
