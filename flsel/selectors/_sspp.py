"""A secure scalar product: the server learns two clients' inner product and nothing else.

W. Du and Z. Zhan: "A practical approach to solve secure multi-party computation problems", NSPW 2002, as
FedGS uses it (appendix D, Algorithm 2). For each pair (A, B) of clients::

    commodity party   R_a, R_b, r_a random, r_b = R_a.R_b - r_a;  sends (R_a, r_a) to A, (R_b, r_b) to B
    A, B              send A + R_a and B + R_b to the server, which passes them on to B and A
    B                 sends a random v2 and u = (A + R_a).B + r_b - v2 to the server; u is passed on to A
    A                 sends v1 = u - R_a.(B + R_b) + r_a = A.B - v2
    server            A.B = v1 + v2

In the paper the server itself makes the masks and relays A + R_a, so it can compute A. Here a party of its
own makes them and sends them past the server; it sees no message at all. The server, the commodity party and
the clients follow the protocol and do not pool what they know. The formulas hold in any ring: with real
numbers and Gaussian masks (the paper) what is hidden can still be guessed, in the integers modulo 2^64 with
uniform masks every message is uniform whatever A and B are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flsel.metrics import Cost

_BITS = 30  # Products of vectors of length <= 1 then stay below 2^62, and are right to 2e-9 per component.
_WORD = 8


class Share(NamedTuple):
    """What the commodity party sends to one client: a mask R ``[..., d]`` and a scalar r ``[...]``."""

    mask: np.ndarray
    scalar: np.ndarray


def deal(mask_a: np.ndarray, mask_b: np.ndarray, scalar_a: np.ndarray) -> tuple[Share, Share]:
    """Commodity party: complete random R_a, R_b ``[..., d]`` and r_a ``[...]`` to the shares of A and B."""
    return Share(mask_a, scalar_a), Share(mask_b, _dot(mask_a, mask_b) - scalar_a)


def hidden(vector: np.ndarray, share: Share) -> np.ndarray:
    """A and B: hide a vector ``[..., d]`` behind the own mask."""
    masked: np.ndarray = vector + share.mask
    return masked


def reply(vector: np.ndarray, share: Share, other: np.ndarray, secret: np.ndarray) -> np.ndarray:
    """B: return u from the own vector and share, A's hidden vector and the random v2 ``[...]``."""
    u: np.ndarray = _dot(other, vector) + share.scalar - secret
    return u


def finish(answer: np.ndarray, share: Share, other: np.ndarray) -> np.ndarray:
    """A: return v1 from B's u, the own share and B's hidden vector."""
    v1: np.ndarray = answer - _dot(share.mask, other) + share.scalar
    return v1


def secure_products(vectors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Run the protocol for all pairs of clients in the ring of the integers modulo 2^64.

    Args:
        vectors: The clients' vectors, float64 ``[N, d]``, each of length at most one.
        rng: Source of all parties' randomness; a deployment would draw it from each party's system.

    Returns:
        Inner products, float64 ``[N, N]``, to about 1e-9; NaN on the diagonal, which no protocol computes.
    """
    fixed = np.rint(vectors * 2.0**_BITS).astype(np.int64).view(np.uint64)
    products = np.full((len(fixed), len(fixed)), np.nan)
    for a in range(len(fixed) - 1):
        found = _with_each(fixed[a], fixed[a + 1 :], rng)
        products[a, a + 1 :] = products[a + 1 :, a] = found.view(np.int64) / 4.0**_BITS
    return products


def traffic(clients: int, length: int) -> Cost:
    """Count what the protocol sends for all pairs of clients."""
    pairs = clients * (clients - 1) // 2
    up, down = 2 * length + 3, 4 * length + 3  # Hidden vectors, u, v2, v1; shares, hidden vectors, u.
    return Cost(scalars_up=pairs * up, bytes_up=_WORD * pairs * up, bytes_down=_WORD * pairs * down)


def _with_each(vector: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the inner products of A's vector ``[d]`` with those of every B ``[n, d]``, uint64 ``[n]``."""
    share_a, share_b = deal(
        _uniform(rng, others.shape), _uniform(rng, others.shape), _uniform(rng, len(others))
    )
    secret = _uniform(rng, len(others))
    hidden_a, hidden_b = hidden(vector, share_a), hidden(others, share_b)
    answer = reply(others, share_b, hidden_a, secret)
    product: np.ndarray = finish(answer, share_a, hidden_b) + secret
    return product


def _uniform(rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 2**64, shape, dtype=np.uint64)


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    product: np.ndarray = (one * other).sum(axis=-1)
    return product
