"""``flsel place`` and ``flsel atlas``: pairs with committed results, ranks, differences and files."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flsel
from flsel.commands.cli import main
from flsel.comparison.comparison_file import write_declaration
from flsel.comparison.grid import Variant
from flsel.comparison.judging.settings import Judging
from flsel.errors import UserError
from flsel.execution.in_process import InProcess
from flsel.placing import run_placement as running
from flsel.placing.contributed import atlas_table, contributions, with_contributions
from flsel.placing.place_config import PlaceConfig
from flsel.placing.placement import Placement, place_runs
from flsel.placing.placement_report import (
    all_table,
    family_table,
    notes,
    result_rows,
    sentence,
    write_placement,
)
from flsel.placing.shipped_atlas import BASE, MEASURES, ShippedAtlas, atlas_names, read_atlas

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def atlas() -> ShippedAtlas:
    return read_atlas("synthetic")


def runs_like(
    atlas: ShippedAtlas, selector: str, name: str, more: float = 0.0, seeds: int = 5, faster: float = 1.0
) -> list[Any]:
    """Runs with the committed results of a selector, more accuracy, and a share of the simulated seconds."""
    found = []
    for at, scenario in enumerate(atlas.scenarios):
        for seed in range(1, seeds + 1):
            value = {m: float(atlas.measured.of(m, selector)[at, seed - 1]) for m in atlas.measures}
            accuracy = value["accuracy"] + more
            # Reached at once where the target is, so that costs are what the last column says.
            columns = {
                "test/accuracy": np.full(9, accuracy),
                "client_train/accuracy_worst10": np.full(9, value.get("worst", np.nan)),
                "rounds": np.full(9, value["rounds"]),
                "bytes": np.full(9, value.get("bytes", np.nan)),
                "simulated_seconds": np.full(9, faster * value.get("simulated_seconds", np.nan)),
            }
            settings = flsel.RunConfig().to_dict()
            summary = {"fingerprints": dict(atlas.fingerprints[f"{scenario}, {seed}"])}
            found.append(
                SimpleNamespace(
                    variant=name, scenario=scenario, seed=seed, columns=columns, summary=summary,
                    settings=settings, status="complete", reason="",
                )
            )  # fmt: skip
    return found


def placed(atlas: ShippedAtlas, folder: Path, more: float = 0.01, **given: Any) -> Placement:
    folder.mkdir(parents=True)
    grid = atlas.grid((Variant("Mine", {"selector": "Uniform"}),), 5)
    write_declaration(folder, grid, Judging(), ["flsel place mine.Mine"])
    return place_runs(
        atlas, runs_like(atlas, BASE, "Mine", more, **given), (), (folder, ["flsel place mine.Mine"])
    )


@pytest.mark.parametrize("name", ["fashion", "mnist", "sizes", "synthetic"])
def test_shipped_results_are_the_committed_ones(name):
    assert name in atlas_names()
    with (ROOT / f"docs/results/data/atlas_{name}.csv").open() as stream:
        committed = list(csv.DictReader(stream))
    found = read_atlas(name)
    for row in committed[:: max(1, len(committed) // 200)]:
        at = list(found.scenarios).index(f"{row['partition']}, {row['availability']}"), int(row["seed"]) - 1
        for measure in MEASURES:
            assert found.measured.of(measure, row["selector"])[at] == float(row[measure])
    assert found.fingerprints.keys() == {
        f"{scenario}, {seed}" for scenario in found.scenarios for seed in range(1, found.most_seeds + 1)
    }


def test_what_is_a_point_better_in_every_run_is_a_point_better(atlas, tmp_path):
    found = placed(atlas, tmp_path / "p")
    gain = found.mean_gain("Mine")
    assert (gain.value, gain.low, gain.high) == pytest.approx((1, 1, 1))
    assert len(found.scenarios) == 15  # three of the 18 are others where all clients have one size
    assert found.above("Mine") == 15
    assert found.repeated
    better = [name for name in atlas.measured.selectors if found.mean_gain(name).value > 1]
    assert found.rank("Mine") == len(better) + 1
    assert found.ratio("Mine", "bytes").value == pytest.approx(1)
    assert found.best("all scenarios") == "FedGS"
    text = sentence(found, "Mine")
    assert text.startswith(
        f"Mine is number {found.rank('Mine')} of 13 on the atlas synthetic: +1.0 [+1.0, +1.0] "
    )
    assert "above Uniform in 15 of 15" in text


def test_committed_numbers_are_those_of_the_atlas_page(atlas, tmp_path):
    page = (ROOT / "docs/results/atlas.md").read_text()
    table = page.partition("### Difference to Uniform over all scenarios")[2].partition("###")[0]
    shown = {
        line.split("|")[1].strip(): line.split("|")[2].split()[0]
        for line in table.splitlines()[4:]
        if "|" in line
    }
    found = place_runs(atlas, (), (), (tmp_path, ()))
    assert len(shown) == 11
    for name, points in shown.items():
        assert f"{found.mean_gain(name).value:+.1f}" == points
    assert [line[0] for line in all_table(found)[1]] == sorted(shown, key=lambda n: -found.mean_gain(n).value)


def test_seconds_decide_on_the_atlas_in_simulated_seconds(tmp_path):
    """A selector with 0.6 of Uniform's seconds is first but for Oort, as the atlas's page has it."""
    atlas = read_atlas("time")
    with (ROOT / "docs/results/data/atlas_time.csv").open() as stream:
        committed = [row for row in csv.DictReader(stream) if row["asked"] == "K"]
    assert len(committed) == 12 * 3 * len(atlas.measured.selectors)
    for row in committed:
        scenario = ", ".join(row[part] for part in ("devices", "partition", "availability"))
        at = list(atlas.scenarios).index(scenario), int(row["seed"]) - 1
        assert atlas.measured.of("simulated_seconds", row["selector"])[at] == float(row["seconds"])
        assert 100 * atlas.measured.of("accuracy", row["selector"])[at] == pytest.approx(
            float(row["accuracy"])
        )
    runs = runs_like(atlas, BASE, "Mine", seeds=3, faster=0.6)
    found = place_runs(atlas, runs, (), (tmp_path, ["flsel place mine.Mine --atlas time"]))
    assert found.rank("Mine") == 1 + sum(
        found.ratio(name, "simulated_seconds").value < 0.6 for name in atlas.measured.selectors
    )
    text = sentence(found, "Mine")
    assert "0.60 [0.60, 0.60] times Uniform's simulated seconds to 70 % over 12 scenarios and 3 seeds" in text
    assert "below Uniform in 12 of 12" in text
    assert "The best is FedGS; to it the ratio is 0.7" in text  # Oort misses the target in two runs
    assert "At the end Mine has +0.0 [+0.0, +0.0] points to Uniform, and FedGS +2.2 [-1.1, +5.5]." in text
    late = place_runs(atlas, runs_like(atlas, "Oort", "Late", seeds=3), (), (tmp_path, ()))
    assert late.missed("Late") > 0
    told = f"Its ratio is too low: {late.missed('Late')} of its runs miss a target that Uniform's reach."
    assert sentence(late, "Late").endswith(told)
    lines = {line[0]: line for line in all_table(found)[1]}
    assert lines["Oort"][1] == "0.57 [0.53, 0.62]"  # as on the atlas's page
    assert lines["PowD"][1] == "2.34 [2.32, 2.37]"
    assert [lines[name][-1] for name in ("Oort", "FedCS", "PowD", "FedGS")] == ["2", "3", "3", "0"]
    assert family_table(found, "Mine")[0][2] == "ratio to Uniform"
    assert write_placement(found)[1].stat().st_size > 10_000
    assert {"devices", "simulated_seconds"} <= result_rows(found)[0].keys()
    assert contributions(tmp_path)[0]["entries"]["Mine"]["simulated_seconds"] == [0.6, 0.6, 0.6]


def test_families_are_ranked_each_for_itself(atlas, tmp_path):
    found = placed(atlas, tmp_path / "p")
    head, body = family_table(found, "Mine")
    assert head[0] == "scenarios"
    lines = {line[0]: line for line in body}
    assert lines["small labels unavailable (3)"][2] == "+1.0 [+1.0, +1.0]"
    assert lines["small labels unavailable (3)"][3] == found.best("small labels unavailable")
    assert set(lines) == {
        "all scenarios (15)", "skewed labels (11)", "mild partitions (4)", "all clients available (5)",
        "clients unavailable (10)", "small labels unavailable (3)",
    }  # fmt: skip


def test_runs_on_other_data_are_no_pairs(atlas, tmp_path):
    runs = runs_like(atlas, BASE, "Mine", 0.01)
    runs[3].summary["fingerprints"]["partition"] = "0" * 12
    found = place_runs(atlas, runs, (), (tmp_path, ()))
    assert not found.repeated
    base = runs_like(atlas, BASE, BASE, 0.005)
    assert not atlas.repeats(base[0])
    other = place_runs(atlas, runs, base, (tmp_path, ()))
    assert other.mean_gain("Mine").value == pytest.approx(0.5)  # against the baseline that was run here
    assert other.mean_gain("FedGS").value == pytest.approx(found.mean_gain("FedGS").value)


def test_the_notes_say_whether_pairs_are_proved(atlas, tmp_path):
    found = placed(atlas, tmp_path / "p")
    assert notes(found)[0].startswith("Three runs of Uniform had the committed results")
    broken = Placement(**{**vars(found), "repeated": False})
    assert notes(broken)[0].startswith("Uniform does not have its committed results here")


def test_two_files_can_be_contributed(atlas, tmp_path):
    found = placed(atlas, tmp_path / "Mine-synthetic")
    paths = write_placement(found)
    assert {path.name for path in paths} == {
        "report.md",
        "heatmap.png",
        "Mine-synthetic.csv",
        "Mine-synthetic.json",
    }
    kept = tmp_path / "contributed"
    kept.mkdir()
    for path in paths[2:]:
        shutil.copy(path, kept)
    (one,) = contributions(kept)
    assert one["entries"]["Mine"]["points"] == [1.0, 1.0, 1.0]
    assert one["paired"]
    assert one["entries"]["Mine"]["code"]
    assert len(result_rows(found)) == 90
    head, body = atlas_table(atlas, kept)
    assert head[-1] == "from"
    line = next(line for line in body if line[0] == "Mine")
    assert line[1] == "+1.0 [+1.0, +1.0]"
    assert line[-1] == "Mine-synthetic.json, 5 seeds"
    assert len(body) == 12
    more = with_contributions(atlas, 5, kept)
    again = place_runs(more, runs_like(atlas, BASE, "Yours", 0.005), (), (tmp_path, ()))
    assert "Mine (contributed in Mine-synthetic.json)" in [line[0] for line in all_table(again)[1]]
    assert again.rank("Yours") == placed(atlas, tmp_path / "alone", 0.005).rank("Mine") + 1
    assert (
        with_contributions(read_atlas("sizes"), 5, kept).measured.selectors[-1] != more.measured.selectors[-1]
    )
    damaged_contributions_are_refused(kept / "Mine-synthetic.json")


def damaged_contributions_are_refused(path: Path) -> None:
    """Refuse files that the command did not write so, each in a sentence that names the file."""
    table, text = path.with_suffix(".csv"), path.read_text()
    rows = table.read_text()

    def refused(said: str, *, rows: str = rows, text: str = text, **changes: Any) -> None:
        path.write_text(json.dumps(json.loads(text) | changes) if changes else text)
        table.write_text(rows)
        with pytest.raises(UserError, match=rf"Mine-synthetic\.(json|csv).*{said}"):
            contributions(path.parent)

    entries = json.loads(text)["entries"]
    refused("of another format", format=99)
    refused("no placement that flsel place wrote", text="{")
    refused("no placement that flsel place wrote", entries={"Mine": {"points": [1.0]}})
    refused("atlas 'moon'", atlas="moon")
    refused(r"says \+7.0000 points for Mine, and its rows \+1.0000", entries={
        "Mine": entries["Mine"] | {"points": [7.0, 6.0, 8.0]}
    })  # fmt: skip
    refused("must have a row for each of Mine", rows=rows.rsplit("\n", 2)[0])
    refused("must have a row for each of Yours", entries={"Yours": entries["Mine"]})
    refused("has not the rows that flsel place wrote", rows=rows.replace("i.i.d.", "iid"))
    path.write_text(text)
    table.unlink()
    with pytest.raises(UserError, match="lacks its rows"):
        contributions(path.parent)


def test_a_run_of_the_baseline_repeats_the_committed_one(atlas, tmp_path):
    """The real code has the same data, model and availability, and the committed accuracy and costs."""
    cells = running._baseline(atlas, 5)
    assert [scenario.name for scenario in cells.scenarios] == ["i.i.d., LN", "2SPC, LDF", "HiCS mix, SLN"]
    one = running.replace(cells, scenarios=cells.scenarios[1:2])
    executor = InProcess()
    with executor.ready(None):
        (run,) = running._execute(tmp_path, one, executor, quiet=True)
    assert atlas.is_paired(run)
    at = list(atlas.scenarios).index(run.scenario), run.seed - 1
    for name, value in atlas.measure(run).items():
        assert value == pytest.approx(atlas.measured.of(name, BASE)[at], rel=2e-5)
    assert atlas.repeats(run)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["place"], "nothing to place: name a selector"),
        (["place", "Nobody"], "Nobody"),
        (
            ["place", "MD", "--atlas", "moon"],
            "atlas must be one of fashion, mnist, sizes, synthetic, time, got 'moon'",
        ),
        (["place", "MD", "--seeds", "9"], "seeds must be"),
        (["place", "MD", "--atlas", "time", "--seeds", "4"], "seeds must be at most 3 on the atlas time"),
        (["place", "MD", "--rounds", "3"], "rounds is a setting of runs, and an atlas has its own"),
        (["place", "MD", "MD"], "MD names two variants"),
        (["atlas", "moon"], "atlas must be one of"),
        (["atlas", "fashion", "mnist"], "takes the name of one atlas"),
    ],
)
def test_the_commands_refuse_in_a_sentence(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not Path("placements").exists()


def test_nothing_is_written_where_the_data_are_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FLSEL_DATA", str(tmp_path))
    assert main(["place", "MD", "--atlas", "mnist"]) == 2
    assert "mnist not found" in capsys.readouterr().err
    assert not Path("placements").exists()


def test_a_folder_keeps_its_placement(atlas):
    known = atlas.grid((Variant("MD (placed)", {"selector": "MD"}),), 5)
    folder = Path("placements/one")
    running._declared(folder, known, atlas, "flsel place MD")
    assert running._declared(folder, known, atlas, "again") == ["flsel place MD", "again"]
    other = atlas.grid((Variant("PowD (placed)", {"selector": "PowD"}),), 5)
    with pytest.raises(UserError, match="holds another placement; give this one another --name"):
        running._declared(folder, other, atlas, "flsel place PowD")


def test_an_objective_is_placed_with_its_selector(atlas):
    (made,) = running._variants(["MD"], PlaceConfig(objective="FedProx"), (), atlas)
    assert made.changes == {"objective": "FedProx", "selector": "MD"}
    own = Variant("Mine", {"selector": "MD", "data.server": 0.2})
    with pytest.raises(UserError, match=r"Mine must not set data\.server: the committed runs"):
        running._variants([], PlaceConfig(), (own,), atlas)


def test_a_selector_that_fails_is_said_after_one_run(monkeypatch):
    Path("failing.py").write_text(
        "from flsel.selector import Selector\n\n\nclass Fails(Selector):\n"
        "    def select(self, view):\n        raise ValueError('no idea')\n"
    )
    monkeypatch.syspath_prepend(".")
    with pytest.raises(UserError, match=r"Fails under i\.i\.d\., LN, seed 1, failed: .* raised no idea"):
        running.run_placement(["failing.Fails"], PlaceConfig(), "flsel place", InProcess(), quiet=True)
    assert len(list(Path("placements").rglob("failure.json"))) == 1


def test_the_atlas_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["atlas", "synthetic"]) == 0
    printed = capsys.readouterr().out
    assert "FedGS" in printed
    assert "committed" in printed
