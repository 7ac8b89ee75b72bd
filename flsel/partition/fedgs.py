"""The partitions of the FedGS experiments: log-normal sizes with Dirichlet mixes, and few labels each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.partition.base import Partition, apportion, cut_at_shares, deal

REDRAWS = 10_000
CANDIDATES = 100


@final
@dataclass(frozen=True)
class FedGSLogNormal(Partition):
    """Draw log-normal sizes and Dirichlet label mixes that together use up the dataset.

    FedGS (Wang et al. 2023), appendix on CIFAR10. Sizes n_k ~ lognormal(ln(n/N) - 1/2, 1) are adjusted
    until they sum to n: the largest client gives, or the smallest receives, n/100 examples at a time. Mixes
    p_k ~ Dir(alpha * p), p being the label frequencies, are replaced client by client with the best of
    100 fresh ones until the mix of all clients together is within a squared distance of 0.01/C of p. Then
    each label is split over the clients in proportion to p_k times n_k.

    Every example is dealt exactly once; sizes end up close to the n_k.

    **Deviations.** The paper says only that the mixes are replaced "until there exists no conflict". The
    criterion and the adjustment of the sizes are those of the reference code, with three changes. A total
    that is too large by a tenth shrinks in the same steps; the code replaces the largest client by the
    smallest of N new draws. Steps are n/N for N > 100. A mix is replaced only by a better one.

    Attributes:
        alpha: Concentration; the paper uses 1.75.
    """

    after_holdouts = True
    alpha: Annotated[float, Range(above=0)] = 1.75

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw sizes and matching mixes, and split every label accordingly."""
        totals = np.bincount(labels)
        sizes = _log_normal_sizes(len(labels), clients, rng)
        parts = self._matching_mixes(totals / len(labels), sizes, rng) * sizes[:, None]
        table = np.stack(
            [cut_at_shares(part, total) for part, total in zip(parts.T, totals, strict=True)], axis=1
        )
        return deal(table, labels, rng)

    def _matching_mixes(self, prior: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw mixes ``[N, C]`` whose average by ``sizes`` (``[N]``) is close to ``prior`` (``[C]``)."""
        weights = sizes / sizes.sum()
        mixes = rng.dirichlet(self.alpha * prior, size=len(sizes))
        gap = weights @ mixes - prior
        for turn in range(REDRAWS):
            if gap @ gap <= 0.01 / len(prior):
                return mixes
            client = turn % len(sizes)
            fresh = rng.dirichlet(self.alpha * prior, size=CANDIDATES)
            gaps = gap + weights[client] * (fresh - mixes[client])
            best = np.einsum("ij,ij->i", gaps, gaps).argmin()
            if gaps[best] @ gaps[best] < gap @ gap:
                mixes[client], gap = fresh[best], gaps[best]
        raise UserError(
            f"the label mixes of {len(sizes)} clients with partition.alpha {self.alpha} did not match the "
            f"dataset's in {REDRAWS} replacements; raise partition.alpha or clients."
        )


@final
@dataclass(frozen=True)
class LabelLimited(Partition):
    """Give every client the same number of labels, and every holder of a label an equal part of it.

    FedGS's FashionMNIST partition (two labels per client). Clients choose in turn, at random among the
    labels with the fewest holders, so holders per label differ by at most one. Sizes are equal where labels
    are equally frequent and clients times ``labels_per_client`` is a multiple of their number.

    Every example is dealt exactly once.

    Attributes:
        labels_per_client: Labels that each client holds, from 1 to C.
    """

    after_holdouts = True
    labels_per_client: Annotated[int, Range(1)] = 2

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Choose every client's labels and split each label over its holders."""
        totals = np.bincount(labels)
        num_labels = len(totals)
        if not num_labels <= clients * self.labels_per_client <= clients * num_labels:
            raise UserError(
                f"partition.labels_per_client must be from {-(-num_labels // clients)} to {num_labels} for "
                f"{clients} clients and {num_labels} labels, got {self.labels_per_client}."
            )
        holds = np.zeros((clients, num_labels), dtype=bool)
        holders = np.zeros(num_labels, dtype=np.int64)
        for client in range(clients):
            chosen = np.lexsort((rng.random(num_labels), holders))[: self.labels_per_client]
            holds[client, chosen] = True
            holders[chosen] += 1
        table = np.zeros(holds.shape, dtype=np.int64)
        for label, total in enumerate(totals):
            table[holds[:, label], label] = apportion(total, np.ones(holders[label]))
        return deal(table, labels, rng)


def _log_normal_sizes(total: int, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Draw log-normal sizes and adjust them to sum to ``total``, int64 ``[clients]``, each >= 1."""
    draws = rng.lognormal(np.log(total / clients) - 0.5, 1.0, size=clients)
    sizes = np.maximum(draws.astype(np.int64), 1)
    # A step of at most the average: the largest client stays positive.
    step = max(total // max(clients, 100), 1)
    while (excess := int(sizes.sum()) - total) > 0:
        sizes[sizes.argmax()] -= min(excess, step)
    while (lack := total - int(sizes.sum())) > 0:
        sizes[sizes.argmin()] += min(lack, step)
    return sizes
