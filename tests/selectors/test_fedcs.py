"""FedCS: the greedy rule by hand and against its definition, and what the selector asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import chosen, view

from flsel.selectors.fedcs import FedCS, fit_into_deadline

PARTS = np.array([[1.0, 2.0, 1.0], [1.0, 5.0, 1.0], [4.0, 1.0, 1.0], [1.0, 2.0, 3.0]])


def test_clients_are_added_as_by_hand() -> None:
    """Costs of the first pick are 4, 7, 6, 6: client 0; then 1 + 2 = 3, 3 + 1 = 4, 3: client 1, and so on."""
    assert fit_into_deadline(PARTS, 100.0, most=4) == [0, 1, 3, 2]
    # After client 0 the clock stands at 1 + 3; client 1 needs 1 + 6, client 3 then 1 + 9.
    assert fit_into_deadline(PARTS, 7.5, most=4) == [0, 1]
    assert fit_into_deadline(PARTS, 10.5, most=4) == [0, 1, 3]
    assert fit_into_deadline(PARTS, 0.5, most=4) == [0]
    assert fit_into_deadline(PARTS, 100.0, most=2) == [0, 1]
    assert fit_into_deadline(PARTS, 7.5, most=4, parallel=True) == [0, 2, 3, 1]
    assert fit_into_deadline(PARTS, 6.5, most=4, parallel=True) == [0, 2, 3]


@given(
    st.lists(st.tuples(*[st.floats(0.1, 9.0)] * 3), min_size=1, max_size=8),
    st.floats(0.1, 60.0),
    st.integers(1, 8),
)
def test_the_deadline_holds(rows: list[tuple[float, float, float]], deadline: float, most: int) -> None:
    parts = np.array(rows)
    found = fit_into_deadline(parts, deadline, most=most)
    assert 1 <= len(found) == len(set(found)) <= most
    busy = 0.0
    for client in found:
        busy += parts[client, 2] + max(0.0, parts[client, 1] - busy)
    total = parts[found, 0].max() + busy
    assert total < deadline or (len(found) == 1 and found[0] == parts.sum(axis=1).argmin())


class Profiles:
    """Answers the parts of durations, and notes who was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def durations(self, clients: list[int]) -> torch.Tensor:
        self.asked.append(list(clients))
        return torch.from_numpy(PARTS[clients])


def test_only_available_candidates_are_chosen() -> None:
    profiles, selector = Profiles(), FedCS(deadline=11.5)
    now = view([5, 5, 5, 5], 4, absent=[1], needs=selector.needs, answers=profiles)
    assert chosen(selector.select(now)) == [0, 3, 2]
    assert profiles.asked == [[0, 2, 3]]
    few = FedCS(deadline=10.5, candidates=2)
    for seed in range(5):
        plan = few.select(view([5, 5, 5, 5], 4, seed=seed, needs=few.needs, answers=profiles))
        assert len(plan) <= 2
        assert len(profiles.asked[-1]) == 2


def test_overhead_counts_for_the_deadline() -> None:
    profiles = Profiles()
    late = FedCS(deadline=10.5, overhead=3.0)
    now = view([5, 5, 5, 5], 4, needs=late.needs, answers=profiles)
    assert sorted(chosen(late.select(now))) == [0, 1]
    with pytest.raises(Exception, match="deadline must be"):
        FedCS(deadline=0.0)
