"""FedCor's unbalanced Dirichlet partition: label mixes first, then the sizes that use up every label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.partition.base import Partition, deal

REDRAWS = 100
TOLERANCE = 1e-6


@final
@dataclass(frozen=True)
class FedCorDirichlet(Partition):
    """Draw label mixes q_k ~ Dir(alpha * p) and choose sizes x that use up every label.

    FedCor (Tang et al. 2022), appendix C.2, Eqs. 146-149: x minimises x'x subject to Qx = d and x >= 0,
    where column k of Q is q_k and d are the label totals. Counts are truncated to whole examples, and each
    example left over goes to a client drawn uniformly.

    Every example is dealt exactly once; sizes vary.

    **Deviations.** The condition is x >= 0 instead of x > 0, as in the reference code. Mixes for which no x
    exists (few clients, small alpha) are drawn again.

    Attributes:
        alpha: Concentration; the paper uses 0.2.
    """

    after_holdouts = True
    alpha: Annotated[float, Range(above=0)] = 0.2

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw mixes until sizes exist that use up every label, and deal accordingly."""
        totals = np.bincount(labels)
        for _ in range(REDRAWS):
            mixes = rng.dirichlet(self.alpha * totals / len(labels), size=clients)
            sizes = least_norm_sizes(mixes, totals)
            if sizes is not None:
                return deal(_whole(mixes * sizes[:, None], totals, rng), labels, rng)
        raise UserError(
            f"no sizes use up all {len(totals)} labels in {REDRAWS} draws of {clients} label mixes with "
            f"partition.alpha {self.alpha}; raise partition.alpha or clients."
        )


def least_norm_sizes(mixes: np.ndarray, totals: np.ndarray) -> np.ndarray | None:
    """Solve min x'x subject to Qx = d, x >= 0.

    The problem is solved through its dual, max d'y - |(Q'y)+|^2 / 2 with C unknowns whatever N is, from
    which x = (Q'y)+.

    Args:
        mixes: Q transposed, float64 ``[N, C]``, rows >= 0 that sum to one.
        totals: d, examples per label, ``[C]``, each > 0.

    Returns:
        x, float64 ``[N]`` in examples, or None if no x >= 0 satisfies Qx = d.
    """
    from scipy.optimize import minimize, nnls

    # In units of the average size, so that tolerances do not depend on N or on the examples.
    unit = totals.sum() / len(mixes)
    target = totals / totals.sum()
    scaled = mixes / len(mixes)
    _, residual = nnls(scaled.T, target)
    if residual > TOLERANCE:
        return None

    def negative_dual(y: np.ndarray) -> tuple[float, np.ndarray]:
        x = np.maximum(mixes @ y, 0.0)
        return float(x @ x / (2 * len(mixes)) - target @ y), scaled.T @ x - target

    def curvature(y: np.ndarray) -> np.ndarray:
        return np.asarray(scaled.T @ (mixes * (mixes @ y > 0)[:, None]))

    found = minimize(
        negative_dual,
        np.ones(len(target)),
        jac=True,
        hess=curvature,
        method="trust-exact",
        options={"gtol": TOLERANCE * 1e-4, "maxiter": 1000},
    )
    x = np.maximum(mixes @ found.x, 0.0)
    return x * unit if np.abs(scaled.T @ x - target).max() <= TOLERANCE else None


def _whole(exact: np.ndarray, totals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Truncate ``exact`` (``[N, C]``) and hand what is left of each label to uniformly random clients."""
    # The slack keeps a whole number whole that arithmetic left a rounding error below itself.
    table = np.floor(exact + TOLERANCE).astype(np.int64)
    clients = len(table)
    for label, left in enumerate(totals - table.sum(axis=0)):
        table[:, label] += np.bincount(rng.integers(clients, size=max(left, 0)), minlength=clients)
    return table
