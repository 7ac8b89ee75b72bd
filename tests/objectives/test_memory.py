"""Per-client rows: new clients, room, and numbers that are not finite."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flsel.objectives import MOON, SCAFFOLD, FedDyn
from flsel.selector.client_rows import allocate, store

MODEL = {"weight": torch.zeros(2, 3), "bias": torch.zeros(())}


@given(st.lists(st.sets(st.integers(0, 11), min_size=1), max_size=12))
def test_rows_are_what_was_stored_last(cohorts):
    slots, rows = allocate(MODEL, 12)
    expected = {name: torch.zeros(12, *value.shape) for name, value in MODEL.items()}
    for round, cohort in enumerate(cohorts):
        clients = torch.tensor(sorted(cohort))
        values = {
            name: torch.stack([torch.full(value.shape, 100.0 * round + k) for k in sorted(cohort)])
            for name, value in MODEL.items()
        }
        assert store(slots, rows, clients, values).tolist() == list(range(len(cohort)))
        for name, value in values.items():
            expected[name][clients] = value
    for name, value in expected.items():
        assert torch.equal(rows[name][slots], value)
        assert not rows[name][0].any()
        # Room for those seen, at most doubled; never more than everybody.
        seen = int((slots > 0).sum())
        assert 1 + seen <= len(rows[name]) <= min(max(2 * (1 + seen), 1), 13)
    assert sorted(slots[slots > 0].tolist()) == list(range(1, int((slots > 0).sum()) + 1))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_left_out(poison):
    slots, rows = allocate(MODEL, 5)
    values = {"weight": torch.ones(3, 2, 3), "bias": torch.tensor([1.0, poison, 3.0])}
    assert store(slots, rows, torch.tensor([4, 2, 0]), values).tolist() == [0, 2]
    assert (slots > 0).tolist() == [True, False, False, False, True]
    assert rows["bias"][slots].tolist() == [3.0, 0.0, 0.0, 0.0, 1.0]
    assert store(slots, rows, torch.tensor([2]), {n: v[1:2] for n, v in values.items()}).tolist() == []


def test_names_can_come_later():
    slots, rows = allocate({"weight": torch.zeros(2)}, 3)
    store(slots, rows, torch.tensor([1]), {"weight": torch.ones(1, 2), "running_mean": torch.ones(1, 4)})
    assert rows["running_mean"][slots].tolist() == [[0] * 4, [1] * 4, [0] * 4]


@pytest.mark.parametrize("objective", [FedDyn(), MOON(), SCAFFOLD()])
def test_state_of_another_objective_is_refused(objective):
    objective.reset(MODEL, 3)
    with pytest.raises(ValueError, match="must have the keys"):
        objective.load_state_dict({"slots_": torch.zeros(3)})


def test_the_contrast_is_equation_3():
    generator = torch.Generator().manual_seed(0)
    z, glob, prev = (torch.randn(7, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    total = 0.0
    for own, near, far in zip(z.tolist(), glob.tolist(), prev.tolist(), strict=True):

        def similarity(a, b):
            return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

        s_glob, s_prev = similarity(own, near) / 0.5, similarity(own, far) / 0.5
        total += -math.log(math.exp(s_glob) / (math.exp(s_glob) + math.exp(s_prev)))
    assert float(MOON(mu=3.0).contrast(z, [glob, prev])) == pytest.approx(3 * total / 7, abs=1e-12)
