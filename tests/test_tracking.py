import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from forks import Forks
from lightning.fabric import Fabric
from lightning.fabric.loggers.csv_logs import CSVLogger
from matplotlib.figure import Figure
from PIL import Image
from runs import settings
from wandb.errors import UsageError
from wandb_reader import read_run

import flsel
from flsel.config.groups import EvaluationConfig, OutputConfig, TrackConfig
from flsel.errors import UserError
from flsel.files import run_id
from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker
from flsel.runner.trackers.values import CostTotals
from flsel.selectors import PowD

CONFIG = {
    "seed": 3,
    "data": {"name": "fashion_mnist", "root": None},
    "selector": {"class_path": "PowD", "init_args": {"d": 20, "temperature": 1e-4}},
}
OFFLINE = TrackConfig(tracker="wandb", mode="offline")


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def picture(tmp_path):
    pixels = np.zeros((6, 9, 3), dtype=np.uint8)
    pixels[1:3, 2:5] = (10, 200, 30)
    Image.fromarray(pixels).save(tmp_path / "partition.png")
    return tmp_path / "partition.png", pixels


def loggers(config, run_dir, resolved_config=CONFIG):
    tags = ["PowD", "fashion_mnist"]
    return make_loggers(config, run_dir=run_dir, name="a run", resolved_config=resolved_config, tags=tags)


def stored(run_dir):
    """Read the offline runs of a folder."""
    return [read_run(path) for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"))]


# --- Weights & Biases ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a real offline run of three rounds, started with every setting given."""
    folder = tmp_path_factory.mktemp("finished")
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    config = TrackConfig(
        tracker="wandb", project="p", entity="e", group="g", tags=("mine", "PowD", "x" * 99), mode="offline"
    )
    tracker = Tracker(loggers(config, folder))
    tracker.image("partition", figure, 0)
    for done, accuracy in ((5, 0.25), (10, 0.75), (15, 0.5)):
        tracker.log({"test/accuracy": accuracy, "test/loss": 1 / done, "ledger/models": 3.0}, done)
    tracker.table("selection/counts", ("client", "count"), [(0, 2), (1, 1)])
    tracker.summary({"rounds_to_target": 10, "best": {"test/accuracy": 0.75}})
    tracker.close("success")
    return folder


def test_wandb_stores_who_the_run_is(finished):
    (run,) = stored(finished)
    assert (run.project, run.group, run.job_type, run.name) == ("p", "g", "train", "a run")
    assert sorted(run.tags) == sorted(["PowD", "fashion_mnist", "mine", "x" * 64])
    assert run.exit_code == 0


def test_wandb_stores_flat_settings(finished):
    """Columns to group and filter by: the class under its key, its arguments beside it."""
    (run,) = stored(finished)
    found = {key: value for key, value in run.config.items() if key not in ("_wandb", "git_commit")}
    assert found == {
        "seed": 3, "data.name": "fashion_mnist", "data.root": None, "dataset": "fashion_mnist",
        "variant": "PowD", "selector": "PowD", "selector.d": 20, "selector.temperature": 1e-4,
    }  # fmt: skip


def test_wandb_history_has_the_round_as_a_value(finished):
    rows = [row for row in stored(finished)[0].history if "test/accuracy" in row]
    assert [(row["round"], row["test/accuracy"], row["test/loss"]) for row in rows] == [
        (5, 0.25, 1 / 5),
        (10, 0.75, 1 / 10),
        (15, 0.5, 1 / 15),
    ]


def test_wandb_draws_everything_over_rounds_and_keeps_the_final_values(finished):
    """A maximum of test accuracies in the default column would be a choice by test data."""
    (run,) = stored(finished)
    assert run.metrics["*"].step_metric == "round"
    assert run.metrics["round"].options.defined
    assert not any(metric.summary.max or metric.summary.best for metric in run.metrics.values())
    assert {"step/bytes", "step/passes", "step/seconds"} <= run.metrics.keys()
    assert run.summary["test/accuracy"] == 0.5
    assert run.summary["test/loss"] == 1 / 15
    assert run.summary["rounds_to_target"] == 10
    assert run.summary["best"] == {"test/accuracy": 0.75}


def test_wandb_gets_the_partition_picture_and_the_selection_table(finished):
    (run,) = stored(finished)
    (image,) = [row for row in run.history if row.get("partition/_type") == "image-file"]
    assert (image["round"], image["partition/width"], image["partition/height"]) == (0, 200, 100)
    (file,) = finished.glob("wandb/offline-run-*/files/" + image["partition/path"])
    assert file.stat().st_size == image["partition/size"]
    (table,) = finished.glob("wandb/offline-run-*/files/media/table/selection/*.json")
    assert table.read_text().replace(" ", "") == '{"columns":["client","count"],"data":[[0,2],[1,1]]}'


def test_a_resumed_run_keeps_its_id_and_a_failed_one_says_so(run_dir):
    for start in (0, 3):
        time.sleep(1.1 if start else 0)  # W&B names its folder after the second
        tracker = Tracker(loggers(OFFLINE, run_dir))
        for done in range(start, start + 3):
            tracker.log({"test/accuracy": 0.1 * done}, done)
        tracker.close("failed")
    first, second = stored(run_dir)
    assert first.id == second.id
    assert [row["round"] for row in first.history + second.history] == [0, 1, 2, 3, 4, 5]
    assert [row["_step"] for row in first.history + second.history] == [0, 1, 2, 3, 4, 5]
    assert (first.exit_code, second.exit_code) == (1, 1)


def test_values_that_the_users_code_logs_push_no_metrics_out(run_dir):
    made = loggers(OFFLINE, run_dir)
    tracker = Tracker(made)
    for done in (0, 1):
        tracker.log({"test/accuracy": 0.1}, done)
        for at in range(3):
            made[0].log_metrics({"own": at}, step=at)
    tracker.image("curves", Figure(), 1)
    tracker.close("success")
    history = stored(run_dir)[0].history
    assert [(row["_step"], row["round"]) for row in history if "test/accuracy" in row] == [(0, 0), (4, 1)]
    assert sum("own" in row for row in history) == 6
    assert sum(row.get("curves/_type") == "image-file" for row in history) == 1


def test_two_runs_in_one_process_do_not_mix(tmp_path):
    trackers = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        trackers.append(Tracker(loggers(OFFLINE, tmp_path / name)))
    for done, tracker in enumerate(trackers):
        tracker.log({"test/loss": 1.0}, done)
        tracker.close("success")
    runs = [run for name in ("a", "b") for run in stored(tmp_path / name)]
    assert [[row["round"] for row in run.history] for run in runs] == [[0], [1]]
    assert runs[0].id != runs[1].id


def test_the_group_is_the_dataset_if_not_given(run_dir):
    Tracker(loggers(OFFLINE, run_dir)).close("success")
    assert stored(run_dir)[0].group == "fashion_mnist"


def test_disabled_leaves_nothing_behind(run_dir):
    tracker = Tracker(loggers(TrackConfig(tracker="wandb", mode="disabled"), run_dir))
    tracker.log({"test/loss": 1.0}, 1)
    tracker.close("success")
    assert not (run_dir / "wandb").exists()


@pytest.mark.parametrize(
    ("job_type", "parts"),
    [("train", [""]), ("comparison", ["runs/*/*/*/", ""]), ("sweep", ["trials/*/*/", ""])],
)
def test_the_command_that_sends_offline_runs_is_said(job_type, parts, tmp_path, monkeypatch, caplog):
    run = SimpleNamespace(settings=SimpleNamespace(mode="offline"))
    monkeypatch.setattr("flsel.runner.trackers.loggers.start_run", lambda mode, start: run)
    caplog.set_level("INFO", "flsel")
    folder = tmp_path / "my runs"
    folder.mkdir()
    make_loggers(OFFLINE, run_dir=folder, name="a", resolved_config={}, tags=(), job_type=job_type)
    said = " ".join(f"'{folder}'/{part}wandb/offline-run-*" for part in parts)
    assert caplog.messages[-1] == f"W&B keeps runs offline; send them with: wandb sync {said}"


def test_offline_never_turns_to_the_internet(run_dir):
    """Neither this side (audit hook) nor W&B's own process (its open sockets) leaves the machine."""
    code = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
asked = []
def watch(event, arguments):
    names = event in ("socket.getaddrinfo", "socket.gethostbyname")
    if names or (event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple)):
        asked.append(arguments)
sys.addaudithook(watch)

from flsel.config.groups import TrackConfig
from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker
folder = Path(sys.argv[1])
loggers = make_loggers(TrackConfig(tracker="wandb"), run_dir=folder, name="n", resolved_config={}, tags=[])
tracker = Tracker(loggers)
for done in range(20):
    tracker.log({"test/loss": 1.0}, done)

tables = [Path("/proc/self/net") / name for name in ("tcp", "tcp6", "udp", "udp6")]
internet = {"socket:[%s]" % line.split()[9]
            for table in tables if table.exists() for line in table.read_text().splitlines()[1:]}
children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
handles = [os.readlink(handle) for pid in children for handle in Path("/proc", pid, "fd").iterdir()]
assert any(handle.startswith("socket:") for handle in handles), "no process of W&B found"
assert not internet & set(handles), "W&B's process has an internet socket"
tracker.close("success")
assert not asked, asked
"""
    # A W&B process of these tests would be shared through the environment.
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    subprocess.run([sys.executable, "-c", code, str(run_dir)], check=True, env=environment)
    assert len(stored(run_dir)[0].history) == 20


# --- going online, or not ---


@pytest.fixture
def init_modes(monkeypatch):
    """Record the modes that ``wandb.init`` is called with; online always fails."""
    import wandb

    # The settings that wandb read first, an earlier test's key among them, live as long as its service.
    wandb.teardown()
    real, modes = wandb.init, []

    def init(**arguments):
        modes.append(arguments["mode"])
        if arguments["mode"] == "online":
            raise wandb.errors.CommError("no network\nat all")
        return real(**arguments)

    monkeypatch.setattr(wandb, "init", init)
    return modes


def netrc_for(monkeypatch, tmp_path, host):
    (tmp_path / "netrc").write_text(f"machine {host}\n  login user\n  password {'a' * 40}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_auto_is_offline_without_a_key(run_dir, init_modes):
    Tracker(loggers(TrackConfig(tracker="wandb"), run_dir)).close("success")
    assert init_modes == ["offline"]


@pytest.mark.parametrize("where", ["environment", "netrc", "own server"])
def test_auto_tries_online_with_a_key_and_falls_back_in_one_line(
    run_dir, init_modes, monkeypatch, tmp_path, caplog, where
):
    if where == "environment":
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    elif where == "netrc":
        netrc_for(monkeypatch, tmp_path, "api.wandb.ai")
    else:
        monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")
        netrc_for(monkeypatch, tmp_path, "wandb.example.org:8080")
    tracker = Tracker(loggers(TrackConfig(tracker="wandb"), run_dir))
    tracker.log({"test/loss": 1.0}, 7)
    tracker.close("success")
    assert init_modes == ["online", "offline"]
    (message,) = [record.getMessage() for record in caplog.records if record.name == "flsel"]
    assert message == "W&B cannot go online, so the run is tracked offline: CommError: no network at all"
    assert stored(run_dir)[0].history[0]["round"] == 7


def test_a_server_that_does_not_answer_costs_a_wait_and_not_the_id(run_dir, monkeypatch, caplog):
    monkeypatch.setattr("flsel.runner.trackers.wandb_run._INIT_SECONDS", 1)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    tracker = Tracker(loggers(TrackConfig(tracker="wandb"), run_dir))
    tracker.log({"test/loss": 1.0}, 7)
    tracker.close("success")
    assert [record.getMessage().partition(":")[0] for record in caplog.records if record.name == "flsel"] == [
        "W&B cannot go online, so the run is tracked offline"
    ]
    (run,) = stored(run_dir)
    assert run.id == run_id(run_dir)
    assert run.history[0]["round"] == 7


def test_a_key_for_another_server_is_no_key(run_dir, init_modes, monkeypatch, tmp_path):
    netrc_for(monkeypatch, tmp_path, "api.wandb.ai")
    monkeypatch.setenv("WANDB_BASE_URL", "https://elsewhere.example.org")
    Tracker(loggers(TrackConfig(tracker="wandb"), run_dir)).close("success")
    assert init_modes == ["offline"]


def test_online_without_a_key_never_asks(run_dir, init_modes, caplog):
    Tracker(loggers(TrackConfig(tracker="wandb", mode="online"), run_dir)).close("success")
    assert init_modes == ["offline"]
    assert [record.getMessage() for record in caplog.records if record.name == "flsel"] == [
        "W&B finds no API key (`wandb login`), so the run is tracked offline."
    ]


def test_the_users_environment_decides_for_auto(run_dir, init_modes, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    Tracker(loggers(TrackConfig(tracker="wandb"), run_dir)).close("success")
    assert init_modes == ["disabled"]


@pytest.mark.parametrize("kind", [ValueError, UsageError])  # the latter of a key that ends in a newline
def test_a_wrong_variable_costs_the_tracker_and_not_the_run(run_dir, monkeypatch, caplog, kind):
    def refuse():  # as wandb does, once a process, of any variable that it cannot use
        raise kind("1 validation error for Settings")

    monkeypatch.setattr("flsel.runner.trackers.wandb_run.has_key", refuse)
    assert loggers(TrackConfig(tracker="wandb", mode="online"), run_dir) == []
    (message,) = [record.getMessage() for record in caplog.records if record.name == "flsel"]
    assert message.startswith("W&B failed, the run goes on without it: ")


@pytest.mark.parametrize("mode", ["auto", "offline"])
def test_a_run_does_not_wait_for_ever_for_wandb(run_dir, monkeypatch, caplog, mode):
    """As wandb does where its process does not start: in its own error it waits for a lock that it holds."""
    ended = threading.Event()
    monkeypatch.setattr("flsel.runner.trackers.wandb_run._SERVICE_SECONDS", 0.01)
    monkeypatch.setattr("wandb.setup", ended.wait)
    assert loggers(TrackConfig(tracker="wandb", mode=mode), run_dir) == []
    ended.set()
    (message,) = [record.getMessage() for record in caplog.records if record.name == "flsel"]
    assert message.endswith("without it: TimeoutError: its process did not start within 0.01 s")


def test_a_run_goes_on_without_wandb_if_it_cannot_start(run_dir, caplog):
    config = TrackConfig(tracker="wandb", mode="offline", project="not/allowed")
    assert loggers(config, run_dir) == []
    (message,) = [record.getMessage() for record in caplog.records if record.name == "flsel"]
    assert message.startswith("W&B failed, the run goes on without it: ")


@pytest.mark.parametrize("tracker", ["wandb", "mlflow", "tensorboard"])
def test_a_missing_package_is_one_sentence(run_dir, monkeypatch, tracker):
    monkeypatch.setitem(sys.modules, tracker, None)
    with pytest.raises(UserError, match=rf"flsel\[{tracker}\].*or set `track\.tracker: none`"):
        loggers(TrackConfig(tracker=tracker), run_dir)


def test_wandb_is_not_loaded_unless_asked_for(tmp_path, forks: Forks):
    code = (
        "import sys; from pathlib import Path; from flsel.config.groups import TrackConfig\n"
        "from flsel.runner.trackers.loggers import make_loggers\n"
        "from flsel.runner.trackers.tracker import Tracker\n"
        f"a = dict(run_dir=Path({str(tmp_path)!r}), name='n', resolved_config={{}}, tags=[])\n"
        "assert make_loggers(TrackConfig(), **a) == []\n"
        "tracker = Tracker([]); tracker.log({'a': 1.0}, 0); tracker.close('success')\n"
        "assert not {'wandb', 'tensorboard', 'lightning.pytorch.loggers', 'matplotlib'} & set(sys.modules)"
    )
    assert forks.run(code, tmp_path).returncode == 0


# --- secrets ---


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"wandb_api_key": "s3cret"}, "wandb_api_key"),
        ({"track": {"API-KEY": "s3cret"}}, "track.API-KEY"),
        ({"callbacks": [{"init_args": {"apikey": "s3cret"}}]}, "callbacks.init_args.apikey"),
    ],
)
def test_a_secret_in_the_config_is_refused_by_name_only(run_dir, config, key):
    with pytest.raises(UserError) as caught:
        loggers(TrackConfig(), run_dir, config)
    assert f"`{key}`" in str(caught.value)
    assert "s3cret" not in str(caught.value)


# --- TensorBoard ---


def test_tensorboard_gets_scalars_and_the_picture(run_dir, picture):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, pixels = picture
    made = loggers(TrackConfig(tracker="tensorboard"), run_dir)
    fabric = Fabric(accelerator="cpu", devices=1, loggers=made)
    tracker = Tracker(fabric.loggers)
    tracker.image("partition", path, 0)
    for done in (5, 10):
        tracker.log({"test/accuracy": done / 16, "test/loss": 1.0}, done)
    tracker.table("selection/counts", ("client", "count"), [(0, 1)])
    tracker.summary({"rounds": 10})
    tracker.close("success")
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("test/accuracy")] == [
        (5, 5 / 16),
        (10, 10 / 16),
    ]
    (image,) = events.Images("partition")
    (run_dir / "shown.png").write_bytes(image.encoded_image_string)
    with Image.open(run_dir / "shown.png") as shown:
        np.testing.assert_array_equal(np.asarray(shown), pixels)
    assert sorted(events.Tags()["scalars"]) == ["test/accuracy", "test/loss"]


# --- trackers that fail ---


class Failing(CSVLogger):
    """A logger whose every call fails."""

    def log_metrics(self, metrics, step=None):
        raise ConnectionError("the network\nis gone")

    def finalize(self, status):
        raise AssertionError("a dropped logger is left alone")


def test_a_failing_logger_is_reported_once_and_dropped(tmp_path, caplog):
    good = CSVLogger(tmp_path, name="good", version="", flush_logs_every_n_steps=1)
    tracker = Tracker([Failing(tmp_path), good])
    with caplog.at_level(logging.WARNING, "flsel"):
        for done in range(3):
            tracker.log({"test/loss": float(done)}, done)
        tracker.close("success")
    assert [record.getMessage() for record in caplog.records] == [
        "Failing failed, the run goes on without it: ConnectionError: the network is gone"
    ]
    assert len((tmp_path / "good" / "metrics.csv").read_text().splitlines()) == 4


def test_wandb_dying_under_a_run_does_not_end_it(run_dir, caplog):
    (logger,) = loggers(OFFLINE, run_dir)
    tracker = Tracker([logger])
    logger.experiment.finish()
    for done in range(3):
        tracker.log({"test/loss": 1.0}, done)
    tracker.image("partition", Path("/nowhere.png"), 0)
    tracker.table("t", ["a"], [[1]])
    tracker.summary({"a": 1})
    tracker.close("success")
    (message,) = [record.getMessage() for record in caplog.records if record.name == "flsel"]
    assert message.startswith("W&B failed, the run goes on without it: ")


def test_an_interrupt_is_not_swallowed(tmp_path):
    class Interrupted(CSVLogger):
        def log_metrics(self, metrics, step=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tracker([Interrupted(tmp_path)]).log({}, 0)


# --- a whole run ---


class Notes(CSVLogger):
    """Somebody's own logger, by import path."""

    def __init__(self, save_dir):
        super().__init__(save_dir, name="notes", version="", flush_logs_every_n_steps=1)

    def log_hyperparams(self, params, *given, **named):
        (Path(self.root_dir) / "settings.txt").write_text(repr(sorted(params)))


def test_a_run_is_tracked_in_several_places(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    track = TrackConfig(tracker="wandb, tensorboard,test_tracking.Notes", mode="offline", variant="PowD:d=5")
    output = OutputConfig(dir=str(tmp_path))
    target = EvaluationConfig(target=0.3)
    result = flsel.run(
        settings(tmp_path, selector=PowD(d=5), seed=3, track=track, output=output, evaluation=target)
    )
    (run,) = stored(result.folder)
    assert (run.name, run.config["variant"], run.config["seed"]) == ("PowD:d=5-s3", "PowD:d=5", 3)
    assert (run.config["selector"], run.config["availability"]) == ("PowD", "IDL")
    assert {"partition/_type", "participation/_type", "curves/_type"} <= {
        k for row in run.history for k in row
    }
    assert run.summary["final/test/accuracy"] == run.summary["test/accuracy"] == result.final["test/accuracy"]
    assert run.summary["last10/test/loss"] == pytest.approx(result.last(10)["test/loss"])
    spent = result.to_target(cost="ledger/bytes_down")
    assert (run.summary["to_target/bytes_down"], run.summary["to_target/reached"]) == (
        spent.value,
        spent.reached,
    )
    rows = [row for row in run.history if "test/accuracy" in row]
    sent = [row["ledger/bytes_down"] + row["ledger/bytes_up"] for row in result.rows]
    assert [row["step/bytes"] for row in rows] == sent
    assert rows[-1]["step/seconds"] == pytest.approx(result.to_target(1.0, cost="seconds").value)
    assert len((result.folder / "notes/metrics.csv").read_text().splitlines()) == 8
    assert "selector.d" in (result.folder / "settings.txt").read_text()
    events = EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    assert events.Scalars("final/test/accuracy")[0].value == pytest.approx(result.final["test/accuracy"])
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")


def test_steps_go_on_after_a_resume():
    rows = [{"ledger/bytes_up": 2.0 * n, "ledger/passes": n, "seconds/train": 0.5} for n in range(4)]
    whole = CostTotals([])
    expected = [whole.after(row) for row in rows]
    assert (
        CostTotals(rows[:2]).after(rows[2])
        == expected[2]
        == {"step/bytes": 4.0, "step/passes": 2, "step/seconds": 1.5}
    )


@pytest.mark.parametrize("tracker", ["mlflow2", "wandb,", "none;wandb"])
def test_a_tracker_that_is_none_is_refused(tracker):
    with pytest.raises(
        UserError, match=r"track\.tracker must be none, wandb, mlflow, tensorboard or the import"
    ):
        TrackConfig(tracker=tracker)


def test_what_makes_no_logger_is_refused(run_dir):
    with pytest.raises(UserError, match=r"track\.tracker cannot be pathlib\.Path: settings call nothing of"):
        loggers(TrackConfig(tracker="pathlib.Path"), run_dir)
    with pytest.raises(UserError, match=r"track\.tracker must be derived from Logger, and .*Linear"):
        loggers(TrackConfig(tracker="torch.nn.Linear"), run_dir)


def test_a_logger_that_needs_arguments_is_refused(run_dir):
    with pytest.raises(UserError, match=r"^track\.tracker .*CometLogger cannot be built: "):
        loggers(TrackConfig(tracker="lightning.pytorch.loggers.CometLogger"), run_dir)
