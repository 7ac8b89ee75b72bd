"""A Gaussian process over the clients' loss changes, with covariance K = X'X + noise^2 I.

X is a d x N matrix of client embeddings. Nothing here is N x N: the likelihood and its gradient go through
the d x d matrix B = X X' + noise^2 I (Woodbury), the greedy choice through the d x d posterior covariance of
the latent weights, so both take O(N) memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from flsel.errors import UserError

_DEGENERATE = 1e-12  # Relative to the largest variance; what is left of a variance below it is rounding.


@dataclass(frozen=True)
class Samples:
    """Observed loss changes; u is the number of different sets of clients that were observed together.

    Attributes:
        changes: Loss changes minus the mean, float64 ``[m, N]``; zero where a client was not observed.
        seen: Who was observed, float64 ``[m, N]`` of zeros and ones.
        patterns: Its different rows, float64 ``[u, N]``.
        member: Pattern of each sample, int64 ``[m]``.
        weights: Weight of each sample's log-likelihood, float64 ``[m]``.
    """

    changes: np.ndarray
    seen: np.ndarray
    patterns: np.ndarray
    member: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, changes: np.ndarray, weights: np.ndarray) -> Samples:
        """Make samples of loss changes, float64 ``[m, N]``, that are NaN where a client was not observed."""
        seen = ~np.isnan(changes)
        # By bits, as sorting long rows takes its time.
        bits = np.packbits(seen, axis=1)
        _, first, member = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        changes = np.where(seen, changes, 0.0)
        return cls(
            changes, seen.astype(np.float64), seen[first].astype(np.float64), member.reshape(-1), weights
        )


def discounted_mean(changes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return each client's weighted mean over the rows that observed it, float64 ``[N]``; 0 if none did."""
    share = weights[:, None] * ~np.isnan(changes)
    total = (share * np.nan_to_num(changes)).sum(0)
    mean: np.ndarray = total / np.maximum(share.sum(0), np.finfo(np.float64).tiny)
    return mean


def likelihood(embedding: np.ndarray, samples: Samples, noise: float) -> tuple[float, np.ndarray]:
    """Return the weighted log-likelihood Phi(X) (FedCor, equation 17) and its gradient.

    Each sample is a Gaussian vector with covariance K and mean zero, restricted to who was observed.

    Args:
        embedding: X, float64 ``[d, N]``.
        samples: What was observed.
        noise: Standard deviation of the noise, in units of loss, > 0.

    Returns:
        Phi and dPhi/dX, float64 ``[d, N]``.
    """
    y, w, member = samples.changes, samples.weights, samples.member
    d = len(embedding)
    seen = samples.patterns[:, None, :] * embedding  # [u, d, N]
    eigenvalues, basis = np.linalg.eigh(seen @ embedding.T)
    spectrum = np.maximum(eigenvalues, 0.0) + noise**2  # of B [u, d]
    inverse = (basis / spectrum[:, None, :]) @ basis.transpose(0, 2, 1)  # [u, d, d]
    latent = (inverse[member] @ (y @ embedding.T)[:, :, None])[:, :, 0]  # X K^-1 y [m, d]
    residual = (y - latent @ embedding) * samples.seen  # noise^2 K^-1 y [m, N]
    quadratic = (residual**2).sum(1) / noise**2 + (latent**2).sum(1)
    count = samples.patterns.sum(1)
    log_det = np.log(spectrum).sum(1) + (count - d) * math.log(noise**2)
    value = -0.5 * w @ (quadratic + (log_det + count * math.log(2 * math.pi))[member])
    share = np.bincount(member, w)
    curvature = (share[:, None, None] * inverse).swapaxes(0, 1).reshape(d, -1) @ seen.reshape(-1, y.shape[1])
    return float(value), (w[:, None] * latent).T @ residual / noise**2 - curvature


def fit(embedding: np.ndarray, samples: Samples, *, noise: float, lr: float, steps: int) -> np.ndarray:
    """Improve an embedding by some Adam steps on Phi, with fresh moments.

    Args:
        embedding: Where to start, float64 ``[d, N]``; not written to.
        samples: What was observed.
        noise: Standard deviation of the noise, in units of loss, > 0.
        lr: Adam's learning rate.
        steps: Number of steps. Few are part of the method: the maximum of Phi has no higher rank than there
            are samples.

    Returns:
        The new embedding, float64 ``[d, N]``.

    Raises:
        UserError: If the likelihood or its gradient is not finite.
    """
    embedding = embedding.copy()
    shared = torch.from_numpy(embedding)
    adam = torch.optim.Adam([shared], lr=lr, maximize=True, fused=True)
    for _ in range(steps):
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                value, gradient = likelihood(embedding, samples, noise)
        except np.linalg.LinAlgError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(
                "noise must be larger, or lr smaller, for loss changes of this size, got noise "
                f"{noise} and lr {lr}."
            )
        shared.grad = torch.from_numpy(gradient)
        adam.step()
    return embedding


def greedy(
    embedding: np.ndarray,
    noise: float,
    *,
    share: np.ndarray,
    alpha: np.ndarray,
    allowed: np.ndarray,
    count: int,
) -> list[int]:
    """Choose clients one by one by the posterior mean of the loss change (FedCor, Algorithm 1).

    Each pick maximises g_k = alpha_k sum_i p_i Sigma_ik / sqrt(Sigma_kk), then Sigma is conditioned on it.
    Exact, at O(N d) a pick: Sigma_ij = x_i' W x_j + noise^2 [i = j] between clients not yet chosen, where W
    is the posterior covariance of the latent weights, and Sigma is zero for those chosen.

    Args:
        embedding: X, float64 ``[d, N]``.
        noise: Standard deviation of the noise, >= 0.
        share: p, each client's share of the examples, float64 ``[N]``.
        alpha: Annealing factors, float64 ``[N]``.
        allowed: Who may be chosen, bool ``[N]``; all N count in the sum.
        count: Clients to choose.

    Returns:
        Clients in order of choice, the lowest id first among equals; fewer than ``count`` if the variance of
        all others is zero.
    """
    latent = np.eye(len(embedding))
    mean = embedding @ share  # sum_i p_i x_i over the clients not yet chosen
    variance = (embedding**2).sum(0) + noise**2
    least = _DEGENERATE * variance.max()
    left = allowed.copy()
    chosen: list[int] = []
    for _ in range(count):
        valid = left & (variance > least)
        if not valid.any():
            break
        gain = (latent @ mean) @ embedding + share * noise**2
        gain *= alpha / np.sqrt(np.where(valid, variance, 1.0))
        best = int(np.argmax(np.where(valid, gain, -np.inf)))
        chosen.append(best)
        left[best] = False
        mean -= share[best] * embedding[:, best]
        direction = latent @ embedding[:, best] / math.sqrt(variance[best])
        latent -= np.outer(direction, direction)
        variance -= (direction @ embedding) ** 2
    return chosen
