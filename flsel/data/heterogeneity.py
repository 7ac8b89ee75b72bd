"""Measure how different the clients' data are: sizes and label entropies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Smallest, middle and largest value over the clients."""

    min: float
    median: float
    max: float


@dataclass(frozen=True)
class Heterogeneity:
    """Describe a population for ``flsel data``.

    Attributes:
        clients: N.
        examples: Examples of all clients.
        size: Examples per client.
        entropy: Label entropy per client in nats, over the clients that have examples.
        labels: Distinct labels per client.
    """

    clients: int
    examples: int
    size: Spread
    entropy: Spread
    labels: Spread


def label_entropy(counts: np.ndarray) -> np.ndarray:
    """Return the label entropy of every client.

    Args:
        counts: Examples per client and label, ``[N, C]``, >= 0.

    Returns:
        -sum_c p_c ln p_c in nats, float64 ``[N]`` in [0, ln C]; zero for a client without examples.
    """
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(np.abs((shares * logs).sum(axis=1)))


def cohort_entropy(counts: np.ndarray, cohort: Sequence[int] | np.ndarray) -> float:
    """Return the label entropy, in nats, of the pooled examples of some clients.

    Args:
        counts: Examples per client and label, ``[N, C]``.
        cohort: Ids of the clients; one that occurs twice counts twice.
    """
    pooled = counts[np.asarray(cohort, dtype=np.int64)].sum(axis=0, keepdims=True)
    return float(label_entropy(pooled)[0])


def summarise(tables: Iterable[np.ndarray]) -> Heterogeneity:
    """Summarise a population.

    Args:
        tables: Examples per client and label, int64 ``[n, C]``, of one part of the clients after the other.
    """
    parts = [(counts.sum(axis=1), label_entropy(counts), (counts > 0).sum(axis=1)) for counts in tables]
    sizes, entropies, labels = (np.concatenate(values) for values in zip(*parts, strict=True))
    entropies = entropies[sizes > 0]
    return Heterogeneity(
        clients=len(sizes),
        examples=int(sizes.sum()),
        size=_spread(sizes),
        entropy=_spread(entropies if len(entropies) else np.zeros(1)),
        labels=_spread(labels),
    )


def _spread(values: np.ndarray) -> Spread:
    return Spread(float(values.min()), float(np.median(values)), float(values.max()))
