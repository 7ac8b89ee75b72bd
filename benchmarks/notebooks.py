"""What a notebook of the docs takes, cell by cell, in a process of its own: processor time and seconds.

    python benchmarks/notebooks.py [--notebook first-comparison] [--threads 1]

Imports and the HTML that the cells show count; a kernel's start does not.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

from pages import markdown, options

FOLDER = Path(__file__).resolve().parents[1] / "docs/notebooks"


def run_cell(source: str, names: dict[str, object]) -> None:
    """Run a cell, and make what its last line shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    for name in ("_repr_html_", "_repr_svg_"):
        if hasattr(value, name):
            getattr(value, name)()


def main() -> None:
    """Print a row for each cell, and their sum."""
    parser = options(__doc__)
    parser.add_argument("--notebook", default="first-comparison")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    cells = json.loads((FOLDER / f"{chosen.notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    module = ModuleType("notebook")
    sys.modules[module.__name__] = module  # classes of the cells are found by name
    rows, start, here = [], (time.process_time(), time.perf_counter()), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, source in enumerate(sources, 1):
            before = time.process_time(), time.perf_counter()
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                run_cell(source, module.__dict__)
                if number == 1:
                    import torch

                    torch.set_num_threads(chosen.threads)
            rows.append([f"{number}: `{source.splitlines()[-1]}`", *_since(before)])
        os.chdir(here)
    print(markdown(["cell, its last line", "processor time", "seconds"], [*rows, ["all", *_since(start)]]))


def _since(before: tuple[float, float]) -> list[str]:
    return [f"{time.process_time() - before[0]:.1f} s", f"{time.perf_counter() - before[1]:.1f} s"]


if __name__ == "__main__":
    main()
