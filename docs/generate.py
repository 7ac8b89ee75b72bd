"""Write the arguments and deviations in docs/, and the help of commands, from the code.

python docs/generate.py  # a test fails if a file differs from its output
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from docstring_parser import parse

from flsel.arguments import arguments, shown
from flsel.availability import Availability
from flsel.commands.cli import HELP
from flsel.commands.help import run_parser
from flsel.config.plugin import Plugin
from flsel.devices import Devices
from flsel.local.completeness import Completeness
from flsel.objectives import Objective
from flsel.partition import Partition
from flsel.selector import Selector
from flsel.updates import Aggregate, UpdateStep

DOCS = Path(__file__).parent
KINDS: tuple[tuple[str, type, str], ...] = (
    ("Objectives", Objective, "--objective"),
    ("Steps of an update", UpdateStep, "--updates"),
    ("Aggregates", Aggregate, "--aggregate"),
    ("Partitions", Partition, "--partition"),
    ("Availability modes", Availability, "--availability"),
    ("Completeness modes", Completeness, "--completeness"),
    ("Devices", Devices, "--devices"),
)
HEAD = """# Arguments

This page helps you to set the arguments of objectives, steps of an update, aggregates, partitions,
availability and completeness modes and devices, and to see where they deviate from their sources. An example
is `--partition Dirichlet --partition.alpha 0.1`. The symbol of the paper is in brackets.
`flsel train --partition.help NAME` shows the same text. [Selectors](selectors.md) has the arguments of
selectors, and [Local objectives](objectives.md) says what the objectives compute. `docs/generate.py` writes
this page from the classes.
"""
# This script writes the text below such a comment in docs/selectors.md.
BLOCK = re.compile(r"<!-- (\w+) -->\n.*?(?=\n## |\Z)", re.DOTALL)


def pages() -> dict[Path, str]:
    """Return the text of the page of arguments, and of the page of selectors with new blocks."""
    parts = [HEAD]
    for title, base, option in KINDS:
        name = "'[{class_path: NAME, init_args: {ARGUMENT: VALUE}}, ...]'" if base is UpdateStep else "NAME"
        parts.append(f"## {title}\n\n`{option} {name}`\n")
        for name, made in Plugin(base).classes().items():
            parts.append(_joined(f"### {name}", _table(made), _deviations(made)))
    selectors, known = DOCS / "selectors.md", Plugin(Selector).classes()

    atlas, told = _atlas(), dict[str, str]()

    def block(found: re.Match[str]) -> str:
        name, made = found[1], known[found[1]]
        written = _joined(
            atlas.get(name, ""), _source(made), _table(made, told), _deviations(made), _asynchronous(made)
        )
        return f"<!-- {name} -->\n\n{written}"

    return {
        DOCS / "arguments.md": "\n".join(parts),
        selectors: BLOCK.sub(block, selectors.read_text(encoding="utf-8")),
    }


def _asynchronous(made: type[Selector]) -> str:
    """Tell whether an asynchronous run takes a selector, and if not, why."""
    reason = made.only_synchronous
    answer = f"refuse this selector, because {reason}" if reason else "support this selector"
    return f"**Asynchronous runs** {answer}."


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _source(made: Any) -> str:
    """Return the paragraph of a selector's module that names its paper."""
    _, source, *_ = (inspect.getdoc(sys.modules[made.__module__]) or "").split("\n\n")
    # Initials, and the authors after two, stay in the module.
    named = re.sub(r"(?:[A-Z]\. )+", "", _plain(source))
    named = re.sub(r"(^|; )(\w+)(?:, [\w ]+){2,}:", r"\1\2 et al.:", named.replace("\n", " "))
    return "" if source.startswith("**") else f"**Source.** {named}"


def _atlas() -> dict[str, str]:
    """Return what the atlases of selectors measured, by selector."""
    told = {
        name: f"**Atlas.** {points} points; {rounds} of Uniform's rounds and {sent} of its bytes to 70 %."
        for name, points, _, _, _, rounds, sent, _ in _rows(
            "atlas", "Difference to Uniform over all scenarios"
        )[1:]
    }
    page = "atlas-catalogue"
    (_, *places, _), *rows = _rows(page, "All atlases of more selectors")
    for name, *points, _ in rows:
        measured = ", ".join(f"{place} {gain}" for place, gain in zip(places, points, strict=True))
        told[name] = f"**Atlas** [of more selectors](results/{page}.md), points: {measured}."
    return told


def _rows(page: str, title: str) -> list[list[str]]:
    """Return a table of a page of results, with its head and without the line below it."""
    text = (DOCS / f"results/{page}.md").read_text(encoding="utf-8")
    table = text.partition(f"### {title}\n\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    return [rows[0], *rows[2:]]


def _table(made: Any, told: dict[str, str] | None = None) -> str:
    """Return a table of arguments; one that is in ``told``, by its row, points to the class that has it."""
    meanings = {
        entry.arg_name: " ".join((entry.description or "").split())
        for entry in parse(inspect.getdoc(made) or "").params
    }
    rows = []
    for name, argument in arguments(made).items():
        default = "required" if argument.default is MISSING else shown(argument.default).strip("'")
        row = f"| `{name}` | {_short(argument.rule())} | `{default}` | {_plain(meanings[name])} |"
        first = made.__name__ if told is None else told.setdefault(row, made.__name__)
        rows.append(row if first == made.__name__ else f"| `{name}` | | `{default}` | as for `{first}` |")
    head = ["| argument | values | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else "No arguments."


def _short(rule: str) -> str:
    return re.sub(r"\b(?:a (?:finite )?|one of )(?=\w)", "", rule)


def _deviations(made: Any) -> str:
    """Return the paragraphs on deviations: of a selector's or an objective's module, or of the class."""
    alone = issubclass(made, Selector | Objective | UpdateStep | Aggregate) and made.__name__ != "FedAvg"
    told = inspect.getdoc(sys.modules[made.__module__] if alone else made) or ""
    found = re.search(r"\*\*Deviations.*?(?=\n\nAttributes:|\Z)", told, re.DOTALL)
    return _plain(found[0]) if found else ""


def _plain(text: str) -> str:
    """Turn the markup of docstrings into Markdown."""
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`").replace("\n\n\n", "\n\n")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    for command, path in HELP.items():
        path.write_text(run_parser(command).format_help() + "\n", encoding="utf-8")
