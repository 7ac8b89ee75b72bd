"""The differential privacy that noise gives to clients, by Google's accountant ``dp-accounting``.

Two federations are neighbours if they differ in all the data of one client (replace one). The accountant
composes Rényi differential privacy. Without replacement a uniform draw amplifies privacy:
Y.-X. Wang, B. Balle, S. P. Kasiviswanathan: "Subsampled Rényi Differential Privacy and Analytical Moments
Accountant", AISTATS 2019. Numbers of examples and availability count as public.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flsel.errors import UserError

# Draws that are counted one by one.
EXACT = 16


def require_accountant(key: str) -> None:
    """Refuse to report epsilon where the accountant is not installed.

    Args:
        key: The setting that asks for it.

    Raises:
        UserError: Saying how to install it.
    """
    if find_spec("dp_accounting") is None:
        raise UserError(
            f"{key} must be null without the package dp-accounting, which computes epsilon: install "
            'it by pip install "flsel[privacy]".'
        )


def epsilon(multiplier: float, delta: float, draws: Iterable[tuple[int, int, int]]) -> float:
    """Return epsilon at delta of noise that was added in some rounds.

    Args:
        multiplier: Standard deviation of the noise, in bounds of an update (z). Another client changes the
            sum by up to two bounds, so the mechanism's own noise multiplier is z / 2.
        delta: Probability at which epsilon is wanted.
        draws: How many clients were drawn evenly, from how many, in how many rounds. Equal numbers stand for
            a draw that amplifies nothing.
    """
    accounting: Any = import_module("dp_accounting")
    neighbours = accounting.NeighboringRelation.REPLACE_ONE
    accountant = import_module("dp_accounting.rdp").RdpAccountant(neighboring_relation=neighbours)
    noise = accounting.GaussianDpEvent(multiplier / 2)
    for (drawn, pool), rounds in _few(draws).items():
        event = noise
        if drawn < pool:
            event = accounting.SampledWithoutReplacementDpEvent(pool, drawn, noise)
        accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def _few(draws: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    """Return the rounds of each draw, where many different pools are put together.

    The accountant takes half a second for each. Pools within a factor 2^(1/16) then count as the smallest of
    them, so that a client is drawn with at most 4.5 % more probability than it was.
    """
    exact, alike = Counter[tuple[int, int]](), defaultdict[tuple[int, int], list[int]](list)
    for drawn, pool, rounds in draws:
        exact[drawn, pool] += rounds
        alike[drawn, math.floor(16 * math.log2(pool))].append(pool)
    if len(exact) <= EXACT:
        return exact
    found = Counter[tuple[int, int]]()
    for (drawn, _), pools in alike.items():
        found[drawn, min(pools)] = sum(exact[drawn, pool] for pool in set(pools))
    return found
