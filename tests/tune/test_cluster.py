"""Ray on this machine: what is said where it does not start."""

from __future__ import annotations

import pytest
import ray

from flsel.errors import UserError
from flsel_tune.cluster import cluster
from flsel_tune.config import SweepConfig


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise Exception("The current node timed out\n during startup.")

    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(UserError, match=r"Ray could not be started .* timed out during startup"),
        cluster(SweepConfig(), 0),
    ):
        pass
