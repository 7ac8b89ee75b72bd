"""Federations whose clients answer and train by formula: what a selector sees of one, at next to no cost."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from flsel.engine.closing import Closing, Returned
from flsel.engine.opening import Moment, make_view
from flsel.engine.respondents import Respondents
from flsel.params import Params, whole
from flsel.rng import generator
from flsel.selector import Need, Plan, Updates, View

_HEAD = ("head.weight", "head.bias")


class FormulaFederation(Respondents):
    """A federation without data or training, run round by round; all clients are always available.

    The formulas of a federation say how training moves the model and what losses are; all other answers
    follow from these.

    Args:
        counts: Label counts of every client, int64 ``[N, C]``.
        params: Global model, with an output layer ``head.weight`` and ``head.bias``.
        clients_per_round: Most paths per round.
        rounds: Communication rounds of the run.
        seed: Seed of the selector's draws.
    """

    def __init__(
        self, counts: Tensor, params: Params, *, clients_per_round: int, rounds: int, seed: int = 0
    ) -> None:
        self.counts = counts
        self.sizes, self.num_classes = counts.sum(1), counts.shape[1]
        self.params = params
        self.clients_per_round = clients_per_round
        self.rounds = rounds
        self.seed = seed
        self.round = 0
        self.closing = Closing(_HEAD)
        self._seconds = (1 + torch.arange(len(self.sizes)) % 5) * (1.0 + self.sizes.double() / 50)

    @abstractmethod
    def moved(self, paths: Sequence[Sequence[int]], names: Iterable[str]) -> Params:
        """Return the updates of some tensors after visits along paths from the global model, ``[K, ...]``."""

    @abstractmethod
    def loss(self, clients: Sequence[int], at: Params) -> Tensor:
        """Return the clients' losses of a model, float64 ``[n]``."""

    def available(self, round: int) -> Tensor:
        """Tell which clients are available in a round, bool ``[N]``."""
        return torch.ones(len(self.sizes), dtype=torch.bool)

    def view(self, needs: Need) -> View:
        """Return the view of the coming round; the tensors of ``params`` are live."""
        at = Moment(
            round=self.round,
            rounds=self.rounds,
            clients_per_round=self.clients_per_round,
            available=self.available,
            rng=generator(self.seed, "select", self.round),
        )
        return make_view(self, self.params, needs, at)

    def updates(self, plan: Plan, needs: Need) -> Updates:
        """Return what a plan's paths bring back, as far as it is declared."""
        first = [visits[0] for visits in plan.visits]
        own_loss = self.loss(first, self.params).masked_fill(self.sizes[first] == 0, math.nan)
        seconds, sizes = self._seconds.tolist(), self.sizes.tolist()
        durations = [sum(seconds[client] for client in visits) for visits in plan.visits]
        examples = whole([sum(sizes[client] for client in visits) for visits in plan.visits])
        reports = {
            Need.OWN_LOSS: own_loss,
            Need.SQUARED_LOSS: 1.1 * own_loss.square(),
            Need.DURATIONS: torch.tensor(durations, dtype=torch.float64),
        }
        names = self.params if Need.DELTAS in needs else _HEAD if Need.HEAD in needs else ()
        deltas = self.moved(plan.visits, names)
        returned = Returned(plan, {"sizes": examples, "steps": 1 + examples // 10}, reports)
        return self.closing.describe(deltas, returned, needs)

    def labels(self) -> Tensor:
        """Return the label counts."""
        return self.counts

    def true_models(self) -> Tensor:
        """Return one number a client as its true model."""
        return torch.arange(1.0, len(self.sizes) + 1, dtype=torch.float64)[:, None]

    def losses(self, clients: list[int], at: Params, round: int) -> Tensor:
        """Return the clients' losses; NaN for those without examples."""
        return self.loss(clients, at).masked_fill(self.sizes[clients] == 0, math.nan)

    def durations(self, clients: list[int]) -> Tensor:
        """Return the parts of :meth:`seconds`: a tenth each way on the link, the rest computing."""
        return self.seconds(clients)[:, None] * torch.tensor([0.1, 0.8, 0.1], dtype=torch.float64)

    def seconds(self, clients: Sequence[int]) -> Tensor:
        """Return what training takes the clients, float64 ``[n]``: some are slow, and examples take time."""
        return self._seconds[list(clients)]

    def shadow(self, clients: list[int], params: Params, round: int) -> Params:
        """Return the end models of the clients' training."""
        moved = self.moved([(client,) for client in clients], params)
        return {name: params[name] + delta for name, delta in moved.items()}

    def gradients(self, clients: list[int], params: Params, round: int) -> Params:
        """Return minus what training does; NaN for a client without examples."""
        moved = self.moved([(client,) for client in clients], params)
        empty = self.sizes[clients] == 0
        return {
            name: (-delta).masked_fill(empty.view(-1, *[1] * (delta.ndim - 1)), math.nan)
            for name, delta in moved.items()
        }

    def noise_outputs(self, models: Params) -> Tensor:
        """Return the outputs of the models' last layer on a vector of ones, float64 ``[n, C]``."""
        return (models["head.weight"].sum(2) + models["head.bias"]).double()
