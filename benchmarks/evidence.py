"""Run the papers' experiments that a CPU can run, several seeds each; print their tables, draw their curves.

    python benchmarks/evidence.py fedcor fedgs --seeds 1 2 3 --jobs 2 --data-root DIR --out runs/evidence

A finished run is not repeated and an interrupted one is resumed: the command can be stopped and given again.
With ``--show`` nothing is run: tables are made of the runs that are there. ``--document`` puts tables into a
document, between its marks, and curves into the folder ``images`` beside it.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from evidence_cells import Cell, Experiment
from evidence_figures import draw
from evidence_papers import fedcat, fedcor, fedgs, fedpns, hics, hics_small
from evidence_reasons import fedcat_reasons, fedcor_dropout
from evidence_tables import insert, tables

EXPERIMENTS = {
    made.__name__: made
    for made in (fedcor, fedgs, fedpns, hics, hics_small, fedcat, fedcor_dropout, fedcat_reasons)
}
PAPERS = Path(__file__).resolve().parents[1] / "configs" / "papers"


def main() -> None:
    """Play the chosen experiments, print their tables and draw their curves."""
    options = _options()
    # Read by torch when a worker imports it; with one thread each, runs do not fight for the cores.
    os.environ["OMP_NUM_THREADS"] = "1"
    extra = ["--data.root", options.data_root] if options.data_root else []
    extra += [] if options.rounds is None else ["--rounds", str(options.rounds)]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for name in options.names:
            experiment = EXPERIMENTS[name]()
            plan = [
                (cell, seed, folder_of(options.out / name, cell, seed))
                for seed in options.seeds
                for cell in experiment.cells
                if not options.rows or cell.row in options.rows
            ]
            if not options.show:
                list(pool.map(partial(_play, extra), plan))
            report(name, experiment, plan, options.document)


def folder_of(parent: Path, cell: Cell, seed: int) -> Path:
    """Return where a run of a cell is kept."""
    return parent / f"{cell.column}-{cell.row}-s{seed}".replace(" ", "_")


def report(
    name: str, experiment: Experiment, plan: list[tuple[Cell, int, Path]], document: Path | None
) -> None:
    """Print the tables of the finished runs, or put them into a document and the curves into its images."""
    finished: dict[Cell, dict[int, Path]] = {}
    for cell, seed, folder in plan:
        if (folder / "summary.json").exists():
            finished.setdefault(cell, {})[seed] = folder
    if not finished:
        print(f"{name}: no run is finished")
        return
    made = tables(experiment, finished)
    if document is None:
        print(f"{experiment.title}\n\n{made}", flush=True)
        return
    insert(made, document, name)
    images = document.parent / "images"
    images.mkdir(exist_ok=True)
    draw(experiment, finished, images / f"{name}.png")


def _play(extra: list[str], job: tuple[Cell, int, Path]) -> None:
    """Play one run in this process unless it is finished; resume it if it was interrupted."""
    from flsel.commands.cli import main as flsel

    cell, seed, folder = job
    if (folder / "summary.json").exists():
        return
    if (folder / "checkpoints" / "last.ckpt").exists():
        arguments = ["--resume", str(folder)]
    else:
        arguments = [
            "--config", str(PAPERS / cell.config), *cell.settings, "--seed", str(seed), "--quiet", "true",
            "--output.dir", str(folder.parent), "--output.name", folder.name, *extra,
        ]  # fmt: skip
    started = time.perf_counter()
    code = flsel(["train", *arguments])
    if code:
        raise RuntimeError(f"flsel train {' '.join(arguments)} ended with exit code {code}")
    print(f"{folder}: {time.perf_counter() - started:.0f} s", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=list(EXPERIMENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rows", nargs="+", help="rows of the table to play; all if not given")
    parser.add_argument("--rounds", type=int, help="communication rounds; the config's if not given")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--data-root", default=os.environ.get("FLSEL_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"))
    parser.add_argument(
        "--document", type=Path, help="put the tables there, not on the screen, and the curves into images/"
    )
    parser.add_argument("--show", action="store_true", help="run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
