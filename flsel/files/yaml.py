"""Read YAML: files of settings, and values on the command line that are written as YAML."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from flsel.errors import UserError, short
from flsel.files import check_regular

MOST_BYTES = 200_000
MOST_VALUES = 100_000  # After aliases are written out.
MOST_DEEP = 100
# In C where there is one: ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What YAML 1.1 makes other numbers of: 010 is 8, 1:30 is 90, and 1_0 is 10, which is a text in YAML 1.2.
_OTHER_NUMBER = re.compile(
    r"[-+]?(0[0-7]*[1-7][0-7]*|[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"
    r"|(?=.*_)(0x[0-9a-f_]+|0b[01_]+|[0-9][0-9_]*(:[0-9_]+)*(\.[0-9_]*)?(e[-+]?[0-9]+)?))",
    re.IGNORECASE,
)
# Unicode and zero-width spaces in indentation.
_NO_INDENT = re.compile(r"^ *([\u00a0\u2000-\u200b\u202f\u3000])", re.MULTILINE)
_ADVICE = {
    "mapping values are not allowed": "a colon too many, or a line that is indented too far",
    "undefined alias": "text that begins with * needs quotes",
    "unexpected end of stream": "a quote is not closed",
    "',' or '": "a bracket is not closed, or a comma is missing",
    "node content": "a bracket is not closed, or a value is missing",
}
# What YAML's constructors raise for an explicit tag whose value does not fit, and for too many digits.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


def read_yaml(path: Path) -> Mapping[Any, Any]:
    """Read a file of settings.

    Raises:
        UserError: If it is not a readable YAML file of settings, or takes more work than such a file may.
    """
    try:
        check_regular(path, "the file")
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"the file must have at most {MOST_BYTES:,} bytes to be a file of settings.")
        text = path.read_text(encoding="utf-8")
        if odd := _NO_INDENT.search(text):
            line = text.count("\n", 0, odd.start()) + 1
            raise UserError(f"line {line} begins with a character that only looks like a space; use spaces.")
        found = _read(text)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError("there is no such file.") from None
    except OSError as error:
        raise UserError(f"the file cannot be read: {(error.strerror or str(error)).lower()}.") from error
    except UnicodeDecodeError:
        raise UserError("the file must be YAML text, and it is not text.") from None
    except yaml.YAMLError as error:
        raise UserError(f"the file is not valid YAML: {_problem(error, text)}.") from error
    except _MALFORMED as error:
        raise UserError(
            "the file is not valid YAML: a value does not fit its tag, or has too many digits."
        ) from error
    if not isinstance(found, Mapping):
        kind = {type(None): "nothing", list: "a list"}.get(type(found), "one value")
        raise UserError(f"the file must be a mapping of settings, such as `rounds: 100`, got {kind}.")
    return found


def loaded(key: str, value: Any) -> Any:
    """Read a mapping or a list that is given as text on the command line; leave the rest.

    Raises:
        UserError: If it has a key twice, a number that YAML reads as another, or takes too much work.
    """
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return _read(value)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None
        except (yaml.YAMLError, *_MALFORMED):
            return value
    return value


def is_other_number(text: str) -> bool:
    """Tell whether YAML reads a text as another number than it shows, as 010, 1:30 and 1_0."""
    return _OTHER_NUMBER.fullmatch(text) is not None


def _read(text: str) -> Any:
    return copy.deepcopy(_parsed(text))


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """Read YAML, whose files of runs are read again at every look of a comparison."""
    _check_depth(text)
    _check(yaml.compose(text, Loader=_LOADER), {})
    # The comment keeps jsonargparse from taking a file of one empty key for a plain text.
    return get_loader("yaml")(text + "\n#")


def _problem(error: yaml.YAMLError, text: str) -> str:
    """Say where the file stops being YAML, and which mistake usually leads there."""
    mark = getattr(error, "problem_mark", None)
    problem = short(getattr(error, "problem", None) or "it holds a control character")
    if mark is None:
        return problem
    lines = [*text.splitlines(), ""]
    line = lines[min(mark.line, len(lines) - 1)]
    advice = next((f" ({said})" for part, said in _ADVICE.items() if part in problem), "")
    if "\t" in line[: len(line) - len(line.lstrip())]:
        advice = " (a tab: indent with spaces)"
    elif "cannot start any token" in problem:
        advice = f" (text that begins with {line[mark.column : mark.column + 1] or 'it'} needs quotes)"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{advice}"


def _check_depth(text: str) -> None:
    """Refuse what is nested so deeply that composing it would exhaust the stack.

    Raises:
        UserError: If it is.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEEP:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise UserError(f"line {line}: settings are nested at most {MOST_DEEP} deep.")


def _check(node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """Refuse a key that a mapping has twice, of which YAML's loader takes the last, and aliases that explode.

    Args:
        node: Where to look.
        sizes: Values in the nodes that were looked at, by identity; none in one that is not finished.

    Returns:
        How many values the node has when its aliases are written out.

    Raises:
        UserError: If there is such a key, too much, or an alias of what it is part of.
    """
    if isinstance(node, yaml.ScalarNode):
        if not node.style and is_other_number(node.value):
            line = node.start_mark.line + 1
            raise UserError(
                f"line {line}: YAML reads {short(node.value, 60)} as another number; write it plainly, or in "
                "quotes."
            )
        return 1
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = 0
        pairs = [child if isinstance(child, tuple) else (None, child) for child in node.value]
        seen = set[str]()
        for key in (key for key, _ in pairs if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise UserError(f"line {line}: {short(key.value)} is set a second time; keep one.")
            seen.add(key.value)
        sizes[id(node)] = 1 + sum(_check(key, sizes) + _check(value, sizes) for key, value in pairs)
    if sizes[id(node)] == 0:
        raise UserError(f"line {node.start_mark.line + 1}: an alias is part of what it stands for.")
    if sizes[id(node)] > MOST_VALUES:
        raise UserError(f"the file has more than {MOST_VALUES:,} values when its aliases are written out.")
    return sizes[id(node)]
