"""Mathematics of HiCS-FL: signals of the output layer, estimated entropies, clusters and their weights.

Symbols of the paper: v_k signal of client k (bias update in the paper), T temperature, H_k entropy, lambda
weight of the angle, G_m cluster, pi_m its probability, p_k data share. Dimensions: n clients, C classes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from scipy.special import entr, log_softmax, softmax
from torch import Tensor

from flsel.errors import UserError
from flsel.params import Params
from flsel.selectors._pairwise import angles, nearest, unit
from flsel.selectors._sketch import EXACT
from flsel.selectors._ward import Linkage, cut_into, ward

Signal = Literal["bias", "weight_mean", "layer"]

_SAMPLE = 500


def check_signal(signal: Signal, *, has_bias: bool) -> None:
    """Refuse the bias as signal where none trains.

    Raises:
        UserError: If it is so.
    """
    if signal == "bias" and not has_bias:
        raise UserError(
            'selector.signal must be "weight_mean" for a model whose output layer has no bias that trains, '
            'got "bias".'
        )


def signal_of(head: Params, signal: Signal) -> Tensor:
    """Return the C numbers of each update that depend on the client's labels, float64 ``[K, C]``.

    Args:
        head: Update of the output layer: ``weight [K, C, L]`` and ``bias [K, C]`` if it has one.
        signal: ``"bias"`` is the bias update, all else the mean over L of the weight update.

    Raises:
        UserError: See :func:`check_signal`.
    """
    if signal != "bias":
        return head["weight"].detach().cpu().double().mean(dim=2)
    check_signal(signal, has_bias="bias" in head)
    return head["bias"].detach().cpu().double()


def layer_of(head: Params) -> Tensor:
    """Return the output layer's update as one vector, weight before bias, float64 ``[K, C L + C]``."""
    parts = [head[name].detach().flatten(1) for name in ("weight", "bias") if name in head]
    return torch.cat(parts, dim=1).cpu().double()


def entropy(signal: np.ndarray, temperature: float | np.ndarray) -> np.ndarray:
    """Estimate label entropies: H_k = H(softmax(v_k / T)), Eq. 7.

    Args:
        signal: v, finite, float64 ``[n, C]``.
        temperature: T > 0, in the units of v; one for all, or one for each, ``[n]``.

    Returns:
        Nats, float64 ``[n]`` in [0, ln C]; ln C for a constant row.
    """
    # Clients along the fast axis: rows of C numbers are short. Differences first: v / T itself may overflow.
    logits = np.ascontiguousarray(signal.T)
    with np.errstate(over="ignore"):
        gaps = (logits - logits.max(axis=0)) / temperature
    return np.asarray(entr(softmax(gaps, axis=0)).sum(axis=0))


def label_entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy of each row of label counts ``[n, C]``, nats, float64 ``[n]``."""
    columns = np.ascontiguousarray(counts.T)
    return np.asarray(entr(columns / np.maximum(columns.sum(axis=0), 1)).sum(axis=0))


def auto_temperature(signal: np.ndarray, tau: float = 0.25) -> float:
    """Return T = tau median_k(max_c v_kc - mean_c v_kc) over the rows that are not constant.

    Where the median client has a single label of ten, its largest logit then leads by 1.11 / tau: 4.4. One,
    where all rows are constant.
    """
    peaks = _peaks(signal)
    return tau * float(np.median(peaks[peaks > 0])) if peaks.any() else 1.0


def client_temperatures(signal: np.ndarray, tau: float) -> np.ndarray:
    """Return T_k = tau (max_c v_kc - mean_c v_kc) of every client, float64 ``[n]``; one for a constant row.

    The entropy then depends on the shape of an update and not on its length, which shrinks as the model comes
    to fit a client.
    """
    peaks = _peaks(signal)
    return np.where(peaks > 0, tau * peaks, 1.0)


def _peaks(signal: np.ndarray) -> np.ndarray:
    """Return max_c v_kc - mean_c v_kc, float64 ``[n]``; exactly zero for a constant row."""
    columns = np.ascontiguousarray(signal.T)
    top = columns.max(axis=0)
    return np.where(top > columns.min(axis=0), top - columns.mean(axis=0), 0.0)


def group(
    direction: np.ndarray,
    entropies: np.ndarray,
    *,
    lam: float,
    count: int,
    linkage: Linkage,
    rng: np.random.Generator,
) -> np.ndarray:
    """Cluster clients by direction of update and entropy.

    Up to :data:`EXACT` clients by Ward's method on the distances of Eq. 9. Beyond, that clusters a random
    sample, and every other client joins the cluster with the nearest mean of the points (lambda u,
    (1 - lambda) H), u the unit direction: their Euclidean distance stands in for Eq. 9's sum.

    Args:
        direction: Updates with finite squares, float64 ``[n, d]``.
        entropies: H, float64 ``[n]``.
        lam: lambda in [0, 1].
        count: Clusters M >= 1.
        linkage: What Ward's method is given.
        rng: Draws the sample.

    Returns:
        Cluster of each client, int64 ``[n]``, numbered from 0, none empty: min(count, n) clusters, at most
        :data:`EXACT` of them.
    """
    if len(entropies) <= EXACT:
        return cut_into(ward(client_distances(direction, entropies, lam), linkage), count)
    points = np.column_stack([lam * unit(direction), (1 - lam) * entropies])
    sample = np.sort(rng.choice(len(points), min(max(_SAMPLE, 5 * count), EXACT), replace=False))
    drawn = cut_into(ward(client_distances(direction[sample], entropies[sample], lam), linkage), count)
    centres = np.stack([points[sample[drawn == m]].mean(axis=0) for m in range(drawn.max() + 1)])
    labels = nearest(points, centres)
    labels[sample] = drawn
    return labels


def client_distances(direction: np.ndarray, entropies: np.ndarray, lam: float) -> np.ndarray:
    """Return lambda angle + (1 - lambda) |H_u - H_k| for all pairs (Eq. 9), float64 ``[n, n]``."""
    differences = np.abs(entropies[:, None] - entropies)
    return np.asarray(lam * angles(direction, direction) + (1 - lam) * differences)


def mean_entropies(entropies: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the mean entropy of each cluster, float64 ``[M]``."""
    return np.asarray(np.bincount(labels, entropies) / np.bincount(labels))


def log_weights(means: np.ndarray, labels: np.ndarray, sizes: np.ndarray, gamma: float) -> np.ndarray:
    """Return log w_k, w_k = pi_m p_k / sum_{j in G_m} p_j with pi = softmax(gamma H) over clusters (Eq. 10).

    Drawing clusters by pi and clients inside them by p until K differ is successive sampling by w.

    Args:
        means: Mean entropy of each cluster, float64 ``[M]``.
        labels: Cluster of each client that can be drawn, int64 ``[n]`` in 0..M-1.
        sizes: Examples of each of them, > 0, ``[n]``.
        gamma: gamma^t >= 0.

    Returns:
        Float64 ``[n]``, finite.
    """
    mass = np.bincount(labels, sizes, minlength=len(means))
    log_pi: np.ndarray = log_softmax(gamma * means)
    weights: np.ndarray = log_pi[labels] + np.log(sizes) - np.log(mass[labels])
    return weights


def annealed(gamma0: float, round: int, rounds: int, share: float = 1.0) -> float:
    """Return gamma^t = gamma^0 (1 - t / T) for the round with index ``round`` = t - 1 of ``rounds`` = T.

    With a ``share`` below 1, T is that share of the rounds, and gamma^t is 0 after it.
    """
    return gamma0 * max(0.0, 1.0 - (round + 1) / (share * rounds))
