"""DivFL: a diverse cohort, such that every client's gradient is near that of a chosen one.

R. Balakrishnan, T. Li, T. Zhou, N. Himayat, V. Smith, J. Bilmes: "Diverse Client Selection for Federated
Learning via Submodular Maximization", ICLR 2022, facility location over gradients (Eqs. 4-6, Algorithm 1).

**Deviations**:

- The paper's ``ideal`` mode has the gradients of all clients at the present model every round. The released
  code runs without that overhead (``no_overhead``).
- The paper uses stochastic greedy with rho = 0.1, a share of the candidates. The released code uses lazy
  greedy, which finds the same cohort as plain greedy.
- Weights are those of the released aggregation (``size``). The paper's analysis weighs by the clients
  represented.
- ``signal="update"`` is the variant of the HiCS-FL repository, but with updates of the present round instead
  of the last.
- A client that never reported, or whose gradient is not finite, is no candidate and needs no representative.
  It is used only to fill a cohort. An unavailable client still needs a representative, by its last known
  gradient.
- For more than 2,000 clients, or with ``sketch``, a count sketch of each gradient is kept in single
  precision. Its distances are right up to 1 / sqrt(length).
- Costs that agree to 1e-12 (1e-6 with sketches) count as equal. Of equal clients the lowest id is taken.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.errors import UserError
from flsel.params import flatten
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors._facility import exact_greedy, lazy_greedy, represented, stochastic_greedy
from flsel.selectors._pairwise import euclidean_distances, squared_lengths
from flsel.selectors._sampling import equal_weights, with_examples
from flsel.selectors._sketch import sketch_distances, sketch_length, sketched

_MOST = 20_000
_AT_ONCE = 32  # Clients asked at a time: bounds the stack of their gradients.
_MEASURED = 256  # Clients whose distances are computed at a time: bounds the copies of these.


@final
@dataclass(eq=False)
class DivFL(Selector):
    """Choose greedily the clients whose gradients represent those of all clients.

    Attributes:
        mode: ``ideal``: all available clients report before every round. ``no_overhead``: a client reports
            when it is first reached, and then only when it takes part.
        signal: What is reported: the ``gradient`` of the local loss at the global model, or the ``update``
            of a local training. Under ``no_overhead`` participants' updates cost nothing extra, while
            gradients cost them a pass over their data and a second upload.
        optimizer: ``lazy``, ``greedy`` (the same cohorts, slower) or ``stochastic``.
        rho: Share of the candidates that stochastic greedy looks at in each step (rho).
        weights: ``size`` (also written ``samples``) weighs updates by their clients' examples, ``equal`` by
            1/K, ``represented`` by the number of clients that a chosen one is nearest to.
        sketch: Numbers kept of a gradient; null keeps it whole up to 2,000 clients and 256 numbers beyond.
    """

    only_synchronous = "it compares what clients learn from one model, and chooses them jointly"
    mode: Literal["ideal", "no_overhead"] = "ideal"
    signal: Literal["gradient", "update"] = "gradient"
    _: KW_ONLY
    optimizer: Literal["lazy", "greedy", "stochastic"] = "lazy"
    rho: Annotated[float, Range(above=0, high=1), Tunable(0.05, 1.0)] = 0.1
    weights: Literal["size", "equal", "represented", "samples"] = "size"
    sketch: Annotated[int | None, Range(1)] = None

    @property
    def needs(self) -> Need:
        """Gradients, or probe training and, without overhead, participants' updates."""
        if self.signal == "gradient":
            return Need.GRADIENTS
        return Need.SHADOW if self.mode == "ideal" else Need.SHADOW | Need.DELTAS

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all gradients.

        Raises:
            UserError: If there are more clients than the matrix of their distances is kept for.
        """
        clients = len(sizes)
        if clients > _MOST:
            raise UserError(
                f"DivFL needs at most {_MOST:,} clients, whose distances take {4e-9 * _MOST**2:.1f} GB, got "
                f"{clients:,}."
            )
        self.row_ = torch.empty(clients, 0)
        self.square_ = torch.zeros(clients, dtype=torch.float64)
        self.known_ = torch.zeros(clients, dtype=torch.bool)
        self.distance_ = torch.empty(0, 0, dtype=torch.float64)

    def select(self, view: View) -> Plan:
        """Ask for gradients, then add clients to the cohort greedily."""
        asked = view.available & (view.sizes > 0)
        if self.mode == "no_overhead":
            asked &= ~self.known_
        with view.one_request():
            self._ask(view, np.flatnonzero(asked.numpy()))
        known = self.known_.numpy()
        candidates = view.pool[known[view.pool]]
        chosen = self._choose(candidates, min(view.clients_per_round, len(candidates)), view.rng)
        able = with_examples(view.pool, view.sizes)
        strangers = view.rng.permutation(able[~known[able]])
        return Plan.star([*chosen, *strangers[: view.clients_per_round - len(chosen)].tolist()])

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh updates by examples, equally, or by the clients represented."""
        if self.weights == "equal":
            return equal_weights(len(updates.plan))
        if self.weights in ("size", "samples"):
            return Selector.weigh(self, view, updates)
        clients, known = updates.clients.numpy(), self.known_.numpy()
        near = known[clients]
        gamma = np.ones(len(clients))  # A stranger stands for itself.
        if near.any():
            gamma[near] = represented(self.distance_.numpy(), clients[near], known)
        return torch.from_numpy(gamma / gamma.sum())

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Without overhead: replace what is known of the participants."""
        if self.mode == "ideal":
            return
        told = np.flatnonzero((view.sizes[updates.clients] > 0).numpy())
        clients = updates.clients.numpy()[told]
        if self.signal == "gradient":
            with view.one_request():
                self._ask(view, clients)
        else:
            self._store(clients, flatten(updates.deltas)[told])
            self._measure(clients)

    def _ask(self, view: View, clients: np.ndarray) -> None:
        for first in range(0, len(clients), _AT_ONCE):
            part = clients[first : first + _AT_ONCE]
            if self.signal == "gradient":
                self._store(part, flatten(view.gradients(part.tolist())))
            else:
                self._store(part, flatten(view.shadow(part.tolist()), view.params))
        self._measure(clients)

    def _store(self, clients: np.ndarray, rows: Tensor) -> None:
        """Replace the clients' gradients by ``rows``, ``[n, |theta|]``."""
        length = sketch_length(len(self.row_), self.sketch)
        if length is not None:
            rows = torch.from_numpy(sketched(rows.numpy(), length)).float()
        if len(self.distance_) == 0:
            self.row_ = rows.new_zeros(len(self.row_), rows.shape[1])
            precision = torch.float64 if length is None else torch.float32
            self.distance_ = torch.zeros(len(self.row_), len(self.row_), dtype=precision)
        where, square = torch.from_numpy(clients), torch.from_numpy(squared_lengths(rows.numpy()))
        # The distances' squares must be numbers of their precision.
        finite = square < torch.finfo(self.distance_.dtype).max / 4
        # In place, like the distances: these two are large.
        self.row_[where] = rows
        self.row_[where[~finite]] = 0.0
        self.known_ = self.known_.index_put((where,), finite)
        self.square_ = self.square_.index_put((where,), square.where(finite, 0.0))

    def _measure(self, clients: np.ndarray) -> None:
        """Bring the clients' distances up to date."""
        rows, known, square = self.row_.numpy(), self.known_.numpy(), self.square_.numpy()
        sketches = self.distance_.dtype == torch.float32
        clients = np.sort(clients)
        everybody = len(clients) == len(rows)
        for first in range(0, len(clients), _MEASURED):
            part = clients[first : first + _MEASURED]
            # If all clients report, the clients before these have been measured against them.
            start = first if everybody else 0
            others = rows[start:] if start else rows
            # The matrix itself where it is all of it: products of a matrix with itself are symmetric.
            some = rows if len(part) == len(rows) else rows[part]
            if sketches:
                block = sketch_distances(some, others)
            else:
                block = euclidean_distances(some, others, (square[part], square[start:]))
            block[~known[part]], block[:, ~known[start:]] = 0.0, 0.0
            own = block[:, part - start]
            block[:, part - start] = np.maximum(own, own.T)  # Equal but for rounding.
            block[np.arange(len(part)), part - start] = 0.0
            where = slice(first, first + len(part)) if everybody else torch.from_numpy(part)
            self.distance_[where, start:] = torch.from_numpy(block)
            self.distance_[start:, where] = torch.from_numpy(block).T

    def _choose(self, candidates: np.ndarray, count: int, rng: np.random.Generator) -> list[int]:
        distance, known = self.distance_.numpy(), self.known_.numpy()
        if self.optimizer == "stochastic":
            return stochastic_greedy(distance, candidates, known, count=count, rho=self.rho, rng=rng)
        choose = lazy_greedy if self.optimizer == "lazy" else exact_greedy
        return choose(distance, candidates, known, count=count)
