"""The fingerprint of a run's settings: what two runs with the same results have in common."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# Settings that say where a run is shown, not what it computes.
PRESENTATION = ("track", "callbacks", "output", "quiet")


def fingerprint(described: dict[str, Any]) -> str:
    """Hash what determines a run's results; where it is written and tracked does not enter."""
    relevant = {key: value for key, value in described.items() if key not in PRESENTATION}
    if relevant.get("devices") is None:
        # Without devices there is no time: such a run is the one that earlier versions wrote.
        relevant = {key: value for key, value in relevant.items() if key not in ("devices", "time")}
    return hashlib.sha256(json.dumps(_canonical(relevant), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Write 1 and 1.0 alike: a YAML file may hold either for the same setting."""
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
