"""Commands that have settings of their own beside those of the runs that they execute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from jsonargparse import ArgumentParser

from flsel.commands.argv import Word, words
from flsel.commands.help import own_parser
from flsel.config.layers import SHORT
from flsel.config.parser import to_types
from flsel.config.schema import groups, keys
from flsel.errors import UserError, closest, edits, meant

# What other programs call a command's own settings.
_ELSEWHERE = {
    "alpha": "level (1 - alpha)",
    "confidence": "level",
    "significance": "level (1 - significance)",
    "repeats": "seeds",
    "repetitions": "seeds",
    "metric": "decides",
    "jobs": "max_concurrent",
    "parallel": "max_concurrent",
}


@dataclass(frozen=True)
class CommandSettings:
    """A command's own settings.

    Attributes:
        command: Its name.
        schema: A dataclass whose fields they are.
        usage: How it is called, several lines.
        description: What it does, for ``--help``.
        others: Options that are no settings, such as ``resume``.
        short: Options that stand for settings.
    """

    command: str
    schema: Any
    usage: str
    description: str
    others: tuple[str, ...] = ()
    short: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The settings."""
        return tuple(each.name for each in fields(self.schema))

    def split(self, arguments: Sequence[str]) -> tuple[list[Word], list[Word]] | None:
        """Tell the command's own settings and options from those of its runs.

        Returns:
            Both, or None where help is asked for.

        Raises:
            UserError: If a word is no setting, or looks like one of the command's.
        """
        whole = {**{SHORT[name]: name for name in SHORT if name in self.names}, **self.short}
        given = [
            (whole.get(key, key), value)
            for key, value in words([self._underscored(word) for word in arguments])
        ]
        if any(key in ("help", "h") for key, _ in given):
            return None
        mine = (*self.names, *self.others)
        runs = [(key, value) for key, value in given if key not in mine]
        known = {*keys(), *groups(), "config", "print_config"}
        several = "seeds" not in mine or {"seeds", "until_decided"} & {key for key, _ in given}
        if several and "seed" in dict(runs):
            how = "--seeds" if "seeds" in mine else "their number"
            raise UserError(
                f"seed must not be given: flsel {self.command} sets the seeds of its runs by {how}."
            )
        for key, _ in runs:
            if "." in key or key in known:
                continue
            elsewhere = _ELSEWHERE.get(key, "")
            if elsewhere.partition(" ")[0] in mine:
                raise UserError(f"there is no setting {key}; did you mean {elsewhere}?")
            own, close = closest(key, mine), closest(key, [*mine, *known])
            # Of two that are as near the command's own is meant.
            if own and close and edits(key, own) <= edits(key, close):
                raise UserError(f"there is no setting {key}; did you mean {own}?")
        return [(key, value) for key, value in given if key in mine], runs

    def typed(self, own: Sequence[Word]) -> Any:
        """Make the settings of words, with their types; texts stay as they were typed.

        Raises:
            UserError: If a value is missing, or has the wrong type or range.
        """
        hints = get_type_hints(self.schema)
        laid = dict[str, Any]()
        for key, value in own:
            if value is None:
                raise UserError(f"{key} needs a value: --{key} VALUE.")
            several = hints[key] == tuple[str, ...]  # may be repeated
            laid[key] = (*laid.get(key, ()), value) if several else value
        plain = (str, str | None, tuple[str, ...])
        texts = {key: value for key, value in laid.items() if hints[key] in plain}
        numbers = {key: value for key, value in laid.items() if key not in texts}
        return self.schema(**{**to_types("", self.schema, numbers), **texts})

    def close(self, word: str) -> str:
        """Return the end of a sentence about a word that is no setting of the command."""
        return meant(word, (*self.names, *self.others))

    def parser(self) -> ArgumentParser:
        """Return the parser of the settings, for their help and their comments."""
        return own_parser(self.command, self.schema, self.usage, self.description)

    def _underscored(self, word: str) -> str:
        """Accept --max-concurrent for --max_concurrent."""
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name.replace("-", "_") in (*self.names, *self.others):
            return f"--{name.replace('-', '_')}{equals}{value}"
        return word
