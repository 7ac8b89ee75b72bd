"""Turn run settings back into the plain values that the YAML file holds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from flsel.arguments.spec import plain
from flsel.config import model_object
from flsel.config.run import RunConfig

# Settings that say where a run is shown, not what it computes.
PRESENTATION = ("track", "callbacks", "output", "quiet")


def describe(config: RunConfig) -> dict[str, Any]:
    """Describe a run by plain values: what ``config.yaml`` holds and ``flsel train --config`` reads.

    Raises:
        UserError: If something in it has no import path, such as a lambda.
    """
    values = vars(config) | {"model": model_object.described(config.model) or config.model}
    return {name: plain(value, name) for name, value in values.items()}


def fingerprint(described: dict[str, Any]) -> str:
    """Hash what determines a run's results; where it is written and tracked does not enter."""
    relevant = {key: value for key, value in described.items() if key not in PRESENTATION}
    if relevant.get("devices") is None:
        # Without devices there is no time: such a run is the one that earlier versions wrote.
        relevant = {key: value for key, value in relevant.items() if key not in ("devices", "time")}
    return hashlib.sha256(json.dumps(_canonical(relevant), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Write 1 and 1.0 alike: which of them a YAML file holds depends on who wrote it."""
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
