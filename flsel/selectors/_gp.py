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
from torch.optim.adam import adam  # the class would import torch's compiler, which takes two seconds

from flsel.errors import UserError

_DEGENERATE = 1e-12  # Relative to the largest variance; what is left of a variance below it is rounding.
_BLOCK = 2**17  # Numbers of a block.
_NARROWEST = 64  # Clients of a block, however many numbers each.


@dataclass(frozen=True)
class Samples:
    """Observed loss changes; u is the number of different sets of clients that were observed together.

    Attributes:
        changes: Loss changes minus the mean, float64 ``[m, N]``; zero where a client was not observed.
        patterns: The different sets of clients observed, as zeros and ones, float64 ``[u, N]``.
        member: Pattern of each sample, int64 ``[m]``.
        weights: Weight of each sample's log-likelihood, float64 ``[m]``.
    """

    changes: np.ndarray
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
        return cls(changes, seen[first].astype(np.float64), member.reshape(-1), weights)


def discounted_mean(changes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return each client's weighted mean over the rows that observed it, float64 ``[N]``; 0 if none did."""
    share = weights[:, None] * ~np.isnan(changes)
    total = (share * np.nan_to_num(changes)).sum(0)
    mean: np.ndarray = total / np.maximum(share.sum(0), np.finfo(np.float64).tiny)
    return mean


class _Block:
    """Some clients' columns, so few that a step over them stays in the processor's cache.

    Attributes:
        x: Their embeddings, float64 ``[d, b]``.
        stacked: x as each pattern sees it, above the loss changes y: float64 ``[u d + m, b]``.
    """

    def __init__(self, embedding: np.ndarray, samples: Samples, some: slice) -> None:
        d, patterns = len(embedding), torch.from_numpy(samples.patterns[:, None, some])
        self.stacked = torch.empty(len(patterns) * d + len(samples.changes), patterns.shape[2]).double()
        self._seen = self.stacked[: len(patterns) * d].view(len(patterns), d, -1)
        self.stacked[len(patterns) * d :] = torch.from_numpy(samples.changes[:, some])
        # If all clients are seen x lies in the stack itself, else it is masked into it.
        self._patterns = None if len(patterns) == 1 and bool(patterns.all()) else patterns
        start = torch.from_numpy(embedding[:, some])
        self.x = self._seen[0].copy_(start) if self._patterns is None else start.clone()

    def products(self) -> Tensor:
        """Return ``[p_u o X; y] X'``, ``[u d + m, d]``, the sums over these clients."""
        if self._patterns is not None:
            torch.mul(self._patterns, self.x, out=self._seen)
        return self.stacked @ self.x.T


def _slopes(
    products: np.ndarray, samples: Samples, noise: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Solve for the latent weights, from the products over all clients.

    Args:
        products: ``[p_u o X; y] X'``, float64 ``[u d + m, d]``.
        samples: What was observed.
        noise: Standard deviation of the noise.

    Returns:
        What times the stack is dPhi/dX, ``[d, u d + m]``; log |B| of each pattern, ``[u]``; and
        y' X' B^-1 X y of each sample, ``[m]``.
    """
    d, w, member = products.shape[1], samples.weights, samples.member
    count = len(samples.patterns)
    eigenvalues, basis = np.linalg.eigh(products[: count * d].reshape(count, d, d))
    spectrum = np.maximum(eigenvalues, 0.0) + noise**2  # of B [u, d]
    inverse = (basis / spectrum[:, None, :]) @ basis.transpose(0, 2, 1)  # [u, d, d]
    cross = products[count * d :]
    latent = (inverse[member] @ cross[:, :, None])[:, :, 0]  # X K^-1 y [m, d]
    weighted = w[:, None] * latent / noise**2
    pull = np.bincount(member, w)[:, None, None] * inverse  # [u, d, d]
    np.add.at(pull, member, weighted[:, :, None] * latent[:, None, :])
    slope = np.concatenate([-pull.reshape(-1, d), weighted]).T
    return slope, np.log(spectrum).sum(1), (latent * cross).sum(1)


def likelihood(embedding: np.ndarray, samples: Samples, noise: float) -> tuple[float, np.ndarray]:
    """Return the weighted log-likelihood Phi(X) (FedCor, equation 17) and its gradient.

    Each sample is a Gaussian vector with covariance K and mean zero, restricted to the observed clients.

    Args:
        embedding: X, float64 ``[d, N]``.
        samples: What was observed.
        noise: Standard deviation of the noise, in units of loss, > 0.

    Returns:
        Phi and dPhi/dX, float64 ``[d, N]``.
    """
    block = _Block(embedding, samples, slice(None))
    slope, log_det, explained = _slopes(block.products().numpy(), samples, noise)
    quadratic = ((samples.changes**2).sum(1) - explained) / noise**2
    count = samples.patterns.sum(1)
    log_det = log_det + (count - len(embedding)) * math.log(noise**2)
    value = -0.5 * samples.weights @ (quadratic + (log_det + count * math.log(2 * math.pi))[samples.member])
    return float(value), slope @ block.stacked.numpy()


def fit(embedding: np.ndarray, samples: Samples, *, noise: float, lr: float, steps: int) -> np.ndarray:
    """Improve an embedding by some Adam steps on Phi, with fresh moments.

    A step goes once over the clients, block by block: gradient, Adam, and the products for the next step.

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
    height, clients = len(samples.patterns) * len(embedding) + len(samples.changes), embedding.shape[1]
    width = max(_NARROWEST, _BLOCK // height)
    blocks = [_Block(embedding, samples, slice(at, at + width)) for at in range(0, clients, width)]
    moments = [(torch.zeros_like(block.x), torch.zeros_like(block.x)) for block in blocks]
    products = torch.stack([block.products() for block in blocks]).sum(0)
    for step in range(steps):
        slope = _finite_slope(products.numpy(), samples, noise, lr)
        products = torch.zeros_like(products)
        for block, (first, second) in zip(blocks, moments, strict=True):
            adam(
                [block.x], [slope @ block.stacked], [first], [second], [], [torch.tensor(float(step))],
                fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=lr, weight_decay=0.0, eps=1e-8,
                maximize=True,
            )  # fmt: skip
            products += block.products()
    return torch.cat([block.x for block in blocks], dim=1).numpy()


def _finite_slope(products: np.ndarray, samples: Samples, noise: float, lr: float) -> Tensor:
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            slope, *_ = _slopes(products, samples, noise)
    except np.linalg.LinAlgError:
        slope = np.full(1, math.nan)
    if not np.isfinite(slope).all():
        raise UserError(
            "noise must be larger, or lr smaller, for loss changes of this size, got noise "
            f"{noise} and lr {lr}."
        )
    return torch.from_numpy(slope)


def greedy_by_posterior(
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
        allowed: Clients that may be chosen, bool ``[N]``; all N count in the sum.
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
