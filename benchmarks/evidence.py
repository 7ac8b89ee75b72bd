"""Execute the comparisons behind docs/results: an experiment is a YAML file in benchmarks/evidence.

    python benchmarks/evidence.py                         # list them
    python benchmarks/evidence.py atlas_synthetic --seeds 3
    python benchmarks/evidence.py hics_small --quick      # few rounds, two seeds: does it run?

Each becomes ``comparisons/NAME``, which ``flsel compare`` executes, resumes and reports. Started again it
resumes, and with more seeds it grows. One that cannot be executed is reported, and the next one begins.
FLSEL_DATA names the folder of the datasets.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flsel.commands.argv import parse
from flsel.commands.cli import main as flsel
from flsel.comparison.cells import jobs_left, read_again, read_cells
from flsel.comparison.comparison_file import read_declaration, write_declaration
from flsel.comparison.grid import FILE, Grid, Scenario, Variant
from flsel.comparison.judging.settings import Judging
from flsel.comparison.parse_variants import read_seeds
from flsel.config import RunConfig
from flsel.errors import Interrupted, UserError
from flsel.execution.executor import Listener
from flsel.execution.in_process import InProcess
from flsel.execution.job import Job
from flsel.runner.lock import Lock

HERE = Path(__file__).resolve().parent / "evidence"
QUICK_ROUNDS, QUICK_SEEDS = 4, "2"
STOPPED = 130


@dataclass(frozen=True)
class Experiment:
    """One file.

    Attributes:
        name: Its name.
        title: What it asks.
        cost: What it took, or that it was not run.
        config: Shipped config, or settings.
        changes: Settings over it.
        variants: By name, settings.
        scenarios: Likewise; none is one scenario without a name.
        seeds: As for ``flsel compare``.
        judging: Baseline, target, last.
    """

    name: str
    title: str
    cost: str
    config: str | dict[str, Any]
    changes: dict[str, Any]
    variants: dict[str, dict[str, Any]]
    scenarios: dict[str, dict[str, Any]]
    seeds: str
    judging: dict[str, Any]

    def grid(self, seeds: str | None = None, *, quick: bool = False) -> Grid:
        """Return what is compared.

        Args:
            seeds: Other seeds.
            quick: Few rounds and seeds, under a target of its own.

        Raises:
            UserError: If a setting does not fit.
        """
        changes = {**self.changes, "evaluation.stop_at_target": False, "threads": 1}
        if quick:
            changes |= {"rounds": QUICK_ROUNDS, "evaluation.every": 1}
        own = {} if isinstance(self.config, str) else self.config
        base = RunConfig() if own else parse([("config", self.config)])
        return Grid(
            RunConfig.from_dict(RunConfig.from_dict(base.to_dict(), own).to_dict(), changes).to_dict(),
            tuple(Variant(name, entry) for name, entry in self.variants.items()),
            tuple(Scenario(name, entry) for name, entry in self.scenarios.items()) or (Scenario(),),
            read_seeds(seeds or (QUICK_SEEDS if quick else self.seeds)),
        )


def experiments() -> dict[str, Experiment]:
    """Read all files. ``like`` names, by key, the experiment that a key is taken from."""
    files = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(HERE.glob("*.yaml"))}
    usual = {"changes": {}, "scenarios": {}, "judging": {}}
    found = {}
    for name, plain in files.items():
        shared = {key: files[other][key] for key, other in plain.pop("like", {}).items()}
        found[name] = Experiment(name=name, **{**usual, **shared, **plain})
    return found


def declare(experiment: Experiment, folder: Path, grid: Grid, command: str) -> None:
    """Write the comparison's file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_declaration(folder, grid, Judging(**experiment.judging), [command])


def execute_runs(folder: Path) -> int:
    """Execute what is left of a comparison, and say what became of each run.

    Returns:
        The exit code: 2 if a run failed.

    Raises:
        Interrupted: If a signal stopped it; it goes on from there when it is started again.
    """
    grid, _, _ = read_declaration(folder)
    failed = []

    def tell(job: Job) -> None:
        run = read_again(jobs[job])
        print(run.folder, run.status, run.reason, flush=True)
        if run.status == "failed":
            failed.append(run)

    with Lock(folder, "comparison"):
        jobs, executor = jobs_left(grid, folder, read_cells(grid, folder)), InProcess()
        with executor.ready(None):
            executor.execute(list(jobs), folder, Listener(tell, lambda rounds: None))
    return 2 if failed else 0


def main(arguments: list[str]) -> int:
    """Execute what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", help="other seeds than the file's, such as 5, 1..8 or 1,3")
    parser.add_argument("--folder", type=Path, default=Path("comparisons"))
    parser.add_argument("--quick", action="store_true", help="few rounds, two seeds, in a folder of its own")
    parser.add_argument(
        "--no-report", action="store_true", help="execute runs only, for a machine without vl-convert"
    )
    parser.add_argument("--device", default=None, help="accelerator of the runs, such as cuda")
    chosen = parser.parse_args(arguments)
    known = experiments()
    if not chosen.names:
        print("\n".join(f"{e.name:24}{e.title} {e.cost}" for e in known.values()))
    unknown = next((name for name in chosen.names if name not in known), None)
    if unknown is not None:
        raise UserError(f"there is no experiment {unknown}; there are {', '.join(known)}.")
    worst = 0
    for name in chosen.names:
        folder = chosen.folder / (f"{name}_quick" if chosen.quick else name)
        if not (folder / FILE).exists():
            grid = known[name].grid(chosen.seeds, quick=chosen.quick)
            if chosen.device:
                grid.config["accelerator"] = chosen.device
            command = shlex.join(["python", "benchmarks/evidence.py", *arguments])
            declare(known[name], folder, grid, command)
        if chosen.no_report:
            worst = max(worst, execute_runs(folder))
            continue
        more = ["--seeds", chosen.seeds] if chosen.seeds else []
        code = flsel(["compare", "--resume", str(folder), *more])
        if code == STOPPED:
            return code
        # One that lacks its dataset must not keep those behind it from being executed.
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Interrupted as stop:
        sys.exit(f"evidence: {stop}")
    except UserError as error:
        sys.exit(f"evidence: {error}")
