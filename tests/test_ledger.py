"""Costs and the ledger that sums them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from flsel.metrics import Cost, Ledger, models_down, models_up, names, training

MODEL = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3, dtype=torch.float64)}
BYTES = 6 * 4 + 3 * 8


def test_the_columns_of_the_metrics_are_the_costs() -> None:
    assert names("ledger") == tuple(field.name for field in fields(Cost))


def test_models_cost_their_bytes() -> None:
    assert models_down(2, MODEL) == Cost(models_down=2, bytes_down=2 * BYTES)
    assert models_up(3, MODEL) == Cost(models_up=3, bytes_up=3 * BYTES)
    assert training(MODEL, down=2, up=1) == Cost(
        models_down=2, bytes_down=2 * BYTES, models_up=1, bytes_up=BYTES, trainings=1
    )


def test_a_ledger_sums_and_leaves_zeros_out() -> None:
    ledger = Ledger({"passes": 2})
    ledger.charge(Cost(passes=1, scalars_up=4))
    assert dict(ledger) == {"scalars_up": 4, "passes": 3}
    assert (ledger["trainings"], ledger["passes"], len(ledger)) == (0, 3, 2)
    assert dict(Ledger(ledger)) == dict(ledger)
    ledger.charge(Cost(passes=2, trainings=1), 3)
    ledger.charge(Ledger({"passes": 1}))
    assert dict(ledger) == {"scalars_up": 4, "passes": 10, "trainings": 3}


def test_a_ledger_is_charged_and_not_written_to() -> None:
    ledger: Any = Ledger()
    with pytest.raises(TypeError):
        ledger["passes"] = 1
    with pytest.raises(ValueError, match="must not be negative: passes"):
        ledger.charge(Cost(passes=-1))
    with pytest.raises(TypeError):
        Cost(pases=1)  # type: ignore[call-arg]
    assert dict(ledger) == {}
