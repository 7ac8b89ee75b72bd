"""Runs with ``accelerator: sim`` are set up on the stand-in."""

from __future__ import annotations

import pytest
from standin_device import fabric_on_sim


@pytest.fixture(autouse=True)
def on_sim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the product find the device."""
    monkeypatch.setattr("flsel.runner.device._make_fabric", fabric_on_sim)
