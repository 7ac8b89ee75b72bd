"""Synthetic federated classification with known heterogeneity, one natural client after the other.

Sources: Wang et al., "FedGS: Federated Graph-based Sampling with Arbitrary Client Availability", AAAI 2023,
appendix C, after Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020; and Wu and Wang,
"Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data", IEEE TNSE 2022, section
V-A.
Second arguments of N(,) are standard deviations, as in both reference implementations.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from flsel.data.check_arrays import fits_memory
from flsel.data.population import Examples, Normalize, Source
from flsel.errors import UserError
from flsel.rng import generator

if TYPE_CHECKING:
    from flsel.data.data_config import SyntheticConfig


class _Client(NamedTuple):
    weight: np.ndarray  # [C, D]
    bias: np.ndarray  # [C]
    centre: np.ndarray | float  # [D]


def make_fedgs(config: SyntheticConfig, *, clients: int, seed: int) -> Source:
    """Generate Synthetic(alpha, beta) (FedGS, Eq. 51).

    Client k draws u ~ N(0, alpha), its model W [C, D] and b [C] from N(u, 1), B ~ N(0, beta), a centre
    v [D] from N(B, 1), and then n_k inputs x ~ N(v, diag(j^-1.2)), labelled argmax(W x + b). The number of
    examples n_k is floor(lognormal(size_mean, size_std)) + size_min, at most size_max. u shifts all classes
    alike, so alpha cancels in the argmax: it moves the clients' models apart, not their data.

    Args:
        config: The ranges above.
        clients: N, >= 1. A client's data do not depend on it.
        seed: The run's seed.

    Returns:
        Float32 inputs ``[S, dimension]`` with their owners, client after client, and their true models;
        no test set.

    Raises:
        UserError: If the data do not fit into memory.
    """
    # Per client its size, labels and place; per class the weights that draw labels, of one client at a time.
    fits_memory(f"data.synthetic with {clients:,} clients", 64 * clients)
    fits_memory(f"data.synthetic with {config.classes:,} classes", 16 * config.classes * config.dimension)
    spread = generator(seed, "synthetic-sizes").lognormal(config.size_mean, config.size_std, clients)
    limit = float(2**40 if config.size_max is None else config.size_max)
    sizes = np.minimum(np.floor(spread) + config.size_min, limit).astype(np.int64)
    x, y = _allocate(int(sizes.sum()), config)
    ends = np.cumsum(sizes)
    for k, (begin, end) in enumerate(zip((ends - sizes).tolist(), ends.tolist(), strict=True)):
        rng = generator(seed, "synthetic", k)
        weight, bias = _own_model(rng, config)
        centre = rng.normal(rng.normal(0, config.beta), 1, config.dimension)
        y[begin:end] = _fill(x[begin:end], _Client(weight, bias, centre), rng)
    train = Examples(torch.from_numpy(x), torch.from_numpy(y))
    owner = np.repeat(np.arange(clients), sizes)
    return Source(
        train,
        None,
        config.classes,
        owner,
        Normalize(),
        "synthetic",
        true_models=partial(fedgs_models, config, seed),
    )


def fedgs_models(config: SyntheticConfig, seed: int, clients: int) -> np.ndarray:
    """Return the models of the first clients that :func:`make_fedgs` makes.

    Returns:
        Float64 ``[clients, C (D + 1)]``: W row by row, then b.
    """
    models = (_own_model(generator(seed, "synthetic", k), config) for k in range(clients))
    return np.stack([np.append(weight, bias) for weight, bias in models])


def _own_model(rng: np.random.Generator, config: SyntheticConfig) -> tuple[np.ndarray, np.ndarray]:
    """Draw a client's model, the first of its draws."""
    return _model(rng, rng.normal(0, config.alpha), config)


def make_fedpns(config: SyntheticConfig, *, clients: int, test: float, seed: int) -> Source:
    """Generate the data of FedPNS (section V-A).

    Inputs of the first floor(sigma N) clients are x ~ N(0, diag(j^-1.2)); any other client shifts them by its
    own centre o [D] from N(B, 1), B ~ N(0, varrho). Labels are argmax(W x + b) with W, b ~ N(0, 1). Every
    client has ``samples`` examples of which the share ``test`` is kept out of training. In the variant
    ``paper`` all clients share W and b, and all contribute to the test set; the reference code gives every
    non-i.i.d. client a W and b of its own and tests on the i.i.d. clients' examples only (``reference``).

    Args:
        config: The parameters above.
        clients: N, >= 1.
        test: Share of each client's examples that is held out, in (0, 1).
        seed: The run's seed.

    Returns:
        Float32 inputs ``[S, dimension]`` with their owners, client after client, and the test set.

    Raises:
        UserError: If the test set would be empty or the data do not fit into memory.
    """
    alike, samples = int(config.iid_share * clients + 1e-9), config.samples
    testers = alike if config.variant == "reference" else clients
    kept = samples - round(test * samples)
    if testers == 0 or not 0 < kept < samples:
        raise UserError(
            f"data.test = {test:g} of {samples} examples of each of {testers} clients leaves no test or no "
            f"training set; change data.test, data.synthetic.samples or data.synthetic.iid_share."
        )
    x, y = _allocate(clients * samples, config)
    shared = _model(generator(seed, "synthetic-model"), 0.0, config)
    for k in range(clients):
        rng = generator(seed, "synthetic", k)
        client = _Client(*shared, 0.0) if k < alike else _shifted(rng, shared, config)
        rows = slice(k * samples, (k + 1) * samples)
        y[rows] = _fill(x[rows], client, rng)
    held = np.arange(samples) >= kept
    tested = _rows(x, y, np.arange(clients)[:, None] < testers, held)
    train = _rows(x, y, np.ones((clients, 1), dtype=bool), ~held)
    owner = np.repeat(np.arange(clients), kept)
    return Source(train, tested, config.classes, owner, Normalize(), "synthetic")


def _shifted(
    rng: np.random.Generator, shared: tuple[np.ndarray, np.ndarray], config: SyntheticConfig
) -> _Client:
    weight, bias = shared if config.variant == "paper" else _model(rng, 0.0, config)
    return _Client(weight, bias, rng.normal(rng.normal(0, config.shift), 1, config.dimension))


def _model(rng: np.random.Generator, mean: float, config: SyntheticConfig) -> tuple[np.ndarray, np.ndarray]:
    weight = rng.normal(mean, 1, (config.classes, config.dimension))
    return weight, rng.normal(mean, 1, config.classes)


def _fill(x: np.ndarray, client: _Client, rng: np.random.Generator) -> np.ndarray:
    """Draw the inputs ``x`` float32 ``[n, D]`` in place and return their labels ``[n]``."""
    rng.standard_normal(out=x, dtype=np.float32)
    x *= np.arange(1, x.shape[1] + 1, dtype=np.float32) ** np.float32(-0.6)  # square root of j^-1.2
    x += np.asarray(client.centre, dtype=np.float32)
    # In double precision no label hangs on the order in which a matrix product is summed.
    labels: np.ndarray = (x.astype(np.float64) @ client.weight.T + client.bias).argmax(axis=1)
    return labels


def _rows(x: np.ndarray, y: np.ndarray, clients: np.ndarray, positions: np.ndarray) -> Examples:
    """Return the rows of some clients, bool ``[N, 1]``, at some positions, bool ``[samples]``."""
    mask = (clients & positions).ravel()
    return Examples(torch.from_numpy(x[mask]), torch.from_numpy(y[mask]))


def _allocate(total: int, config: SyntheticConfig) -> tuple[np.ndarray, np.ndarray]:
    fits_memory(
        f"data.synthetic with {total:,} examples (data.synthetic.size_mean, size_max)",
        total * (4 * config.dimension + 8),
    )
    return np.empty((total, config.dimension), dtype=np.float32), np.empty(total, dtype=np.int64)
