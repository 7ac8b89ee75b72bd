"""Epsilon against the accountant's own numbers and against formulas."""

from __future__ import annotations

import math
import sys

import pytest

from flsel.errors import UserError
from flsel.updates.accountant import EXACT, _few, epsilon, require_accountant


def test_the_accountant_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("flsel.updates.accountant.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'delta must be null .* pip install "flsel\[privacy\]"'):
        require_accountant("updates[1].delta")


def test_importing_the_module_does_not_import_the_accountant():
    assert "dp_accounting" not in sys.modules


def test_epsilon_of_plain_noise_is_that_of_the_formula():
    pytest.importorskip("dp_accounting")
    # Rényi divergence of order a is T a / (2 s^2) with s = z / 2. At its best order, Mironov's conversion
    # gives T / (2 s^2) + sqrt(2 T log(1/delta)) / s; the accountant's is tighter, by less than a tenth.
    rate = 50 / (2 * 10.0**2)
    loose = rate + 2 * math.sqrt(rate * math.log(1e5))
    assert 0.85 * loose < epsilon(20.0, 1e-5, [(30, 30, 50)]) < loose


def test_epsilon_is_the_librarys_own():
    accounting = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    accountant = rdp.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE)
    event = accounting.SampledWithoutReplacementDpEvent(100, 5, accounting.GaussianDpEvent(2.0))
    accountant.compose(event, 30)
    assert epsilon(4.0, 1e-5, [(5, 100, 30)]) == accountant.get_epsilon(1e-5)


def test_a_uniform_draw_amplifies_and_rounds_add_up():
    pytest.importorskip("dp_accounting")
    drawn, plain = epsilon(4.0, 1e-5, [(5, 100, 20)]), epsilon(4.0, 1e-5, [(100, 100, 20)])
    assert drawn < plain / 3
    assert drawn < epsilon(4.0, 1e-5, [(5, 100, 20), (5, 90, 20)]) < 2 * drawn * 1.2


def test_many_pools_count_as_slightly_smaller_ones():
    few = [(5, pool, 2) for pool in range(40, 40 + EXACT)]
    assert _few(few) == {(drawn, pool): rounds for drawn, pool, rounds in few}
    assert _few([(5, 40, 2), (5, 40, 3)]) == {(5, 40): 5}
    many = _few([(drawn, pool, 2) for drawn in (5, 6) for pool in range(6, 3000)])
    assert sum(many.values()) == 2 * 2 * (3000 - 6)
    assert len(many) < 2 * 16 * 10
    for pool in range(6, 3000):
        assert any(kept <= pool <= kept * 2 ** (1 / 16) for drawn, kept in many if drawn == 5)
