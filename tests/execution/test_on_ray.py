"""A comparison's cells executed side by side are those executed one after the other."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import runs
from processes import PLUGIN, eventually, family, words_of

from flsel.commands.cli import main
from flsel.comparison.compare import resume_comparison as resume_with
from flsel.comparison.compare import start_comparison as start_with
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.comparison import Comparison
from flsel.config import RunConfig
from flsel.config.groups import OutputConfig
from flsel.execution.choose_executor import executor_for
from flsel.execution.on_ray.actor import JobActor
from flsel.execution.on_ray.cluster import started

RAISING = """
from flsel.selector import Selector

class Raising(Selector):
    def select(self, view):
        raise ZeroDivisionError("nobody is there")
"""

# Its process dies when it is about to be given another job.
IDLE = """
import os
from pathlib import Path

from flsel.execution.on_ray.actor import JobActor
from flsel.selectors import Uniform

_take_up_another = JobActor.reset_config


def _die_once(actor, config):
    mark = Path("died-between-two-jobs")
    if not mark.exists():
        mark.touch()
        os._exit(1)
    return _take_up_another(actor, config)


JobActor.reset_config = _die_once


class Idle(Uniform):
    pass
"""

pytestmark = pytest.mark.usefixtures("here")


def start(config: RunConfig, wanted: CompareConfig) -> Comparison:
    return start_with(config, wanted, "", executor_for(wanted.resources))


def resume(folder: Path, wanted: CompareConfig) -> Comparison:
    return resume_with(folder, wanted, "", executor_for(wanted.resources))


SMALL = (
    "--clients", "8", "--clients_per_round", "3", "--threads", "1",
    "--data.synthetic.dimension", "6", "--data.synthetic.classes", "3",
)  # fmt: skip


def begun(folder: Path) -> bool:
    metrics = list(folder.glob("runs/all/Uniform/s*/metrics.csv"))
    return any(len(path.read_text().splitlines()) > 10 for path in metrics)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster for several comparisons of this process, with modules of selectors."""
    folder = tmp_path_factory.mktemp("modules")
    for name, code in (("frail", PLUGIN), ("raising", RAISING), ("idle", IDLE)):
        (folder / f"{name}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setattr(JobActor, "reset_config", JobActor.reset_config)  # which the module idle replaces
        with started(None, 0):
            yield


def test_dying_processes_and_raising_selectors_cost_nothing_but_themselves(tmp_path, capsys, cluster):
    """One process dies between two jobs, one within a job; a selector raises; the rest is executed."""
    names = ["idle.Idle", "Uniform", "frail.Fragile:deaths=1", "raising.Raising"]
    words = [
        "compare", *SMALL, "--rounds", "20", "--selectors", ",".join(names), "--seeds", "1",
        "--name", "deadly", "--max-concurrent", "2", "--retries", "2",
    ]  # fmt: skip
    assert main(words) == 2
    said = "".join(capsys.readouterr())
    assert "no run of raising.Raising could be counted (" in said
    assert "Traceback" not in said
    with open(tmp_path / "comparisons/deadly/results.csv", newline="") as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    statuses = ["complete", "complete", "complete", "failed"]
    assert {name: rows[name]["status"] for name in names} == dict(zip(names, statuses, strict=True))
    assert "ZeroDivisionError: nobody is there (raising.py, line" in rows["raising.Raising"]["reason"]


def test_a_stopped_comparison_goes_on_and_grows_with_the_same_bits(tmp_path, cluster):
    """Stopped by SIGTERM with all of Ray, resumed and extended by Ray: as one that this process executed."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "flsel", "compare", *SMALL, "--rounds", "150", "--selectors", "Uniform,AFL",
            "--seeds", "1", "--name", "broken", "--max-concurrent", "2",
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    folder = tmp_path / "comparisons/broken"
    assert eventually(lambda: begun(folder) or process.poll() is not None)
    members = family(process.pid)
    process.terminate()
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 130, said
    assert said.endswith("continue with: flsel compare --resume comparisons/broken\n")
    assert eventually(lambda: not any(map(words_of, members)))
    runs_left = resume(folder, CompareConfig(seeds="2", max_concurrent=2)).analysis.runs
    config = replace(runs_left[0].result.config, output=OutputConfig())
    whole = start(config, CompareConfig(selectors="Uniform,AFL", seeds="2", name="whole"))
    assert len(runs_left) == 4
    for one, other in zip(runs_left, whole.analysis.runs, strict=True):
        assert one.status == "complete"
        assert runs.same(runs.left_behind(one.folder), runs.left_behind(other.folder))


@pytest.mark.parametrize("words", [["--cpus", "99", "--max-concurrent", "2"], ["--address", "127.0.0.1:1"]])
def test_what_ray_refuses_leaves_nothing_behind(tmp_path, words, capsys, cluster):
    small = ["--rounds", "3", "--clients", "8", "--clients_per_round", "3", "--name", "refused"]
    assert main(["compare", "--selectors", "Uniform,AFL", *small, *words]) == 2
    assert capsys.readouterr().err.startswith("flsel: error: ")
    assert not (tmp_path / "comparisons").exists()
