"""The needs that a selector declares, and the view that answers them before a round's training."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.errors import UndeclaredNeedError, UserError
from flsel.metrics import Cost, Ledger
from flsel.params import Params, height, row
from flsel.selector.plan import ids


class Need(enum.Flag):
    """Information that a selector declares in ``needs``. All other information is refused.

    Static tables and what participants send come without a question. All other information is answered on
    demand, at a cost that the ledger counts.
    """

    NONE = 0
    LABELS = enum.auto()
    """Label counts of every client."""
    OWN_LOSS = enum.auto()
    """A participant's loss, on its own data, of the model it received."""
    HEAD = enum.auto()
    """A participant's update of the output layer."""
    DELTAS = enum.auto()
    """A participant's whole update."""
    LOSSES = enum.auto()
    """Losses of any available clients at any model, before training."""
    SHADOW = enum.auto()
    """Local training of any available clients without aggregation."""
    SERVER_LOSS = enum.auto()
    """Loss of any model on the server's holdout."""
    GRADIENTS = enum.auto()
    """Gradients of any available clients' losses at the global model, before training."""
    NOISE_OUTPUTS = enum.auto()
    """Mean outputs of any models on Gaussian noise shaped like the server's holdout."""
    TRUE_MODELS = enum.auto()
    """The models that labelled the clients' examples, which only generated data have."""
    DURATIONS = enum.auto()
    """Simulated seconds of local training: by the profiles before, as observed after; needs ``devices``."""
    SQUARED_LOSS = enum.auto()
    """A participant's mean squared loss on the examples that it trains on, sent with its update."""


ON_HOLDOUT = Need.SERVER_LOSS | Need.NOISE_OUTPUTS
"""Needs that use the server's holdout, which the run must then have."""


@dataclass(frozen=True)
class View:
    """Everything that the server may know before a round's training; read-only.

    Attributes:
        round: Index of this communication round, from 0.
        rounds: Communication rounds of the whole run.
        clients_per_round: Most paths that the plan may have; in an asynchronous run at most the free slots.
        available: Clients available now and not in flight, bool ``[N]``; at least one is, unless the selector
            declares ``plans_empty_rounds``.
        sizes: Training examples per client, int64 ``[N]``.
        num_classes: C.
        params: The global model; never written to.
        rng: This round's generator for the selector's draws.
        ledger: Cost of the round so far.
        needs: What the selector declared.
        stopwatch: The federation's simulated clock in this round; None without devices.
        trained: Distinct examples in a local training of each client, int64 ``[N]``; None means ``sizes``.
        answers: Answers the questions below: it has ``available_at(hop)``, and a method for each need with
            the need's name in lower case.
        running: Clients in flight and the rounds in which they started, in the order of their starts; empty
            in a synchronous run.
        clock: Seconds of the run before this round: simulated ones, 0 without devices; real ones over
            Flower.
        asked_total: Gets an entry when ``rounds`` is read. Such a run cannot get more rounds later.
    """

    round: int
    rounds: int
    clients_per_round: int
    available: Tensor
    sizes: Tensor
    num_classes: int
    params: Params
    rng: np.random.Generator
    ledger: Ledger
    needs: Need
    answers: Any
    stopwatch: Any = None
    trained: Tensor | None = None
    running: Mapping[int, int] = field(default_factory=dict)
    clock: float = 0.0
    asked_total: set[str] = field(default_factory=set, repr=False, compare=False)

    def __getattribute__(self, name: str) -> Any:
        if name == "rounds":
            super().__getattribute__("asked_total").add(name)
        return super().__getattribute__(name)

    @property
    def examples(self) -> Tensor:
        """Distinct examples in a local training of each client, int64 ``[N]``, at most ``sizes``."""
        return self.sizes if self.trained is None else self.trained

    @property
    def pool(self) -> np.ndarray:
        """Ids of the available clients, int64, ascending."""
        return np.flatnonzero(self.available.numpy())

    @property
    def pool_sizes(self) -> np.ndarray:
        """Training examples of each available client, int64 ``[pool]``."""
        sizes: np.ndarray = self.sizes.numpy()[self.pool]
        return sizes

    @property
    def labels(self) -> Tensor:
        """Label counts of every client, int64 ``[N, C]`` (``Need.LABELS``)."""
        labels: Tensor = self._ask(Need.LABELS)
        return labels

    @property
    def true_models(self) -> Tensor:
        """The model that labelled each client's examples, float64 ``[N, d]`` (``Need.TRUE_MODELS``)."""
        models: Tensor = self._ask(Need.TRUE_MODELS)
        return models

    def losses(self, clients: Sequence[int], at: Params | None = None) -> Tensor:
        """Ask clients for their mean training loss (``Need.LOSSES``).

        Args:
            clients: Ids of n clients; those unavailable answer NaN.
            at: Model to evaluate; None means the global model.

        Returns:
            Float64 ``[n]``; NaN for a client that is unavailable or has no examples.
        """
        losses: Tensor = self._ask(Need.LOSSES, self._clients(clients), at)
        return losses

    def shadow(self, clients: Sequence[int]) -> Params:
        """Train clients from the global model without aggregating (``Need.SHADOW``).

        Args:
            clients: Ids of n available clients.

        Returns:
            Stack of the end models, each tensor ``[n, ...]``.

        Raises:
            UserError: If one of them is not available.
        """
        ends: Params = self._ask(Need.SHADOW, self._clients(clients))
        return ends

    def server_loss(self, at: Params) -> float:
        """Evaluate a model on the server's holdout, never the test set (``Need.SERVER_LOSS``)."""
        loss: float = self._ask(Need.SERVER_LOSS, at)
        return loss

    def server_losses(self, models: Params) -> Tensor:
        """Evaluate several models on the server's holdout, together where possible (``Need.SERVER_LOSS``).

        Args:
            models: Stack of n models, each tensor ``[n, ...]``.

        Returns:
            Float64 ``[n]``.
        """
        require(self.needs, Need.SERVER_LOSS)
        if hasattr(self.answers, "server_losses"):
            losses: Tensor = self.answers.server_losses(models)
            return losses
        alone = [self.answers.server_loss(row(models, index)) for index in range(height(models))]
        return torch.tensor(alone, dtype=torch.float64)

    def gradients(self, clients: Sequence[int]) -> Params:
        """Ask clients for the gradient of their mean training loss at the global model (``Need.GRADIENTS``).

        Args:
            clients: Ids of n available clients.

        Returns:
            Stack over the trainable parameters, each tensor ``[n, ...]``; NaN for a client without examples.

        Raises:
            UserError: If one of them is not available.
        """
        gradients: Params = self._ask(Need.GRADIENTS, self._clients(clients))
        return gradients

    def noise_outputs(self, models: Params) -> Tensor:
        """Run models on one batch of Gaussian noise, the same in the whole run (``Need.NOISE_OUTPUTS``).

        Args:
            models: Stack of n models, each tensor ``[n, ...]``.

        Returns:
            Each model's output averaged over noise with the mean and covariance of the server's holdout,
            float64 ``[n, C]``.
        """
        outputs: Tensor = self._ask(Need.NOISE_OUTPUTS, models)
        return outputs

    def available_at(self, hop: int) -> Tensor:
        """Return which clients are available ``hop`` communication rounds from now, bool ``[N]``.

        Only the choice for that hop may depend on it.
        """
        available: Tensor = self.answers.available_at(hop)
        return available

    def durations(self, clients: Sequence[int]) -> Tensor:
        """Return how long a local training takes by the device profiles (``Need.DURATIONS``).

        Args:
            clients: Ids of n clients, available or not.

        Returns:
            Simulated seconds of download, training and upload, float64 ``[n]``, without jitter.
        """
        parts = self.parts(clients)
        return parts[:, 0] + parts[:, 1] + parts[:, 2]

    def parts(self, clients: Sequence[int]) -> Tensor:
        """Return the parts of :meth:`durations` (``Need.DURATIONS``).

        Args:
            clients: Ids of n clients, available or not.

        Returns:
            Simulated seconds of delay and download, of computing, and of upload, float64 ``[n, 3]``.
        """
        parts: Tensor = self._ask(Need.DURATIONS, self._clients(clients))
        return parts

    def charge(self, cost: Cost, clients: Sequence[int]) -> None:
        """Charge costs that the selector causes in addition to its questions.

        Args:
            cost: The total.
            clients: Clients that send and receive equal shares of its bytes.
        """
        self.ledger.charge(cost)
        if self.stopwatch is not None:
            self.stopwatch.traffic(self._clients(clients), cost)

    def one_request(self) -> AbstractContextManager[None]:
        """Count the questions in a ``with`` block as one, which clients answer at the same time.

        Use it for a question that is split into parts to bound memory.
        """
        found: AbstractContextManager[None] = (
            nullcontext() if self.stopwatch is None else self.stopwatch.one_request()
        )
        return found

    def _clients(self, asked: Sequence[int]) -> list[int]:
        found, most = list(ids(asked)), len(self.sizes)
        stranger = next((client for client in found if not 0 <= client < most), None)
        if stranger is not None:
            raise UserError(f"the selector asked client {stranger}, and the clients are 0 to {most - 1}.")
        return found

    def _ask(self, need: Need, *question: Any) -> Any:
        require(self.needs, need)
        return getattr(self.answers, str(need.name).lower())(*question)


def require(declared: Need, need: Need) -> None:
    """Refuse what a selector did not declare.

    Raises:
        UndeclaredNeedError: Naming the need.
    """
    if need not in declared:
        raise UndeclaredNeedError(
            f"the selector asked for {need.name} without declaring it; add Need.{need.name} to its `needs`."
        )
