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
from torch import Tensor

from flsel.errors import UserError

_DEGENERATE = 1e-12  # Relative to the largest variance; what is left of a variance below it is rounding.


@dataclass(frozen=True)
class Samples:
    """Observed loss changes; u is the number of different sets of clients that were observed together.

    Attributes:
        changes: Loss changes minus the mean, float64 ``[m, N]``; zero where a client was not observed.
        patterns: Who was observed together, float64 ``[u, N]`` of zeros and ones.
        member: Pattern of each sample, int64 ``[m]``.
        weights: Weight of each sample's log-likelihood, float64 ``[m]``.
    """

    changes: Tensor
    patterns: Tensor
    member: Tensor
    weights: Tensor

    @classmethod
    def of(cls, changes: Tensor, weights: Tensor) -> Samples:
        """Make samples of loss changes, float64 ``[m, N]``, that are NaN where a client was not observed."""
        patterns, member = torch.unique(~changes.isnan(), dim=0, return_inverse=True)
        return cls(changes.nan_to_num(), patterns.to(changes.dtype), member, weights)


def discounted_mean(changes: Tensor, weights: Tensor) -> Tensor:
    """Return each client's weighted mean over the rows that observed it, float64 ``[N]``; 0 if none did."""
    share = weights[:, None] * ~changes.isnan()
    return (share * changes.nan_to_num()).sum(0) / share.sum(0).clamp(min=torch.finfo(share.dtype).tiny)


def likelihood(embedding: Tensor, samples: Samples, noise: float) -> tuple[float, Tensor]:
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
    seen = samples.patterns[:, None, :] * embedding  # [u, d, N]
    eigenvalues, basis = torch.linalg.eigh(seen @ embedding.T)
    spectrum = eigenvalues.clamp(min=0.0) + noise**2  # of B [u, d]
    inverse = (basis / spectrum[:, None, :]) @ basis.mT  # [u, d, d]
    latent = torch.einsum("mde,me->md", inverse[member], y @ embedding.T)  # X K^-1 y
    residual = (y - latent @ embedding) * samples.patterns[member]  # noise^2 K^-1 y
    quadratic = (residual**2).sum(1) / noise**2 + (latent**2).sum(1)
    count = samples.patterns.sum(1)
    log_det = spectrum.log().sum(1) + (count - len(embedding)) * math.log(noise**2)
    value = -0.5 * w @ (quadratic + (log_det + count * math.log(2 * math.pi))[member])
    share = torch.zeros(len(inverse), dtype=w.dtype).index_add_(0, member, w)
    curvature = (share[:, None, None] * inverse).transpose(0, 1).flatten(1) @ seen.flatten(0, 1)
    return float(value), (w[:, None] * latent).T @ residual / noise**2 - curvature


def fit(embedding: Tensor, samples: Samples, *, noise: float, lr: float, steps: int) -> Tensor:
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
        UserError: If the likelihood is not finite.
    """
    embedding = embedding.clone()
    adam = torch.optim.Adam([embedding], lr=lr, maximize=True)
    for _ in range(steps):
        value, embedding.grad = likelihood(embedding, samples, noise)
        if not math.isfinite(value):
            raise UserError(f"noise must be larger for loss changes of this size, got {noise}.")
        adam.step()
    embedding.grad = None
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
