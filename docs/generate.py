"""Write what is told of the settings from the code: docs/arguments.md, and the help of commands.

python docs/generate.py  # a test fails where a file differs from what this writes
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from docstring_parser import parse

from flsel.arguments import arguments, shown
from flsel.availability import Availability
from flsel.commands.cli import HELP
from flsel.config.schema import Plugin
from flsel.config.usage import run_parser
from flsel.objectives import Objective
from flsel.partition import Partition
from flsel.selector import Selector

PAGE = Path(__file__).with_name("arguments.md")
KINDS: tuple[tuple[str, type, str], ...] = (
    ("Selectors", Selector, "--selector"),
    ("Objectives", Objective, "--objective"),
    ("Partitions", Partition, "--partition"),
    ("Availability modes", Availability, "--availability"),
)
HEAD = """# Arguments

What every class takes, and where it deviates from its source. A paper's symbol stands in brackets. The
command line shows the same: `--selector.help NAME`. Idea, cost and measurements:
[selectors.md](selectors.md), [objectives.md](objectives.md). This page is written from the classes by
`docs/generate.py`.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, base, option in KINDS:
        parts.append(f"## {title}\n\n`{option} NAME`\n")
        for name, made in Plugin(base).classes().items():
            parts.append(
                "\n\n".join(part for part in (f"### {name}", _table(made), _deviations(made)) if part) + "\n"
            )
    return "\n".join(parts)


def _table(made: Any) -> str:
    meanings = {
        entry.arg_name: " ".join((entry.description or "").split())
        for entry in parse(inspect.getdoc(made) or "").params
    }
    rows = []
    for name, argument in arguments(made).items():
        default = shown(argument.default).strip("'")
        rows.append(f"| `{name}` | {argument.rule()} | `{default}` | {_plain(meanings[name])} |")
    head = ["| argument | values | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else "No arguments."


def _deviations(made: Any) -> str:
    """Return the paragraphs on deviations: of a selector's or an objective's module, or of the class."""
    alone = issubclass(made, Selector | Objective) and made.__name__ != "FedAvg"
    told = inspect.getdoc(sys.modules[made.__module__] if alone else made) or ""
    found = re.search(r"\*\*Deviations.*?(?=\n\nAttributes:|\Z)", told, re.DOTALL)
    return _plain(found[0]) if found else ""


def _plain(text: str) -> str:
    """Turn the markup of docstrings into Markdown."""
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`").replace("\n\n\n", "\n\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for command, path in HELP.items():
        path.write_text(run_parser(command).format_help() + "\n", encoding="utf-8")
