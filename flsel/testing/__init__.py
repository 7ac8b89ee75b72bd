"""The contract of a selector as checks, for the selectors of this package and for your own.

In a test of your own::

    import pytest
    from flsel.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        check(lambda: MySelector(alpha=0.5))

or ``check_selector(MySelector)`` for all of them at once. A failure is an ``AssertionError`` whose message
names the selector and the rule. Nothing is trained: the checks run a tiny federation of formulas.
"""

from __future__ import annotations

from flsel.testing.contract import (
    CHECKS,
    check_constructor,
    check_diagnostics,
    check_global_rngs,
    check_hyperparameters,
    check_needs,
    check_non_finite,
    check_odd_data,
    check_other_seed,
    check_plan,
    check_read_only,
    check_resume,
    check_same_seed,
    check_selector,
    check_small_pools,
    check_state,
    check_weights,
)

__all__ = [
    "CHECKS",
    "check_constructor",
    "check_diagnostics",
    "check_global_rngs",
    "check_hyperparameters",
    "check_needs",
    "check_non_finite",
    "check_odd_data",
    "check_other_seed",
    "check_plan",
    "check_read_only",
    "check_resume",
    "check_same_seed",
    "check_selector",
    "check_small_pools",
    "check_state",
    "check_weights",
]
