"""The evidence: every cell has a config that takes its settings; tables and curves of tiny runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from runs import SMALL, settings

from flsel.config.groups import EvaluationConfig
from flsel.config.layers import words
from flsel.config.parser import parse
from flsel.runner.play import run

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))
from evidence import EXPERIMENTS, PAPERS, folder_of, report  # noqa: E402
from evidence_cells import Cell, Experiment  # noqa: E402
from evidence_entropy import CONFIGS, Measured, draw_entropies, entropy_table, measure  # noqa: E402
from evidence_figures import curves, draw  # noqa: E402
from evidence_measures import (  # noqa: E402
    Measure,
    accuracy_until,
    best_loss,
    last_accuracy,
    rounds_to_stay,
    rounds_to_target,
    share_of,
)
from evidence_tables import show, table, tables  # noqa: E402

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Folders of three seeds of a tiny run."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        run(settings(folder, seed=seed, evaluation=EvaluationConfig(target=0.5, stop_at_target=False)))
    return dict(enumerate(sorted(folder.iterdir()), 1))


def experiment(*measures, **changes):
    cells = (Cell("FedAvg", "IDL", "a.yaml", ()), Cell("Other", "IDL", "a.yaml", ()))
    return Experiment("Losses", cells, measures, "test/loss", **changes)


def written(folder, accuracies, target=0.5):
    """A run's folder with these accuracies, one a round."""
    folder.mkdir()
    rows = [f"{round},{accuracy}" for round, accuracy in enumerate(accuracies)]
    (folder / "metrics.csv").write_text("\n".join(["round,test/accuracy", *rows]) + "\n")
    (folder / "summary.json").write_text(json.dumps({"target": target}))
    return folder


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_parses_with_its_settings(name):
    """Every row and every column once: a cell's settings are its row's and its column's."""
    first, *_ = cells = EXPERIMENTS[name]().cells
    for cell in (cell for cell in cells if cell.row == first.row or cell.column == first.column):
        given = ["--config", str(PAPERS / cell.config), *cell.settings]
        assert parse(words(given)).seed == 1


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cells_differ_and_the_papers_numbers_have_a_cell(name):
    made = EXPERIMENTS[name]()
    places = [(cell.row, cell.column) for cell in made.cells]
    assert len(set(places)) == len(places)
    assert len({(cell.config, cell.settings) for cell in made.cells}) == len(places)
    assert all(set(measure.paper) <= set(places) for measure in made.measures)
    assert {measure.baseline for measure in made.measures} <= {None, *(row for row, _ in places)}
    assert set(made.drawn or ()) <= {row for row, _ in places}
    assert set(made.target) <= {column for _, column in places}


def test_entropy_configs_are_there():
    assert all((PAPERS / file).is_file() for file in CONFIGS.values())


def test_measures_of_a_run(seeds):
    losses = np.loadtxt(seeds[1] / "metrics.csv", delimiter=",", skiprows=1, usecols=(1, 2))
    assert best_loss(seeds[1]) == losses[:, 0].min()
    assert last_accuracy(seeds[1]) == pytest.approx(100 * losses[-10:, 1].mean())
    assert rounds_to_target(seeds[1]) == next((i for i, high in enumerate(losses[:, 1]) if high >= 0.5), None)


def test_measures_of_known_accuracies(tmp_path):
    jumpy = written(tmp_path / "jumpy", [0.0] * 10 + [1.0] + [0.0] * 9 + [1.0] * 20)
    assert rounds_to_stay(jumpy) == 20 + 8 - 1  # Eight of the last fifteen.
    assert accuracy_until(jumpy, 10) == pytest.approx(10.0)
    assert last_accuracy(jumpy) == pytest.approx(100.0)
    assert rounds_to_stay(written(tmp_path / "low", [0.4] * 30)) is None


def test_share_of_clients(tmp_path):
    plans = [[[0], [1]], [[1, 2]], [[3], [0]]]
    lines = [json.dumps({"round": round, "plan": plan}) for round, plan in enumerate(plans)]
    (tmp_path / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    assert share_of(tmp_path, range(0, 2), 1, 3) == pytest.approx(100 * 4 / 6)
    assert share_of(tmp_path, range(0, 2), 2, 2) == pytest.approx(50.0)
    assert share_of(tmp_path, range(3, 4), 2, 3) == pytest.approx(25.0)


def test_table_shows_mean_spread_and_paper(seeds):
    measure = Measure("Losses", best_loss, 3, {("Other", "IDL"): ".302"})
    made = experiment(measure)
    values = [best_loss(folder) for folder in seeds.values()]
    ours = f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    finished = {made.cells[0]: seeds, made.cells[1]: {1: seeds[1]}}
    rows = ["| | IDL |", "|---|---|", f"| FedAvg | {ours} |", f"| Other | {values[0]:.3f} (.302) |"]
    assert table(made, measure, finished).splitlines() == rows
    assert tables(made, finished).splitlines() == ["Losses", "", *rows]


def test_table_pairs_seeds_with_the_baselines(seeds):
    measure = Measure("Gaps", best_loss, 3, baseline="FedAvg")
    made = experiment(measure)
    finished = {made.cells[0]: {1: seeds[1], 2: seeds[2]}, made.cells[1]: {2: seeds[3], 3: seeds[1]}}
    gap = best_loss(seeds[3]) - best_loss(seeds[2])
    assert table(made, measure, finished).splitlines() == [
        "| | IDL |",
        "|---|---|",
        f"| Other | {gap:+.3f} |",
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [([1.0, 3.0], "2.0 ± 1.4"), ([4.0, None, 2.0], "2 of 3 seeds, best 2"), ([None], "0 of 1 seeds")],
)
def test_show(values, text):
    assert show(values, 1) == text


def test_curves_are_running_means_as_far_as_all_seeds_went(tmp_path):
    one = written(tmp_path / "one", [4.0, 2.0, 1.0])
    other = written(tmp_path / "other", [4.0, 2.0, 1.0, 7.0])
    rounds, values = curves([one, other], "test/accuracy", 2)
    assert rounds.tolist() == [0, 1, 2]
    assert values.tolist() == [[4.0, 3.0, 1.5]] * 2


def test_curves_are_drawn(seeds, tmp_path):
    made = experiment(drawn=("FedAvg",), target={"IDL": 0.5}, limits=(0.1, 2.0))
    draw(made, {made.cells[0]: seeds, made.cells[1]: seeds}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_report_leaves_out_what_is_not_finished(seeds, tmp_path, capsys):
    made = experiment(Measure("Losses", best_loss, 3))
    plan = [(made.cells[0], 1, seeds[1]), (made.cells[1], 1, tmp_path / "none")]
    report("tiny", made, plan, None)
    assert "FedAvg" in (shown := capsys.readouterr().out)
    assert "Other" not in shown
    report("none", made, [(made.cells[1], 1, folder_of(tmp_path, made.cells[1], 1))], None)
    assert capsys.readouterr().out == "none: no run is finished\n"


def test_report_goes_into_a_document(seeds, tmp_path):
    made = experiment(Measure("Losses", best_loss, 3))
    document = tmp_path / "evidence.md"
    document.write_text("# Title\n<!-- tiny -->\nold\n<!-- end -->\nReading.\n<!-- end -->\n")
    report("tiny", made, [(made.cells[0], 1, seeds[1])], document)
    shown = tables(made, {made.cells[0]: {1: seeds[1]}})
    assert document.read_text() == (
        f"# Title\n<!-- tiny -->\n\n{shown}\n<!-- end -->\nReading.\n<!-- end -->\n"
    )
    assert (tmp_path / "images/tiny.png").read_bytes().startswith(PNG)
    with pytest.raises(ValueError, match="has no lines <!-- other -->"):
        report("other", made, [(made.cells[0], 1, seeds[1])], document)


def measured(rng, noise=0.0):
    labels = rng.integers(1, 50, (30, 5))
    labels[:, 0] += 50
    logits = np.log(labels / labels.sum(axis=1, keepdims=True))
    return Measured(
        labels, {"bias": logits, "weight_mean": logits + noise * rng.standard_normal(logits.shape)}
    )


def test_correlations_of_exact_and_of_equal_estimates():
    exact = measured(np.random.default_rng(0))
    assert exact.correlations("bias", 1.0) == pytest.approx((1.0, 1.0))
    assert np.isnan(exact.correlations("bias", 1e-9)).all()


def test_entropy_table_and_figure(tmp_path):
    runs = [measured(np.random.default_rng(seed), noise=0.5) for seed in (1, 2)]
    found = {("SGD", False): runs, ("SGD", True): runs, ("Adam", False): runs}
    lines = entropy_table(found).splitlines()
    assert len(lines) == 2 + 6
    assert lines[2].startswith("| SGD | ten rounds' models | bias | ")
    draw_entropies(found, tmp_path / "entropy.png")
    assert (tmp_path / "entropy.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("together", [False, True])
def test_every_client_is_measured(tmp_path, together):
    config = tmp_path / "tiny.yaml"
    config.write_text(
        "clients: 8\nbudget: 3\nselector: {class_path: HiCS}\nlocal: {batch_size: 5, steps: 3}\n"
        "model: {class_path: MLP, init_args: {hidden: [6]}}\n"
        f"data: {{synthetic: {{size_mean: {SMALL.size_mean}, size_std: {SMALL.size_std}, size_min: 10, "
        "dimension: 8, classes: 4}}\n"
    )
    path = tmp_path / "kept" / "tiny.npz"
    result = measure(config, seed=1, together=together, data_root=None, path=path)
    assert result.labels.shape == (8, 4)
    assert all((result.signals[signal] != 0).any(axis=1).all() for signal in ("bias", "weight_mean"))
    with np.load(path) as kept:
        assert np.array_equal(kept["bias"], result.signals["bias"])
