"""Real processes on loopback; needs flwr (make test-flower)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from channels import outcome
from loopback import SETTINGS, deployed
from runs import same

from flsel.commands.cli import main


@pytest.mark.timeout(900)
def test_a_run_over_real_nodes_equals_flsel_train(tmp_path: Path) -> None:
    run = deployed(tmp_path / "flower", 3, SETTINGS)
    assert main(["train", *SETTINGS, "--output.dir", str(tmp_path / "here")]) == 0
    assert same(outcome(run), outcome(tmp_path / "here/run"))
