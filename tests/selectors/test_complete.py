"""Complete participation takes the whole pool or says what to set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_views import chosen, updates, view

from flsel.errors import UserError
from flsel.selectors.complete import Complete


@given(st.integers(1, 20), st.data())
def test_everyone_available_trains(clients, data):
    absent = data.draw(st.sets(st.integers(0, clients - 1), max_size=clients - 1))
    pool = sorted(set(range(clients)) - absent)
    clients_per_round = data.draw(st.integers(len(pool), clients))
    assert chosen(Complete().select(view([1] * clients, clients_per_round, absent=sorted(absent)))) == pool


def test_weights_are_data_shares():
    assert Complete().weigh(view([1, 3], 2), updates([0, 1], [1, 3])).tolist() == [0.25, 0.75]


def test_a_clients_per_round_below_the_pool_is_refused():
    with pytest.raises(
        UserError, match=r"clients_per_round must be the number of clients \(4\).*3 are available.*got 2"
    ):
        Complete().select(view([1] * 4, 2, absent=[0]))
    assert chosen(Complete().select(view([1] * 4, 2, absent=[0, 1]))) == [2, 3]
