"""Each tutorial in docs/jobs runs from its first line to its last, and prints what it shows.

`python tests/test_jobs_of_the_docs.py` writes what is printed into the pages.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import without_ray

from flsel.commands.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs/jobs").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = 12


def run(command: str) -> str:
    """Run a command of flsel, or a script, in the current folder and return what it prints."""
    printed, code = io.StringIO(), 0
    name, *arguments = shlex.split(command)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if name == "python":
            runpy.run_path(*arguments)
        else:
            code = main(arguments)
    assert code == 0, f"{command}\n{printed.getvalue()}"
    return printed.getvalue()


def outputs(page: str) -> Iterator[tuple[str, str]]:
    """Do what a page says, in the current folder; yield each output that it shows and what was printed."""
    printed = ""
    for language, text in BLOCK.findall(page):
        name = re.match(r"# (\w+\.\w+)\n", text)
        if name:
            Path(name[1]).write_text(text)
        elif language == "python":
            exec(text, {})
        elif language == "bash":
            printed = "".join(run(line) for line in text.splitlines())
        elif language == "text":
            yield text, printed


def form(text: str) -> str:
    """Return a text without what may differ between machines: numbers, breaks of lines, rules of tables."""
    return " ".join(re.sub(r"[^\x00-\x7f]", " ", re.sub(r"<?\s*-?\d[\d.,e-]*", " # ", text)).split())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_job_runs_and_prints_what_its_page_shows(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    without_ray(monkeypatch)
    before, shown = set(sys.modules), 0
    try:
        for expected, printed in outputs(path.read_text()):
            shown += 1
            for line in filter(lambda line: line != "...", expected.splitlines()):
                assert form(line) in form(printed), f"{line}\nis not in\n{printed}"
    finally:
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
    assert shown


def part(lines: list[str]) -> list[str]:
    """Return what is worth showing: the first verdict of a comparison, else what comes last."""
    first = next((at for at, line in enumerate(lines) if line.startswith("└")), None)
    if first is not None and any("comparisons/" in line for line in lines):
        return [*lines[first + 1 :][:5], "..."]
    left_out = ("wrote runs/", "wrote sweeps/", "flsel: ", "round ", "wall time")
    return [line for line in lines if not line.startswith(left_out)][-MOST_LINES:]


def write(path: Path) -> None:
    """Write what the commands of a page print into its empty outputs."""
    text = path.read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.insert(0, folder)
        without_ray(pytest.MonkeyPatch())
        found = [printed.splitlines() for _, printed in outputs(text)]
    cut = ["\n".join(line.rstrip() for line in part(lines) if line.strip()) for lines in found]
    again = iter(cut)
    path.write_text(
        re.sub(r"```text\n.*?```", lambda _: f"```text\n{next(again)}\n```", text, flags=re.DOTALL)
    )


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    for page in PAGES:
        if not sys.argv[1:] or page.stem in sys.argv[1:]:
            write(page)
