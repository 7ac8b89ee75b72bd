"""Fingerprints: of a run's settings, and whether those of two runs' data and models agree."""

from __future__ import annotations

import hashlib
import json
import math
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


TOLERANCE = 1e-4
"""How far a figure of a fingerprint may be from another processor's."""


def alike(one: str, two: str) -> bool:
    """Tell whether two fingerprints are those of the same values, which processors may round differently.

    Args:
        one: What :func:`flsel.runner.digest.rounded_digest` returned, or a hash that has no figures.
        two: Likewise. Fingerprints of which one has no figures agree if every bit does.
    """
    (bits, *ours), (other_bits, *theirs) = one.split() or [""], two.split() or [""]
    if bits == other_bits or not ours or not theirs:
        return bits == other_bits
    try:
        figures = [[float(figure) for figure in side[1:]] for side in (ours, theirs)]
    except ValueError:
        return False
    near = [math.isclose(a, b, rel_tol=0, abs_tol=TOLERANCE) for a, b in zip(*figures, strict=False)]
    return ours[0] == theirs[0] and len(ours) == len(theirs) and all(near)
