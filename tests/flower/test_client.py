"""What a node imports to answer; needs flwr."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)


def test_a_node_answers_without_torch() -> None:
    heavy = "{'torch', 'scipy', 'lightning'} & {*sys.modules}"
    code = f"import sys; from flsel.flower import answer; print(sorted({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
