"""``flsel dashboard``: definitions in W&B's own classes, of names that runs log; no network without a key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from runs import settings
from wandb_reader import WandbRun, read_run

import flsel
from flsel.commands.cli import main
from flsel.config.groups import EvaluationConfig, OutputConfig, TrackConfig
from flsel.selectors import PowD

FILES = ["participation.vl.json", "report.json", "workspace-comparison.json", "workspace-sweep.json"]
# The library itself still uses pydantic's old validators.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def refused(capfd: Any, *words: str) -> str:
    capfd.readouterr()
    assert main(["dashboard", *words]) == 2
    error = str(capfd.readouterr().err)
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1, error
    return error


def written(*words: str) -> dict[str, Any]:
    assert main(["dashboard", "--project", "p", "--folder", "made", *words]) == 0
    assert sorted(path.name for path in Path("made").iterdir()) == FILES
    return {name: json.loads(Path("made", name).read_text()) for name in FILES}


def test_without_a_key_files_are_written_and_nothing_is_sent(tmp_path):
    """Sockets to elsewhere are refused here, and W&B's own process, which reads its settings, opens none."""
    code = """
import os, sys
from pathlib import Path
def watch(event, arguments):
    names = event in ("socket.getaddrinfo", "socket.gethostbyname")
    if names or (event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple)):
        os._exit(7)
sys.addaudithook(watch)
from flsel.commands.cli import main
code = main(["dashboard", "--project", "p", "--entity", "me"])
tables = [Path("/proc/self/net") / name for name in ("tcp", "tcp6", "udp", "udp6")]
internet = {"socket:[%s]" % line.split()[9]
            for table in tables if table.exists() for line in table.read_text().splitlines()[1:]}
children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
handles = [os.readlink(handle) for pid in children for handle in Path("/proc", pid, "fd").iterdir()]
assert not internet & set(handles), "W&B's process has an internet socket"
sys.exit(code)
"""
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "dashboard").iterdir()) == FILES
    assert done.stdout.splitlines()[-1] == (
        "Nothing was sent: log in with `wandb login` or set WANDB_API_KEY, and the same command saves the "
        "dashboard in W&B."
    )


def test_the_report_reads_back_into_the_librarys_classes():
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces.reports.v2 import internal

    made = written("--group", "it's mine")
    # What the server adds when it stores a view.
    stored = {**made["report.json"], "id": "x", "createdAt": None, "updatedAt": None}
    report = wr.Report._from_model(internal.ReportViewspec.model_validate(stored))
    headings = [block.text for block in report.blocks if isinstance(block, wr.H2)]
    assert headings == [
        "Accuracy and loss", "Rounds to the target", "Cost against accuracy", "Participation",
        "Settings and results", "Runs", "Sweeps",
    ]  # fmt: skip
    grids = [block for block in report.blocks if isinstance(block, wr.PanelGrid)]
    assert [len(grid.panels) for grid in grids] == [6, 2, 4, 4, 2, 0, 3]
    curves = [panel for grid in grids for panel in grid.panels if isinstance(panel, wr.LinePlot)]
    assert [curve.x.name for curve in curves[:4]] == ["round", "step/bytes", "step/passes", "step/seconds"]
    for curve in curves:
        assert curve.groupby == wr.Config("variant")
        assert (curve.groupby_aggfunc, curve.groupby_rangefunc) == ("mean", "stddev")
        assert curve.max_runs_to_show == 1000
    assert [grid.runsets[0].name for grid in grids] == ["Runs"] * 6 + ["Trials"]
    for grid in grids:
        assert "it's mine" in grid.runsets[0].filters
        places = [(panel.layout.x, panel.layout.y) for panel in grid.panels]
        assert len(set(places)) == len(places)


def test_the_workspaces_read_back_into_the_librarys_classes():
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.workspaces import internal

    made = written()
    for name, job, panels in (("comparison", "train", 18), ("sweep", "trial", 3)):
        view = ws.Workspace._from_model(internal.View.model_validate(made[f"workspace-{name}.json"]))
        assert (view.name, view.project) == (f"flsel {name}", "p")
        assert sum(len(section.panels) for section in view.sections) == panels
        assert job in view.runset_settings.filters
        assert view.runset_settings.groupby == [ws.Config("variant")]
        assert view.settings.max_runs == 1000
        assert "config:selector.value" in view.runset_settings.pinned_columns


def test_runs_of_another_score_are_shown_by_it(capfd):
    made = {name: json.dumps(view) for name, view in written("--score", "test/loss").items()}
    assert not any("accurac" in text.lower() for text in made.values())
    assert "last10/test/loss" in made["workspace-comparison.json"]
    assert "validation/loss" in made["workspace-sweep.json"]
    assert '"ascending": true' in made["workspace-comparison.json"]
    assert "F1 and loss" in json.dumps(written("--score", "test/f1:higher"))
    assert "evaluation.better must be lower or higher" in refused(
        capfd, "--project", "p", "--score", "test/f1"
    )
    assert "score must be a column of the test set" in refused(capfd, "--project", "p", "--score", "f1")


def test_settings_are_named_by_their_whole_key():
    made = written("--keys", "selector.d, local.steps")
    accessors = re.findall(r'"accessor": "([^"]+)"', json.dumps(made["workspace-comparison.json"]))
    assert {"config:selector.d.value", "config:local.steps.value", "config:selector.value"} <= set(accessors)


@pytest.fixture
def tracked(tmp_path: Path) -> WandbRun:
    """A run that was tracked offline, read back from W&B's file."""
    flsel.run(
        settings(
            tmp_path / "runs",
            seed=3,
            selector=PowD(d=4),
            track=TrackConfig(tracker="wandb", mode="offline"),
            evaluation=EvaluationConfig(target=0.01),
            output=OutputConfig(dir=str(tmp_path / "runs"), name="s3"),
        )
    )
    (path,) = tmp_path.glob("runs/s3/wandb/offline-run-*/*.wandb")
    return read_run(path)


def test_everything_it_names_is_logged_by_runs(tracked):
    view = json.dumps(written("--keys", "selector.d")["workspace-comparison.json"])
    logged = {re.sub(r"/_type$", "", key) for row in tracked.history for key in row} | set(tracked.summary)
    columns = set(re.findall(r'"config:([\w.]+)\.value"', view))
    assert {"variant", "selector", "selector.d", "seed", "dataset", "partition", "availability"} <= columns
    assert columns <= set(tracked.config)
    summaries = set(re.findall(r'"summary:([^"]+)"', view))
    plotted = {
        name
        for names in re.findall(r'"metrics": \[([^\]]*)\]', view)
        for name in re.findall(r'"([^"]+)"', names)
    }
    steps = set(re.findall(r'"xAxis": "((?!summary:)[^"]+)"', view))
    assert '"value": "selection/counts"' in view
    assert {"test/accuracy", "to_target/round", "selection/distinct"} <= plotted
    assert {"round", "step/bytes", "step/passes", "step/seconds"} <= steps
    # Only runs with devices have a simulated clock.
    assert (summaries | plotted | steps | {"selection/counts"}) - {"step/simulated_seconds"} <= logged
    assert (tracked.job_type, tracked.name) == ("train", "PowD-s3")


def test_the_heat_map_can_be_drawn():
    text = json.dumps(written()["participation.vl.json"])
    for name in ("client", "count"):
        text = text.replace(f"${{field:{name}}}", name)
    assert "${field" not in text
    chart = json.loads(text)
    rows = [{"name": "PowD-s3", "id": f"id{r}", "client": c, "count": c} for r in (0, 1) for c in range(3)]
    chart["data"] = {"values": rows}
    svg = vl_convert.vegalite_to_svg(chart)
    assert all(f"PowD-s3 id{run}" in svg for run in (0, 1))
    assert svg.count('aria-roledescription="rect mark"') == 6


class Service:
    """W&B's server as the library sees it: takes views and hands them back."""

    app_url = "https://wandb.example"

    def __init__(self) -> None:
        self.views: list[dict[str, Any]] = []
        self.charts: list[dict[str, Any]] = []
        self.known = True

    def execute_graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertView" not in query:
            return {"project": {"internalId": "7"} if self.known else None}
        self.views.append(variables)
        view = {
            "id": f"id{len(self.views)}",
            "name": variables["name"],
            "displayName": variables["displayName"],
            "description": variables["description"],
            "project": {"name": variables["projectName"], "entityName": variables["entityName"]},
            "createdAt": "2026-01-01T00:00:00Z",
            "updatedAt": "2026-01-01T00:00:00Z",
            "spec": variables["spec"],
        }
        return {"upsertView": {"view": view, "inserted": True}}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """A key, and the library's client replaced."""
    import wandb

    made = Service()

    class Project:
        name = "p"

    class Api:
        default_entity = "me"

        def __init__(self) -> None:
            self._service_api = made

        def projects(self, entity: str) -> list[Project]:
            return [Project()]

        def create_custom_chart(self, **arguments: Any) -> str:
            made.charts.append(arguments)
            if len(made.charts) > 1:
                raise wandb.errors.CommError("there is one")
            return "me/chart"

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "Api", Api)
    return made


def test_with_a_key_all_is_saved(service, capfd):
    assert main(["dashboard", "--project", "p"]) == 0
    assert not Path("dashboard").exists()
    assert [view["type"] for view in service.views] == ["runs", "project-view", "project-view"]
    assert {(view["entityName"], view["projectName"]) for view in service.views} == {("me", "p")}
    grids = [
        block for block in json.loads(service.views[0]["spec"])["blocks"] if block["type"] == "panel-grid"
    ]
    assert all(grid["metadata"]["runSets"][0]["project"]["entityName"] == "me" for grid in grids)
    assert '"panelDefId":"me/flsel-participation"' in service.views[1]["spec"].replace(" ", "")
    assert service.charts[0]["spec"]["mark"]["type"] == "rect"
    urls = capfd.readouterr().out.split()
    assert len(urls) == 3
    assert all(url.startswith("https://wandb.example/me/p") for url in urls)
    assert main(["dashboard", "--project", "p", "--folder", "made"]) == 0
    assert sorted(path.name for path in Path("made").iterdir()) == FILES
    assert "did not take the heat map me/flsel-participation" in capfd.readouterr().err


def test_what_wandb_refuses_is_one_sentence(service, capfd, monkeypatch):
    service.known = False
    said = refused(capfd, "--project", "p", "--entity", "them")
    assert "the dashboard of them/p cannot be saved in W&B: " in said
    assert "project 'them/p' not found" in said
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["dashboard", "--project", "p"]) == 0
    assert not service.views


def test_bad_input_is_one_sentence(capfd, tmp_path):
    assert (
        refused(capfd) == "flsel: error: flsel dashboard needs the W&B project of the runs: --project NAME.\n"
    )
    assert "no option --projct; did you mean --project?" in refused(capfd, "--projct", "p")
    assert "there are --project, --entity" in refused(capfd, "--project", "p", "--xyz", "1")
    assert "project needs a value: --project VALUE." in refused(capfd, "--project")
    assert "is not expected here" in refused(capfd, "p")
    assert "got 'a/b'" in refused(capfd, "--project", "a/b")
    Path("file").write_text("")
    assert "cannot write file" in refused(capfd, "--project", "p", "--folder", "file")


def test_a_missing_library_is_one_sentence(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    assert 'pip install "flsel[dashboard]"' in refused(capfd, "--project", "p")


def test_help(capsys):
    assert main(["dashboard", "--help"]) == 0
    assert "--folder" in capsys.readouterr().out


@pytest.fixture
def internals():
    """What the library does not document; importing it warns, which the suite lets this file do."""
    found = import_module("flsel.comparison.dashboard.workspaces_internals")
    found._warn.cache_clear()
    return found


def test_without_the_librarys_column_settings_with_a_dot_are_left_to_it(internals, monkeypatch, caplog):
    monkeypatch.setattr(internals, "_INTERNAL", "wandb_workspaces.gone")
    made = written("--keys", "selector.d,seed")
    (said,) = [record.getMessage() for record in caplog.records if record.name == "flsel"]
    assert "has no wandb_workspaces.gone.Column" in said
    assert said.endswith("parallel coordinates lack settings whose key has a dot")
    assert '"config:seed.value"' in json.dumps(made["workspace-comparison.json"])


@pytest.mark.parametrize("kind", ["reports.v2.Report", "workspaces.Workspace"])
def test_a_definition_that_the_library_does_not_tell_is_refused(internals, kind, monkeypatch, capfd):
    module, _, name = f"wandb_workspaces.{kind}".rpartition(".")
    monkeypatch.setattr(getattr(import_module(module), name), "_to_model", property(lambda made: made.gone))
    error = refused(capfd, "--project", "p")
    assert f"does not tell a dashboard's definition ({name}._to_model is gone)" in error
    assert not Path("dashboard").exists()
