"""The differential privacy that noise gives to clients, by Google's accountant ``dp-accounting``.

Two federations are neighbours if they differ in all the data of one client (replace one). The accountant
composes Rényi differential privacy. Without replacement a uniform draw amplifies privacy:
Y.-X. Wang, B. Balle, S. P. Kasiviswanathan: "Subsampled Rényi Differential Privacy and Analytical Moments
Accountant", AISTATS 2019. Numbers of examples and availability count as public.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flsel.errors import UserError


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
    for drawn, pool, rounds in draws:
        event = noise
        if drawn < pool:
            event = accounting.SampledWithoutReplacementDpEvent(pool, drawn, noise)
        accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))
