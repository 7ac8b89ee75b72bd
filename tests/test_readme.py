"""What the documentation shows works: its Python is run, its commands are run for two rounds."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from importlib import import_module
from inspect import isclass, signature
from pathlib import Path

import pytest
from jobs import without_ray

from flsel import availability, partition
from flsel.availability import Availability
from flsel.commands.cli import COMMANDS, HELP, main
from flsel.commands.help import run_parser
from flsel.config import RunConfig
from flsel.partition import Partition
from flsel.selector import Need, Selector
from flsel.testing import CHECKS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
# The pages on what users bring of their own.
OWN = [(ROOT / f"docs/{name}.md").read_text() for name in ("models-and-data", "objectives", "callbacks")]
SELECTORS = (ROOT / "docs/selectors.md").read_text()
DOCS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The lines of the shell blocks that call flsel, without comments."""
    lines = [line.partition(" #")[0].strip() for block in blocks(text, "bash") for line in block.splitlines()]
    return [line for line in lines if re.match(r"(python -m )?flsel ", line)]


def modules(text: str) -> dict[str, str]:
    """The Python blocks that begin with the name of their file, by that name."""
    named = {re.match(r"# (\w+\.py)\n", block): block for block in blocks(text, "python")}
    return {match[1]: block for match, block in named.items() if match}


def call(arguments: list[str]) -> int:
    """The exit code of flsel; --print_config ends the process instead of returning it."""
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the modules that the documentation shows, and the repository's configs."""
    shown = {name: code for page in (README, *OWN) for name, code in modules(page).items()}
    for name, code in shown.items():
        (tmp_path / name).write_text(code)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in shown:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize("command", commands(README))
def test_command_of_the_readme(command, workplace, monkeypatch, capsys):
    line, _, target = command.partition(" > ")
    arguments = shlex.split(line.removeprefix("python -m "))[1:]
    if "fashion_mnist" in command:
        if not (ROOT / "../shared/data/FashionMNIST").is_dir():
            pytest.skip("no fashion_mnist in ../shared/data")
        # "download: true" fetches nothing where the data is in place.
        monkeypatch.setenv("FLSEL_DATA", str(ROOT / "../shared/data"))
    if arguments[0] == "train" and not target:
        arguments += ["--rounds", "2", "--quiet", "true"]
    if arguments[0] == "tune":
        arguments += ["--trials", "2", "--rounds", "2", "--quiet", "true"]
        without_ray(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert call(arguments) == 0
    if target:
        written = capsys.readouterr().out
        (workplace / target).write_text(written)
        assert main(["train", "--config", target, "--rounds", "1", "--quiet", "true"]) == 0
    if arguments[0] == "train":
        assert list(workplace.glob("runs/*/summary.json"))
    if arguments[0] == "tune":
        assert list(workplace.glob("sweeps/*/best.yaml"))


def test_python_of_the_readme(workplace):
    snippets = [block for block in blocks(README, "python") if not block.startswith("# ")]
    assert len(snippets) == 1
    code = "\n".join(snippets).replace("rounds=50", "rounds=2")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout.splitlines()[-1]) < 1


def test_what_the_docs_show_of_ones_own_trains(workplace, capsys):
    shown = [shlex.split(line)[2:] for page in OWN for line in commands(page) if "flsel train --" in line]
    own = [word for line in shown if any("my_" in word for word in line) for word in line]
    used = [word.partition(".")[0] for word in own if "my_" in word]
    assert used == ["my_partition", "my_availability", "my_objective"]
    (callbacks,) = blocks(OWN[2], "yaml")
    (workplace / "callbacks.yaml").write_text(callbacks)
    own += [
        "--config",
        "callbacks.yaml",
        "--clients",
        "4",
        "--clients_per_round",
        "4",
        "--rounds",
        "2",
        "--quiet",
    ]
    assert main(["train", *own]) == 0
    assert "client 3 took part" in capsys.readouterr().out


def test_commands_of_the_readme_are_all_there_are():
    told = {name.removeprefix("flsel ") for name in re.findall(r"^\| `(flsel \w+)` \|", README, re.MULTILINE)}
    assert told == set(COMMANDS)


def test_numbers_of_the_readme():
    assert f"checks the {len(CHECKS)} rules of the contract" in README
    config = RunConfig()
    assert f"# Synthetic(0.5, 0.5), {config.clients} clients, uniform selection" in README
    assert f"every {config.output.checkpoint_every} rounds, `output.checkpoint_every`" in README


def test_resuming_as_the_readme_says(workplace, capsys):
    assert main(["train", "--rounds", "2", "--quiet", "true", "--output.name", "mine"]) == 0
    assert "flsel train --resume runs/<name>" in README
    assert main(["train", "--resume", "runs/mine"]) == 0


def rows(text: str) -> dict[str, str]:
    """The table rows of a page, by every name in code style of their first cell."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return {name: line for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def shipped_selectors() -> list[type[Selector]]:
    modules = [path.stem for path in (ROOT / "flsel/selectors").glob("*.py") if not path.stem.startswith("_")]
    members = [vars(import_module(f"flsel.selectors.{name}")).values() for name in sorted(modules)]
    return [c for values in members for c in values if isclass(c) and c.__base__ is Selector]


def test_the_readmes_selectors_have_their_needs():
    shipped = {selector.__name__: selector for selector in shipped_selectors()}
    told = {row[0].strip("`"): row[2] for row in table(README, "selector")}
    assert len(told) == 5
    for name, needs in told.items():
        declared = {need.name for need in Need if need & shipped[name]().needs}
        assert set(re.findall(r"`(\w+)`", needs)) == declared
        assert declared or needs == "nothing"
    assert f"[All selectors](docs/selectors.md), {len(shipped)} of them" in README


def sections(text: str) -> dict[str, str]:
    """What is under each heading of the second level, by heading."""
    return dict(part.split("\n", 1) for part in text.split("\n## ")[1:])


def table(text: str, first: str) -> list[list[str]]:
    """The cells of the table whose first column has the given heading; without it, none."""
    found = re.search(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", text, re.MULTILINE)
    lines = found[1].splitlines() if found else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_pages_and_help_are_what_the_classes_say():
    code = runpy.run_path(str(ROOT / "docs/generate.py"))
    for path, text in code["pages"]().items():
        assert path.read_text() == text, "run python docs/generate.py"
    for command, path in HELP.items():
        assert path.read_text() == f"{run_parser(command).format_help()}\n", "run python docs/generate.py"


@pytest.mark.parametrize("selector", shipped_selectors(), ids=lambda selector: selector.__name__)
def test_a_selectors_section_has_its_arguments_and_deviations(selector):
    section = sections(SELECTORS)[selector.__name__]
    assert all(f"| `{name}` |" in section for name in signature(selector).parameters)
    assert "**Idea.**" in section
    assert "**Deviations" in section


@pytest.mark.parametrize("selector", shipped_selectors(), ids=lambda selector: selector.__name__)
def test_selector_is_in_the_summary_with_its_needs(selector):
    name = selector.__name__
    row = next(row for row in table(SELECTORS, "selector") if row[0].startswith(f"[`{name}`]"))
    assert row[0].endswith(f"(#{name.lower()})")
    told = set(re.findall(r"`([A-Z_]+)`", row[1]))
    declared = {need.name for need in Need if need & selector().needs}
    assert told >= declared
    assert told <= set(Need.__members__)
    assert declared or row[1] == "nothing"


def test_every_section_is_of_a_selector():
    assert set(sections(SELECTORS)) == {selector.__name__ for selector in shipped_selectors()}


def test_partitions_and_availability_modes_are_in_the_readme():
    modes = {c.__name__ for c in vars(availability).values() if isclass(c) and c.__base__ is Availability}
    assert modes | set(partition.__all__) - {Partition.__name__} <= set(rows(README))


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#]+)", path.read_text())
    missing = [link for link in links if not link.startswith("http") and not (path.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_python_in_the_docs_compiles(path):
    for block in blocks(path.read_text(), "python"):
        compile(block, path.name, "exec")


def test_picture_is_small():
    assert (ROOT / "docs/images/report.png").stat().st_size < 150_000


def test_the_tests_that_the_page_on_reliability_names_exist() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w./]+)`", text))
    assert len(named) > 8
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_walk_through_the_code_has_at_most_fifteen_files() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    walk = sections(text)["Reading the code"]
    steps = re.findall(r"^\| \d+ \| \[`([\w/.]+)`\]\(\.\./flsel/([\w/.]+)\) \|", walk, re.MULTILINE)
    assert 10 <= len(steps) <= 15
    assert all(shown == linked and (ROOT / "flsel" / shown).is_file() for shown, linked in steps)
