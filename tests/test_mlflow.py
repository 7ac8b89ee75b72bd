"""MLflow stores a run in its tracking store of today, a database (`make test-mlflow`)."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from runs import settings

import flsel
from flsel.config.groups import OutputConfig, TrackConfig
from flsel.files import run_id
from flsel.runner.trackers.loggers import make_loggers
from flsel.selectors import PowD

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: make test-mlflow")
pytestmark = pytest.mark.filterwarnings("default")  # MLflow's own


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def client(folder: Path):
    return mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")


def only_run(folder: Path):
    store = client(folder)
    (run,) = store.search_runs([e.experiment_id for e in store.search_experiments()])
    return run


@pytest.fixture
def result(tmp_path):
    output, track = OutputConfig(dir=str(tmp_path / "runs")), TrackConfig(tracker="mlflow", project="phones")
    return flsel.run(settings(tmp_path, selector=PowD(d=5), seed=3, track=track, output=output))


def test_a_run_is_stored_in_the_current_folders_database(result, tmp_path):
    run, store = only_run(tmp_path), client(tmp_path)
    assert (run.info.run_name, run.info.status) == ("PowD-s3", "FINISHED")
    assert store.get_experiment(run.info.experiment_id).name == "phones"
    assert run.data.tags["flsel.run"] == run_id(result.folder)
    assert (run.data.params["selector"], run.data.params["selector.d"]) == ("PowD", "5")
    assert run.data.metrics["final/test/accuracy"] == pytest.approx(result.final["test/accuracy"])
    curve = {point.step: point.value for point in store.get_metric_history(run.info.run_id, "test/accuracy")}
    assert curve == pytest.approx({row["round"]: row["test/accuracy"] for row in result.rows})
    artifacts = {entry.path for entry in store.list_artifacts(run.info.run_id)}
    assert {"config.yaml", "summary.json", "images", "selection"} <= artifacts
    images = {entry.path for entry in store.list_artifacts(run.info.run_id, "images")}
    assert all(any(name in path for path in images) for name in ("partition", "participation", "curves"))
    table = mlflow.artifacts.load_dict(f"runs:/{run.info.run_id}/selection/counts.json")
    assert [count for _, count in table["data"]] == result.counts.tolist()


def test_a_resumed_run_goes_on_in_the_same_one(result, tmp_path):
    flsel.resume(result.folder, rounds=result.summary["rounds"] + 2)
    run = only_run(tmp_path)
    curve = client(tmp_path).get_metric_history(run.info.run_id, "test/accuracy")
    assert max(point.step for point in curve) == result.summary["rounds"] + 2
    assert run.info.status == "FINISHED"
    assert run.data.params["rounds"] == str(result.summary["rounds"])


def test_a_store_that_cannot_be_opened_costs_the_tracker_and_not_the_run(tmp_path, monkeypatch, caplog):
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none/mlflow.db")
    config = TrackConfig(tracker="mlflow")
    with caplog.at_level(logging.WARNING, "flsel"):
        made = make_loggers(config, run_dir=tmp_path / "run", name="a", resolved_config={}, tags=())
    assert made == []
    (record,) = [record for record in caplog.records if record.name == "flsel"]
    assert record.message.startswith("MLflow failed, the run goes on without it: ")


def test_processes_that_make_one_store_at_once_all_get_a_run(tmp_path):
    code = (
        "import sys; from flsel.runner.trackers.mlflow_run import open_run\n"
        "open_run(sys.argv[1], 'p', sys.argv[1], {}).finalize('success')\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, name], cwd=tmp_path) for name in "ab"]
    assert [process.wait(300) for process in started] == [0, 0]
    store = client(tmp_path)
    (experiment,) = [e for e in store.search_experiments() if e.name == "p"]
    assert {run.info.run_name for run in store.search_runs([experiment.experiment_id])} == {"a", "b"}
