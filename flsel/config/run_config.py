"""The settings of a run, and the ways to make them: from plain values, a file, or other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from flsel.arguments import shown
from flsel.config.layers import Layers, by_key
from flsel.config.parser import make_settings
from flsel.config.run_settings import RunSettings
from flsel.errors import UserError
from flsel.models import LogisticRegression


# A dataclass of its own, so that Python names it where an argument is unknown.
@dataclass(frozen=True, eq=False)
class RunConfig(RunSettings):
    """One federated run: all the fields of :class:`flsel.config.run_settings.RunSettings`.

    Two configs are equal if they describe the same run. ``str(config)`` is the YAML that
    ``flsel train --config`` reads.
    """

    @classmethod
    def from_layers(cls, layers: Layers) -> RunConfig:
        """Make a config of what is laid; what is not given is the default.

        Raises:
            UserError: If a value has the wrong type or range, with the file that set it.
        """
        return make_settings(cls, layers)

    @classmethod
    def from_file(cls, path: Path) -> RunConfig:
        """Make a config of a YAML file.

        Raises:
            UserError: As :meth:`from_dict`, or if the file is unreadable.
        """
        layers = Layers()
        layers.lay_file(str(path))
        return cls.from_layers(layers)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> RunConfig:
        """Make a config of plain values, nested as in the YAML file; missing ones take their defaults.

        Args:
            settings: The settings.
            changes: Plain values that replace some of them, nested or by dotted key.

        Raises:
            UserError: If they are no mapping, a key is unknown, or a value has the wrong type or range.
        """
        if not isinstance(settings, Mapping):
            raise UserError(f'settings must be a mapping, such as {{"rounds": 50}}, got {shown(settings)}.')
        layers = Layers()
        layers.lay(settings)
        layers.lay_each(by_key(changes or {}).items())
        return cls.from_layers(layers)

    def with_changes(self, changes: Mapping[str, Any]) -> RunConfig:
        """Return a config with some settings changed, by the rules of the command line.

        A new class starts from its own defaults. An argument of a class changes this argument only.

        Args:
            changes: Plain values, nested or by dotted key: ``{"selector": "PowD", "selector.d": 12}``.

        Raises:
            UserError: As :meth:`to_dict` and :meth:`from_dict`.
        """
        if not isinstance(self.model, nn.Module):
            return self.from_dict(self.to_dict(), changes)
        # A model object stays the same object, as no plain value can build it again.
        changed = self.from_dict(replace(self, model=LogisticRegression).to_dict(), changes)
        named = any(key.partition(".")[0] == "model" for key in changes)
        return changed if named else replace(changed, model=self.model)
