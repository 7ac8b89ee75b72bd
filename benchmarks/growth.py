"""Time and memory of a round against clients, cohort and parameters: one process a cell, resumable.

python benchmarks/growth.py DIR            # runs what DIR/growth.jsonl does not hold yet, on one thread
python benchmarks/growth.py DIR --report   # writes growth.md and growth.svg beside this file

A cell is ended when it needs more than --seconds or --gigabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import table

HERE = Path(__file__).parent
SMALL = (100, 1_000, 10_000, 100_000)
ALL = (*SMALL, 1_000_000)
COHORTS = (10, 30, 100, 300, 1_000)
# Units of the hidden layer of 60-h-10 with 1e3 to 1e7 parameters.
WIDTHS = (14, 140, 1_408, 14_085, 140_845)


@dataclass(frozen=True)
class Cell:
    """What is measured.

    Attributes:
        about: What grows: ``clients``, ``cohort`` or ``parameters``.
        data: ``synthetic``, or ``resampled``: Fashion-MNIST's examples drawn with replacement.
        selector: Class in ``flsel.selectors``.
        clients: N.
        cohort: K.
        width: Units of the hidden layer; 0 for logistic regression.
    """

    about: str
    data: str
    selector: str
    clients: int
    cohort: int = 10
    width: int = 0


def cells() -> list[Cell]:
    """List all cells, cheap ones first."""
    found = [Cell("clients", data, "Uniform", n) for data in ("synthetic", "resampled") for n in ALL]
    found += [Cell("clients", "synthetic", name, n) for name in ("AFL", "HiCS", "FedCor") for n in ALL]
    found += [Cell("clients", "synthetic", name, n) for name in ("ClusteredSampling", "DivFL") for n in SMALL]
    found += [
        Cell("cohort", data, "Uniform", 10_000, k) for data in ("synthetic", "resampled") for k in COHORTS
    ]
    found += [Cell("parameters", "synthetic", "Uniform", 100, 10, width) for width in WIDTHS]
    return sorted(found, key=lambda cell: cell.clients * (1 + 9 * (cell.selector != "Uniform")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-root", default=os.environ.get("FLSEL_DATA"), help="folder with FashionMNIST")
    parser.add_argument("--seconds", type=float, default=900, help="most wall time of a cell")
    parser.add_argument("--gigabytes", type=float, default=8, help="most memory of a cell")
    parser.add_argument("--report", action="store_true", help="write the tables and the plots")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.cell:
        print(json.dumps(run_cell(Cell(**json.loads(chosen.cell)), chosen.data_root)))
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    file = chosen.folder / "growth.jsonl"
    if chosen.report:
        report(read(file))
        return
    done = {json.dumps(row["cell"], sort_keys=True) for row in read(file)}
    for cell in cells():
        if json.dumps(asdict(cell), sort_keys=True) in done:
            continue
        if cell.data == "resampled" and chosen.data_root is None:
            continue
        row = {"cell": asdict(cell), **watched(cell, chosen)}
        with open(file, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def read(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def watched(cell: Cell, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run a cell in a process of its own, and end it at its limits."""
    command = [sys.executable, __file__, str(chosen.folder), "--cell", json.dumps(asdict(cell))]
    command += ["--data-root", chosen.data_root] if chosen.data_root else []
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as child:
        over = ""
        while child.poll() is None and not over:
            time.sleep(0.2)
            if time.monotonic() - began > chosen.seconds:
                over = f"over {chosen.seconds:g} s"
            elif peak(child.pid) > chosen.gigabytes:
                over = f"over {chosen.gigabytes:g} GB"
        if over:
            child.kill()
        out, err = child.communicate()
    if over:
        return {"failed": over}
    if child.returncode != 0:
        return {"failed": err.strip().splitlines()[-1][:300]}
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def peak(process: int | str = "self") -> float:
    """Return the most memory that a process has had, in GB; Linux only."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0) * 1024 / 1e9


def run_cell(cell: Cell, root: str | None) -> dict[str, Any]:
    """Run some rounds of a cell in this process."""
    import growth_runs
    import torch

    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # imports what every optimizer does
    base, began = peak(), time.process_time()
    built = growth_runs.build(cell.data, cell.selector, cell.clients, cell.cohort, cell.width, root)
    setup, after = time.process_time() - began, peak()
    spent, until = [], time.process_time() + 60
    while len(spent) < 12 and (len(spent) < 3 or time.process_time() < until):
        began = time.process_time()
        built.server.step()
        spent.append(time.process_time() - began)
    began = time.process_time()
    built.server.evaluate(torch.empty(0, dtype=torch.int64))
    return {
        "parameters": sum(p.numel() for p in built.program.trainable().values()),
        "setup_seconds": setup,
        "first_seconds": spent[0],
        "round_seconds": sorted(spent[1:])[len(spent[1:]) // 2],
        "worst_seconds": max(spent[1:]),
        "evaluation_seconds": time.process_time() - began,
        "imports_gb": base,
        "setup_gb": after,
        "peak_gb": peak(),
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Write the tables and the plots."""
    import growth_figure

    growth_figure.draw(rows, HERE / "growth.svg")
    parts = []
    for about, (_, title) in growth_figure.ABOUT.items():
        parts.append(f"## {title}\n\n{table(_COLUMNS, growth_figure.lines(rows, about))}")
    # What stands above the tables is written by hand.
    page = HERE / "growth.md"
    head, _, _ = (
        page.read_text(encoding="utf-8").partition("\n## ") if page.exists() else ("# Growth\n", "", "")
    )
    page.write_text(f"{head.rstrip()}\n\n" + "\n\n".join(parts) + "\n", encoding="utf-8")


_COLUMNS = (
    "data", "selector", "size", "set-up", "first round", "a round", "worst", "evaluation", "peak memory",
    "time ~ size^", "memory ~ size^",
)  # fmt: skip


if __name__ == "__main__":
    main()
