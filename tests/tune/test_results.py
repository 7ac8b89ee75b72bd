"""What a sweep leaves: tables with a row for each trial, and the best one's config."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from jobs import job
from optuna.trial import TrialState
from spaces import config_of

from flsel.config import RunConfig
from flsel_tune import sweep as sweep_module
from flsel_tune.space_file import make_space
from flsel_tune.study import Study
from flsel_tune.sweep_config import SweepConfig
from flsel_tune.write_results import best_trials, trial_rows, write_results

SPACE = {
    "selector": {"type": "choice", "values": ["Uniform", "PowD"]},
    "selector.d": {"type": "int", "low": 3, "high": 8, "when": {"selector": "PowD"}},
    "local.batch_size": {"type": "choice", "values": [5, 10]},
}
OUTCOMES = [
    (TrialState.COMPLETE, [0.5], {"status": "complete", "seeds": [0.4, 0.6], "spread": 0.1, "round": 6}),
    (TrialState.COMPLETE, [0.7], {"status": "complete", "seeds": [0.8, 0.6], "spread": 0.14, "round": 6}),
    (TrialState.PRUNED, [], {"status": "pruned", "seeds": [0.1, 0.1], "spread": 0.0, "round": 2}),
    (TrialState.FAIL, [], {"status": "diverged", "seeds": [math.nan, 0.1], "spread": math.nan, "round": 4,
                           "error": "the metric is not finite"}),
]  # fmt: skip


def swept(folder, outcomes, metric="validation/accuracy"):
    """A study with some trials that have ended and one that has not, and its job."""
    common = job(folder, metric=metric)
    scheduler = "asha" if len(common.metrics) == 1 else "none"
    config = SweepConfig(sampler="random", scheduler=scheduler)
    study = Study(folder, "s", metrics=common.metrics, config=config, rounds=6, seed=0)
    space = make_space(SPACE, config_of("Uniform"))
    for number, (state, values, result) in enumerate([*outcomes, (None, [], {})]):
        study.ask(space)
        if len(common.metrics) == 1:
            study.report(number, 2, 0.1 + number)
        if state is not None:
            study.tell(number, state, values, {"seconds": 1.23456, "error": "", **result})
    return study, common


@pytest.fixture
def sweep(tmp_path):
    study, common = swept(tmp_path, OUTCOMES)
    write_results(study, common)
    return tmp_path, study, common


def test_rows_describe_all_trials(sweep):
    _, study, common = sweep
    rows = trial_rows(study, common.metrics)
    assert [row["trial"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["status"] for row in rows] == ["complete", "complete", "pruned", "diverged", "running"]
    assert [row["validation/accuracy"] for row in rows] == [0.5, 0.7, 2.1, 3.1, 4.1]
    assert [row["round"] for row in rows] == [6, 6, 2, 4, 2]
    assert rows[1]["seeds"] == [0.8, 0.6]
    assert rows[1]["spread"] == 0.14
    assert rows[3]["seeds"] == [None, 0.1]
    assert rows[3]["spread"] is None
    assert rows[3]["error"] == "the metric is not finite"
    assert rows[0]["seconds"] == 1.235


def test_json_holds_the_rows(sweep):
    folder, study, common = sweep
    text = (folder / "trials.json").read_text()
    assert "NaN" not in text
    assert json.loads(text) == trial_rows(study, common.metrics)


def test_csv_has_a_column_for_each_setting(sweep):
    folder, study, common = sweep
    with (folder / "trials.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header[:9] == [
        "trial", "status", "validation/accuracy", "spread", "seeds", "round", "seconds", "error", "from",
    ]  # fmt: skip
    assert set(header[9:]) == set(SPACE)
    assert len(lines) == 5
    for line, row in zip(lines, trial_rows(study, common.metrics), strict=True):
        cells = dict(zip(header, line, strict=True))
        assert cells["trial"] == str(row["trial"])
        assert {key: cells[key] for key in SPACE if cells[key]} == {
            key: str(value) for key, value in row["settings"].items()
        }
    assert dict(zip(header, lines[1], strict=True))["seeds"] == "0.8;0.6"


def test_best_yaml_is_the_trials_config(sweep):
    folder, study, common = sweep
    best = RunConfig.from_file(folder / "best.yaml")
    settings = trial_rows(study, common.metrics)[1]["settings"]
    assert best.to_dict() == RunConfig.from_dict(common.config, {**settings, "seed": 3}).to_dict()
    assert best.to_dict() == common.run_config(settings, 3)
    assert yaml.safe_load((folder / "best.yaml").read_text()) == best.to_dict()
    comments = [line for line in (folder / "best.yaml").read_text().splitlines() if line.startswith("#")]
    assert comments == [
        f"# Trial 1 of {folder}: validation/accuracy 0.7, the mean of seeds [3, 4].",
        "# Under seed 3, which stands below, validation/accuracy is 0.8.",
    ]


def test_a_loss_is_minimised(tmp_path):
    study, common = swept(tmp_path, OUTCOMES, metric="validation/loss")
    assert [trial.number for trial in best_trials(study)] == [0]
    write_results(study, common)
    assert (tmp_path / "best.yaml").read_text().startswith("# Trial 0 of ")


def test_several_metrics_have_several_best_trials(tmp_path):
    found = [(0.5, 10.0), (0.6, 20.0), (0.4, 15.0), (0.6, 30.0)]
    outcomes = [
        (TrialState.COMPLETE, values, {"status": "complete", "seeds": [values[0]] * 2, "spread": 0.0})
        for values in found
    ]
    study, common = swept(tmp_path, outcomes, metric="validation/accuracy, ledger/bytes_up")
    write_results(study, common)
    assert [trial.number for trial in best_trials(study)] == [0, 1]
    rows = trial_rows(study, common.metrics)
    assert [(row["validation/accuracy"], row["ledger/bytes_up"]) for row in rows[:4]] == found
    assert (rows[4]["validation/accuracy"], rows[4]["ledger/bytes_up"]) == (None, None)
    first, *_, last = [n for n in (tmp_path / "best.yaml").read_text().splitlines() if n.startswith("#")]
    assert "validation/accuracy 0.5, ledger/bytes_up 10.0" in first
    assert last == "# No trial is better in all metrics than this one, nor than 1: choose by trials.csv."


@pytest.mark.parametrize("outcomes", [[], OUTCOMES[2:]])
def test_without_a_complete_trial_there_is_no_best_one(tmp_path, outcomes):
    study, common = swept(tmp_path, outcomes)
    write_results(study, common)
    assert best_trials(study) == []
    assert not (tmp_path / "best.yaml").exists()
    assert len(json.loads((tmp_path / "trials.json").read_text())) == len(outcomes) + 1


def test_a_sweep_that_has_not_started_has_empty_tables(tmp_path):
    common = replace(job(tmp_path), folder=str(tmp_path))
    config = SweepConfig()
    study = Study(Path(tmp_path), "s", metrics=common.metrics, config=config, rounds=6, seed=0)
    write_results(study, common)
    assert json.loads((tmp_path / "trials.json").read_text()) == []


def test_texts_with_commas_stay_one_cell(tmp_path):
    failed = (TrialState.FAIL, [], {"status": "failed", "error": 'a, "b"'})
    write_results(*swept(tmp_path, [failed]))
    with (tmp_path / "trials.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["error"] == 'a, "b"'


def test_what_was_tried_again_is_not_counted_at_the_end(tmp_path, monkeypatch, capsys, caplog):
    full = (TrialState.FAIL, [], {"status": "failed", "machine": True})
    study, common = swept(tmp_path, [OUTCOMES[0], full])
    study.tell(2, TrialState.COMPLETE, [0.1], {"status": "complete", "round": 6})
    monkeypatch.setattr(sweep_module, "write_figures", lambda *_: [])
    monkeypatch.setattr(sweep_module, "track_sweep", lambda *_: None)
    plan = SimpleNamespace(job=common, config=RunConfig(), pictures=True)
    sweep_module._finish(plan, study)
    assert "2 complete, 1 failed" in capsys.readouterr().out
    assert "1 trials failed because the machine did" in caplog.text
    caplog.clear()
    study.retry("machine")
    number, _ = study.ask(make_space(SPACE, config_of("Uniform")))
    study.tell(number, TrialState.COMPLETE, [0.2], {"status": "complete", "round": 6})
    sweep_module._finish(plan, study)
    assert "3 complete\n" in capsys.readouterr().out
    assert caplog.text == ""
