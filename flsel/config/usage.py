"""The text of ``flsel COMMAND --help`` and of the comments that ``--print_config`` prints."""

from __future__ import annotations

import inspect
import textwrap
from argparse import SUPPRESS, Action
from typing import Any

from jsonargparse import DefaultHelpFormatter, Namespace

from flsel.config.explain import not_a_class, resolve
from flsel.config.schema import groups, plugins, rule
from flsel.errors import UserError

DESCRIPTION = """\
Every setting is a key of the YAML file (--config FILE) and an option (--local.batch_size 32); what comes
later wins, and true may be left out (--quiet). Where a class is asked for, --selector PowD chooses it,
--selector.d 20 sets an argument, --selector.help lists classes and --selector.help PowD explains one; a
class that replaces another starts from its own defaults. Your own class is given by its import path,
--model mymodels.Net, from the current folder or an installed package. --print_config prints all settings
as a YAML file to start from.
"""
USAGE = {
    "train": "flsel train [--config FILE] [--key value ...]\n       flsel train --resume RUN",
    "data": "flsel data [--config FILE] [--key value ...] [--picture partition.png]",
}
_WIDTH = 96


class HelpFormatter(DefaultHelpFormatter):
    """Show each setting with the values it takes, in words, and its default."""

    def _get_help_string(self, action: Action) -> str:
        text = (action.help or "").replace("``", "").strip()
        hint = getattr(action, "_typehint", action.type)
        if hint is None or action.default == SUPPRESS:
            return text
        return textwrap.fill(f"{text} ({rule(hint)}; default: {_shown(action.default)})".strip(), _WIDTH)

    def _format_action(self, action: Action) -> str:
        # Whole groups as one value, and one line of help on help per class, would bury the settings.
        hidden = action.dest in groups() or action.dest.endswith(".help")
        return "" if hidden else super()._format_action(action)


def class_help(key: str, name: str | None) -> str:
    """Return the help of a class that a setting takes, or a list of such classes.

    Args:
        key: Dotted key of the setting, such as ``selector``.
        name: Name or import path of the class; None lists the classes.

    Raises:
        UserError: If there is no such class.
    """
    asked = plugins()[key]
    if name is None:
        known = [(known, inspect.getdoc(made) or "") for known, made in asked.classes().items()]
        listed = "\n".join(f"  {known:24} {doc.partition(chr(10))[0]}" for known, doc in known)
        return f"{key}: one of these, or the import path of another {asked.base.__name__}\n\n{listed}"
    made = asked.classes().get(name) or (resolve(key, asked, name) if "." in name else None)
    if made is None:
        raise UserError(not_a_class(key, asked, name))
    takes = (asked.arguments(made) or {}).values()
    options = "\n".join(f"  --{key}.{p.name}{_default(p)}" for p in takes)
    doc = inspect.getdoc(made) or "(no description)"
    return f"{made.__module__}.{made.__qualname__}\n\n{doc}\n\n{options or 'It takes no arguments.'}"


def _default(parameter: inspect.Parameter) -> str:
    required = parameter.default is parameter.empty
    return " (required)" if required else f" (default: {_shown(parameter.default)})"


def _shown(default: Any) -> str:
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, dict | Namespace) and "class_path" in default:
        return str(default["class_path"]).rpartition(".")[2]
    if isinstance(default, list | tuple):
        return f"[{', '.join(map(str, default))}]"
    return str(default)
