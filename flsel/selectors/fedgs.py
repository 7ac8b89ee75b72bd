"""FedGS: far-apart clients on a graph of data similarity, sampled equally often under any availability.

Z. Wang, X. Fan, J. Qi, H. Jin, P. Yang, S. Shen, C. Wang: "FedGS: Federated Graph-based Sampling with
Arbitrary Client Availability", AAAI 2023 (arXiv:2211.13975), Algorithm 1, Eqs. 10-16, appendices C and D.

**Deviations**:

- *Variants.* With the paper's epsilon = 0.1 and sigma^2 = 0.01 (``paper``) every edge of the graph is shorter
  than 5e-5. So no alpha of the paper's tables outweighs a difference of one in the counts. ``normalised``
  divides by the longest path. This is the scale of the reference code, to which the alphas of the tables
  belong. Nearly all distances are still zero, and cohorts are less diverse than without a graph.
- *The default* ``scaled`` stretches the similarities of different clients to [0, 1], joins all pairs (epsilon
  = 0) and takes sigma^2 = 1. Distances then fall from 1 to 1/e. Their mean over a cohort is large if the mean
  of its labels is even.
- ``reference`` is the authors' code: cosines stretched to [0, 1] for every graph, and edges exp(-V^2 /
  sigma2) for V > epsilon, with epsilon = 0.01 and sigma2 = 0.1. If two clients have no path, the code takes
  the longest path (gap = 1). In a graph of cliques of identical clients all distances are then equal. With
  gap = 2 they are not.
- A client is asked to train when it is first available. So the updates behind a graph may start from
  different global models. An unknown or non-finite update has no edge, and a zero update has the similarity
  0. The questions take no round. The reference spends its first round on them.
- The noise of the functional graph has the covariance of the server's holdout instead of the test set.
- The secure product has a separate commodity party, because the paper's server could unmask every client. A
  client's product with itself is unknown to the server.
- A local search replaces Gurobi. Clients are counted when they are sampled. Ties are broken at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable, UserPath, shown
from flsel.errors import UserError
from flsel.params import flatten
from flsel.selector import Diagnostic, Need, Plan, Selector, View
from flsel.selectors._graph import (
    EPSILON,
    SIGMA2,
    Variant,
    adjacency,
    graph_distances,
    shortest_paths,
    similarity,
)
from flsel.selectors._pairwise import inner_products
from flsel.selectors._qubo import cohort_problem, solve
from flsel.selectors._sampling import with_examples
from flsel.selectors._sspp import secure_products, traffic

_NEEDS = {
    "labels": Need.LABELS,
    "secure": Need.LABELS,
    "cosine": Need.SHADOW,
    "functional": Need.SHADOW | Need.NOISE_OUTPUTS,
    "optimal": Need.SHADOW,
    "true_models": Need.TRUE_MODELS,
}
_MOST = 20_000
_AT_ONCE = 32  # Clients that train at a time while the graph is built: bounds the stack of their models.


@final
@dataclass(eq=False)
class FedGS(Selector):
    """Choose the cohort that is far apart on a graph and evens out how often clients were sampled.

    Attributes:
        alpha: Weight of the distances against the counts (alpha); 0 takes the smallest counts and no graph.
        graph: What clients are compared by: ``labels`` (shares of the labels), ``secure`` (the same by a
            protocol that shows the server nothing but the inner products), ``cosine`` (updates),
            ``functional`` (outputs on Gaussian noise), ``optimal`` (models after one local training),
            ``true_models`` (those that labelled generated data) or the path of a ``.npy`` file with features
            ``[N, d]``.
        epsilon: Least similarity that makes an edge (epsilon); ``auto`` is the variant's.
        sigma2: Similarity that makes an edge e times shorter (sigma^2); ``auto`` is the variant's.
        variant: ``scaled`` (epsilon 0, sigma^2 1), ``normalised`` or ``paper`` (0.1, 0.01) or ``reference``
            (0.01, 0.1), see above.
        gap: Distance where there is no path, in units of the longest path.
        restarts: Random restarts of the search for a cohort.
        moves: Largest number of exchanges of a member in a round's search, in place of the paper's time limit
            (tau_max); null searches until no exchange helps.
    """

    only_synchronous = "it solves for the cohort as a whole"
    alpha: Annotated[float, Range(0), Tunable(0.0, 5.0)] = 1.0
    graph: Annotated[str, UserPath()] = "labels"
    _: KW_ONLY
    epsilon: Annotated[float | Literal["auto"], Range(0, below=1), Tunable(0.0, 0.5)] = "auto"
    sigma2: Annotated[float | Literal["auto"], Range(above=0), Tunable(0.01, 10.0, log=True)] = "auto"
    variant: Variant = "scaled"
    gap: Annotated[float, Range(1)] = 1.0
    restarts: Annotated[int, Range(0)] = 8
    moves: Annotated[int | None, Range(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.graph not in _NEEDS and not Path(self.graph).is_file():
            raise UserError(
                f"graph must be {', '.join(_NEEDS)} or the path of a .npy file with features [N, d], got "
                f"{shown(self.graph)}."
            )

    @property
    def needs(self) -> Need:
        """Information that this graph is built from; none if alpha is 0."""
        return _NEEDS.get(self.graph, Need.NONE) if self.alpha > 0 else Need.NONE

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget the counts and the graph.

        Raises:
            UserError: If ``graph`` is a file without a row of numbers for every client, or if there are more
                clients than a graph is built for.
        """
        if self.alpha > 0 and len(sizes) > _MOST:
            raise UserError(
                f"alpha must be 0, which needs no graph, for more than {_MOST:,} clients: a graph of so many "
                f"takes {5 * 8e-9 * _MOST**2:.0f} GB and hours to build, got {self.alpha} and {len(sizes):,}."
            )
        self.count_ = torch.zeros(len(sizes), dtype=torch.int64)
        self.graph_ = torch.empty(0, 0, dtype=torch.float64)
        # NaN: not known. Clients without examples have nothing to compare and are never asked.
        self.feature_ = torch.full((len(sizes), 0), math.nan)
        self.asked_ = sizes == 0
        if self.alpha > 0 and self.graph not in _NEEDS:
            self.feature_ = torch.from_numpy(_read(self.graph, len(sizes)))

    def select(self, view: View) -> Plan:
        """Extend the graph with new answers, then solve Eq. 16 over the available clients."""
        if self.alpha > 0:
            self._learn(view)
        # In random order, as the solver prefers the first of equals.
        items = view.rng.permutation(with_examples(view.pool, view.sizes))
        problem = cohort_problem(
            self.count_.numpy(),
            self.graph_.numpy(),
            items,
            count=min(view.clients_per_round, len(items)),
            alpha=self.alpha,
            paper=self.variant == "paper",
        )
        places = solve(problem, restarts=self.restarts, moves=self.moves, rng=view.rng)
        chosen = torch.from_numpy(np.sort(items[places]))
        self.count_ = self.count_.index_add(0, chosen, torch.ones_like(chosen))
        return Plan.star(chosen)

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the distances on the graph, once there is one."""
        if not len(self.graph_):
            return []
        return [Diagnostic("distance on the graph", "pair", self.graph_.numpy()[np.ix_(clients, clients)])]

    def _learn(self, view: View) -> None:
        """Ask the clients that were never asked and, if any answered, build the graph anew."""
        new = np.flatnonzero((view.available & ~self.asked_).numpy())
        if len(self.graph_) and len(new) == 0:
            return
        if Need.SHADOW in self.needs:
            with view.one_request():
                self._train(view, new)
            self.asked_ = self.asked_.index_fill(0, torch.from_numpy(new), True)
        else:
            if Need.LABELS in self.needs:
                self.feature_ = _shares(view.labels)
            elif Need.TRUE_MODELS in self.needs:
                self.feature_ = view.true_models
            self.asked_ = torch.ones_like(self.asked_)
        v = similarity(
            self._products(view), clip=self.graph in ("cosine", "functional"), variant=self.variant
        )
        epsilon = EPSILON[self.variant] if isinstance(self.epsilon, str) else self.epsilon
        sigma2 = SIGMA2[self.variant] if isinstance(self.sigma2, str) else self.sigma2
        r = adjacency(v, epsilon=epsilon, sigma2=sigma2, variant=self.variant)
        h = graph_distances(shortest_paths(r), gap=self.gap, variant=self.variant)
        self.graph_ = torch.from_numpy(h)
        if bool(self.asked_.all()):
            self.feature_ = self.feature_[:, :0].clone()

    def _train(self, view: View, clients: np.ndarray) -> None:
        """Let clients (int64 ``[n]``, available) train, and keep what they are compared by."""
        self.feature_ = self.feature_.clone()
        for first in range(0, len(clients), _AT_ONCE):
            part = clients[first : first + _AT_ONCE]
            stack = view.shadow(part.tolist())
            if self.graph == "functional":
                rows = view.noise_outputs(stack)
            else:
                rows = flatten(stack, view.params if self.graph == "cosine" else None)
            if self.feature_.shape[1] == 0:
                self.feature_ = rows.new_full((len(self.feature_), rows.shape[1]), math.nan)
            self.feature_[torch.from_numpy(part)] = rows

    def _products(self, view: View) -> np.ndarray:
        """Return the inner products of the features, float64 ``[N, N]``, NaN where one is not known."""
        known = self.asked_ & (view.sizes > 0) & self.feature_.isfinite().all(dim=1)
        where = np.flatnonzero(known.numpy())
        features = self.feature_.numpy()[where]
        products = np.full((len(known), len(known)), np.nan)
        if self.graph == "secure":
            view.charge(traffic(*features.shape), where.tolist())
            found = _hidden_products(features, view.rng, unit=self.variant == "reference")
        else:
            found = inner_products(features, features)
        products[np.ix_(where, where)] = found
        return products


def _shares(labels: Tensor) -> Tensor:
    """Return each client's share of every label, float64 ``[N, C]``, from its counts."""
    return labels / labels.sum(dim=1, keepdim=True).clamp(min=1).double()


def _hidden_products(features: np.ndarray, rng: np.random.Generator, *, unit: bool) -> np.ndarray:
    """Return inner products by the secure protocol; with ``unit`` each client scales to length one first."""
    if not unit:
        return secure_products(features, rng)
    products = secure_products(features / np.linalg.norm(features, axis=1, keepdims=True), rng)
    np.fill_diagonal(products, 1.0)
    return products


def _read(path: str, clients: int) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            features = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"graph {path} must be a .npy file with features [N, d]: {error}.") from error
    if features.ndim != 2 or len(features) != clients or features.dtype.kind not in "fiu":
        raise UserError(
            f"graph {path} must hold numbers of shape [{clients}, d], a row for every client, got "
            f"{features.dtype} of shape {list(features.shape)}."
        )
    rows: np.ndarray = features.astype(np.float64)
    return rows
