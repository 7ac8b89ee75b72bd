"""FedCor: choose the clients whose training is predicted to lower the losses of all clients most.

M. Tang, X. Ning, Y. Wang, J. Sun, Y. Wang, H. Li, Y. Chen: "FedCor: Correlation-Based Active Client Selection
Strategy for Heterogeneous Federated Learning", CVPR 2022 (arXiv:2103.13822), Algorithms 1 and 2, equations
9-11 and 14-17.

**Deviations**:

- The paper's kernel X'X is singular (d < N), so its likelihood does not exist. As in the reference code,
  noise is added on the diagonal, in the likelihood and in the selection.
- The embedding starts from N(0, 1/d), and each fit takes 100 Adam steps. The paper gives neither.
- History is counted in rounds and discounted by theta per round of age. Samples that were taken less than M
  intervals ago in the warm-up count too.
- Losses are those on the clients' training data, as in the paper. The reference code holds out a fifth.
- Beyond the paper: a client that is unavailable, or whose loss is not finite, is left out of a sample, and
  the likelihood is that of the others. If no variance is left, random clients fill up the cohort.

``variant="reference"`` follows the reference code: one more round of warm-up, one training of the embedding
(with ten times the steps) at its end, probe trainings one round later, and loss changes centred on their
discounted mean. Its README uses theta=0.95 and history=100 for Fashion-MNIST.

An update of the process takes ``steps`` Adam steps on d N numbers, in time proportional to N. With many
clients, rounds with an update take by far the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.params import Params, finite_rows, height, rows
from flsel.selector import Diagnostic, Need, Plan, Selector, View
from flsel.selectors import _gp
from flsel.selectors._sampling import fill_up, shares, with_examples

Variant = Literal["paper", "reference"]

_WARMUP_HISTORY = 10  # The paper's M in the warm-up phase, where samples come every round.
_REFERENCE_STEPS = 10  # The reference code trains 1000 steps after warm-up and 100 later.


@final
@dataclass(eq=False)
class FedCor(Selector):
    """Model loss changes by a Gaussian process and choose clients greedily by its posterior mean.

    In warm-up cohorts are uniform, and all available clients report their loss every round. Afterwards, every
    ``delta_t`` rounds, uniform cohorts are trained without aggregation (probe trainings) to learn from all
    clients' loss change.

    Attributes:
        beta: Annealing factor (beta) of a client's predicted change each time it is chosen between two
            updates of the process; the paper takes 0.9 for CIFAR-10.
        delta_t: Rounds between updates after warm-up (Delta t); the paper takes 50 for CIFAR-10.
        warmup: Rounds of warm-up (T_w); the paper takes 20 for CIFAR-10.
        d: Dimension of the clients' embeddings (d).
        theta: Discount of a sample per round of age (theta); the paper takes 0.99 for CIFAR-10.
        noise: Standard deviation of the noise (sigma_n), in units of loss.
        samples: Probe trainings per update after warm-up (S).
        history: Rounds for which samples are kept; null means 10 in warm-up and ``delta_t`` after it, the
            paper's M = 10 and M = 1.
        lr: Adam's learning rate for the embedding.
        steps: Adam steps per update.
        variant: ``paper``, or ``reference`` for the reference code's timeline.
    """

    only_synchronous = "it learns how one cohort, trained from one model, changes all losses"
    needs = Need.LOSSES | Need.SHADOW
    equal_weights = True
    beta: Annotated[float, Range(above=0, high=1), Tunable(0.5, 1.0)] = 0.95
    delta_t: Annotated[int, Range(1)] = 10
    warmup: Annotated[int, Range(0)] = 15
    _: KW_ONLY
    d: Annotated[int, Range(1)] = 15
    theta: Annotated[float, Range(above=0, high=1), Tunable(0.8, 1.0)] = 0.9
    noise: Annotated[float, Range(above=0), Tunable(1e-3, 0.1, log=True)] = 0.01
    samples: Annotated[int, Range(1)] = 1
    history: Annotated[int | None, Range(0)] = None
    lr: Annotated[float, Range(above=0), Tunable(1e-3, 0.1, log=True)] = 0.01
    steps: Annotated[int, Range(1)] = 100
    variant: Variant = "paper"

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget everything; the embedding is drawn in the first round."""
        clients = len(sizes)
        self.embedding_: Tensor | None = None
        self.alpha_ = torch.ones(clients, dtype=torch.float64)
        self.loss_ = torch.full((clients,), math.nan, dtype=torch.float64)
        self.changes_ = torch.empty(0, clients, dtype=torch.float64)
        self.rounds_ = torch.empty(0, dtype=torch.int64)

    def select(self, view: View) -> Plan:
        """Update the process if it is due, then draw uniformly in warm-up and choose greedily after it."""
        if self.embedding_ is None:
            draw = view.rng.normal(scale=self.d**-0.5, size=(self.d, len(view.sizes)))
            self.embedding_ = torch.from_numpy(draw)
        warmup = self.warmup + (self.variant == "reference")
        # The last cohort of warm-up shows its effect in the round after it.
        follows = view.round <= warmup and warmup > 0
        rehearses = self._rehearses(view.round, warmup)
        if follows or rehearses:
            before, self.loss_ = self.loss_, _losses(view)
            if follows and self._remember([self.loss_ - before], view.round - 1, _WARMUP_HISTORY):
                self._learn_in_warmup(view.round == warmup)
            if rehearses:
                self._rehearse(view)
        if view.round < warmup:
            return Plan.star(_uniform(view))
        return Plan.star(self._choose(view))

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the correlation of the clients' loss changes under the process, without noise."""
        if self.embedding_ is None:
            return []
        unit = torch.nn.functional.normalize(self.embedding_[:, clients], dim=0).numpy()
        return [Diagnostic("correlation of loss changes", "pair", unit.T @ unit)]

    def _rehearses(self, round: int, warmup: int) -> bool:
        if self.variant == "reference":
            return round > warmup and (round - 1) % self.delta_t == 0
        return round >= warmup and round % self.delta_t == 0

    def _remember(self, changes: list[Tensor], round: int, depth: int) -> bool:
        """Add a round's samples (each float64 ``[N]``) to the history and drop those older than ``depth``.

        Returns:
            Whether there was anything to add.
        """
        rows = torch.stack(changes)
        rows = rows.masked_fill(~rows.isfinite(), math.nan)
        rows = rows[~rows.isnan().all(1)]
        kept = self.rounds_ >= round - (depth if self.history is None else self.history)
        self.changes_ = torch.cat([self.changes_[kept], rows])
        self.rounds_ = torch.cat([self.rounds_[kept], torch.full((len(rows),), round)])
        return len(rows) > 0

    def _learn_in_warmup(self, last: bool) -> None:
        if self.variant == "paper":
            self._learn(self.steps)
        elif last:
            self._learn(_REFERENCE_STEPS * self.steps)

    def _learn(self, steps: int) -> None:
        """Train the embedding on the history (equations 16 and 17)."""
        assert self.embedding_ is not None
        age = (self.rounds_.max() - self.rounds_).numpy()
        weights, changes = self.theta**age, self.changes_.numpy()
        if self.variant == "reference":
            changes = changes - _gp.discounted_mean(changes, weights)
        samples = _gp.Samples.of(changes, weights)
        embedding = self.embedding_.numpy()
        fitted = _gp.fit(embedding, samples, noise=self.noise, lr=self.lr, steps=steps)
        self.embedding_ = torch.from_numpy(fitted)

    def _rehearse(self, view: View) -> None:
        """Learn loss changes from probe trainings of uniform cohorts, and undo the annealing."""
        changes = []
        for _ in range(self.samples):
            model = _mean_model(view.shadow(_uniform(view)))
            if model is not None:
                changes.append(_losses(view, model) - self.loss_)
        self.alpha_ = torch.ones_like(self.alpha_)
        if changes and self._remember(changes, view.round, self.delta_t):
            self._learn(self.steps)

    def _choose(self, view: View) -> np.ndarray:
        """Choose by Algorithm 1 and anneal those chosen."""
        assert self.embedding_ is not None
        candidates = with_examples(view.pool, view.sizes)
        chosen = _gp.greedy_by_posterior(
            self.embedding_.numpy(),
            self.noise,
            share=shares(view.sizes.numpy()),
            alpha=self.alpha_.numpy(),
            allowed=np.isin(np.arange(len(view.sizes)), candidates),
            count=view.clients_per_round,
        )
        cohort = fill_up(np.array(chosen, dtype=np.int64), candidates, view.clients_per_round, view.rng)
        self.alpha_ = self.alpha_.clone()
        self.alpha_[torch.from_numpy(cohort)] *= self.beta
        return cohort


def _uniform(view: View) -> list[int]:
    """Draw a uniform cohort without replacement."""
    able = with_examples(view.pool, view.sizes)
    clients: list[int] = view.rng.permutation(able)[: view.clients_per_round].tolist()
    return clients


def _losses(view: View, at: Params | None = None) -> Tensor:
    """Ask all available clients for their loss, float64 ``[N]``; NaN for the others."""
    losses = torch.full((len(view.sizes),), math.nan, dtype=torch.float64)
    losses[torch.from_numpy(view.pool)] = view.losses(view.pool.tolist(), at)
    return losses


def _mean_model(stack: Params) -> Params | None:
    """Average the end models that are finite; None if there is none."""
    finite = rows(stack, finite_rows(stack))
    return {name: value.mean(0) for name, value in finite.items()} if height(finite) else None
