"""Losses, accuracies and outputs of models: on held-out sets, the clients' data, and noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from flsel.data.population import Examples, FederatedData
from flsel.data.trees import Tree, call, described, mapped, tensors
from flsel.engine.scores import Scores
from flsel.errors import UserError
from flsel.local.judge import check_evaluation, check_losses
from flsel.local.measure import pooled
from flsel.local.program import Program
from flsel.local.tasks import writes_to_inputs
from flsel.local.torch_internals import writes_to
from flsel.local.visit import Visit, from_one
from flsel.metrics import Better
from flsel.params import Params, called, height, row
from flsel.rng import generator

_STACKED = 4096  # Examples times models in a forward pass of several models.
_NOISE = 128  # Examples in the batch of noise, as in FedGS's reference code.


Logged = tuple[dict[str, float], dict[str, Better | None]]
"""What a task's own validation logs, by name, and which way of each is better; None where it does not say."""


@final
class Evaluator:
    """Evaluate models in the clients' program, in eval mode.

    Attributes:
        directions: Which way further metrics are better, by name, as far as they were measured.

    Args:
        program: The client's side of the run.
        server: The server's holdout, or None.
        scores: Further metrics of held-out sets, or None.
        logged: Runs the task's own validation of a model on a set, which may be test data, and returns what
            it logs; None where the task has none.
    """

    def __init__(
        self,
        program: Program,
        server: Examples | None = None,
        scores: Scores | None = None,
        logged: Callable[[Params, Examples, bool], Logged] | None = None,
    ) -> None:
        self.directions: dict[str, Better | None] = {} if scores is None else dict(scores.directions)
        self._server = server
        self._program = program
        self._scores = scores
        self._logged = logged

    def score(
        self, params: Params, examples: Examples, round: int = 0, *, test: bool = False
    ) -> dict[str, float]:
        """Measure a model on a held-out set: ``loss``, ``accuracy`` in [0, 1], and further metrics by name.

        There is no accuracy where outputs are no logits of classes, and no loss where none can be asked.

        What the task's own validation logs takes the place of a metric of the same name.

        Args:
            params: The model.
            examples: The set.
            round: Communication rounds that made the model.
            test: The set is test data.
        """
        loss, accuracy = self.measure(params, examples, round, scored=True)
        more = self._further(params, examples, test=test)
        known = {"loss": loss} if self._program.measurable else {}
        return known | ({"accuracy": accuracy} if self._program.classifies else {}) | more

    def _further(self, params: Params, examples: Examples, *, test: bool) -> dict[str, float]:
        """Return the further metrics of a set that :meth:`_measure` showed them, and what the task logs."""
        more = {} if self._scores is None else self._scores.values()
        if self._logged is not None:
            values, ways = self._logged(params, examples, test)
            more |= values
            self.directions |= ways
        return more

    def measure(
        self, params: Params, examples: Examples, round: int = 0, *, scored: bool = False
    ) -> tuple[float, float]:
        """Measure a model on a held-out set.

        Args:
            params: The model.
            examples: The set.
            round: Communication rounds that made the model.
            scored: Show the outputs to the further metrics, too.

        Returns:
            Mean loss and accuracy in [0, 1].
        """

        def plain(params: Params) -> float:
            return self._measure(params, examples, plain=True)[0]

        means = self._measure(params, examples, scored=scored)
        if self._program.measurable and self._program.agreement.due("evaluation"):
            visit = Visit(params, 0, round, self._program)
            if check_evaluation(visit, means[0], plain):
                means = self._measure(params, examples, scored=scored)
        return means

    def server_loss(self, params: Params) -> float:
        """Return a model's mean loss on the server's holdout.

        Raises:
            UserError: If the run has no server holdout.
        """
        if self._server is None:
            raise UserError("the selector asks for the server's loss: set data.server to a share above 0.")
        self._program.require_losses()
        return self.measure(params, self._server)[0]

    def server_losses(self, models: Params) -> Tensor:
        """Return the mean losses of a stack of models on the server's holdout, float64 ``[n]``.

        They are computed together, if the first and the last then have the loss that they have alone.

        Raises:
            UserError: If the run has no server holdout.
        """
        last = height(models) - 1
        ends = [self.server_loss(row(models, index)) for index in (0, last)]
        if last > 1 and self._program.by_logits:
            with suppress(Exception):  # whatever a user's model cannot do under vmap
                losses = self._together(models)
                if torch.allclose(losses[[0, -1]], torch.tensor(ends).double(), rtol=1e-4, equal_nan=True):
                    return losses
        between = [self.server_loss(row(models, index)) for index in range(1, last)]
        return torch.tensor([ends[0], *between, ends[1]][: last + 1], dtype=torch.float64)

    def _together(self, models: Params) -> Tensor:
        """Return the losses of a stack of models on the server's holdout by vmap."""
        assert self._server is not None
        program, held = self._program, self._server
        device, size = program.device, min(program.at_once, len(held))

        def loss(model: Params, inputs: Tree, labels: Tensor) -> Tensor:
            logits = call(partial(called, program.model, model), inputs, program.model)
            return nn.functional.cross_entropy(logits, labels, reduction="sum")

        many = torch.func.vmap(loss, in_dims=(0, None, None), chunk_size=max(1, _STACKED // size))
        total = torch.zeros(height(models), dtype=torch.float64, device=device)
        with program.measuring():
            for first in range(0, len(held), size):
                total += many(models, *self._part(held, first)).detach().double()
        return total.cpu() / len(held)

    def on_clients(self, params: Params, round: int = 0) -> tuple[Tensor, Tensor]:
        """Measure a model on every client's training data.

        Args:
            params: The model.
            round: Communication rounds that made it.

        Returns:
            Mean losses and accuracies, each float64 ``[N]``; NaN for a client without examples.
        """
        data = self._program.population
        measured = self._each(params, data.examples, data.shards)
        visits = from_one(params, range(len(data)), round, self._program)
        if self._pools and check_losses(visits, measured[0]):
            return self._each(params, data.examples, data.shards)
        return measured

    def on_client_tests(self, params: Params, data: FederatedData) -> tuple[Tensor, Tensor]:
        """Measure a model on every client's own test data: losses and accuracies, as :meth:`on_clients`."""
        return self._each(params, _own_tests(data), data.client_tests or ())

    def scores_of_clients(self, params: Params, data: FederatedData, name: str) -> Tensor:
        """Measure each client's model on its own test data by a further metric.

        Args:
            params: The model.
            data: The clients' data.
            name: Name of the metric.

        Returns:
            The metric of each client, float64 ``[N]``; NaN where there are no test data.
        """
        values = torch.full((len(data.population),), torch.nan, dtype=torch.float64)
        for client, part in enumerate(data.client_tests or ()):
            if len(part):
                model, examples = self._program.of_client(params, client), _own_tests(data).take(part)
                if self._scores is not None:
                    self._measure(model, examples, scored=True)
                values[client] = self._further(model, examples, test=True).get(name, torch.nan)
        return values

    @property
    def _pools(self) -> bool:
        """Whether a forward pass may have examples of several clients."""
        alike = self._program.by_logits and self._program.personal is None
        return alike and self._program.agreement.disagreement("losses") is None

    def _each(self, params: Params, examples: Examples, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Measure each client's model on its part of a set: losses and accuracies, each float64 ``[N]``."""
        if self._pools:
            return pooled(Visit(params, 0, 0, self._program), examples, parts)
        self._program.require_losses()
        plain = self._program.agreement.disagreement("losses") is not None
        own, nothing = self._program.of_client, (float("nan"), float("nan"))
        rows = [
            self._measure(own(params, client), examples.take(part), plain=plain) if len(part) else nothing
            for client, part in enumerate(parts)
        ]
        table = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def noise_outputs(self, models: Params) -> Tensor:
        """Return the mean logits of a stack of models on one batch of Gaussian noise, float64 ``[n, C]``.

        The noise has the mean and covariance of the server's holdout as the models see it, and is the same
        at every call.

        Raises:
            UserError: If the run has no server holdout, or its inputs are not numbers to add noise to.
        """
        noise = self._noise()
        task = self._program.task
        rows = []
        for index in range(height(models)):
            with self._program.measuring(row(models, index)):
                rows.append(task(noise).detach().double().mean(dim=0).cpu())
        return torch.stack(rows)

    def _noise(self) -> Tensor:
        if self._server is None:
            raise UserError("the selector asks for outputs on noise: set data.server to a share above 0.")
        x = self._program.ready(self._server.read(slice(None)))[0]
        if not isinstance(x, Tensor):
            raise UserError(
                f"the selector asks for outputs on noise: inputs must be one tensor, got {described(x)}."
            )
        if not x.is_floating_point():
            raise UserError(f"the selector asks for outputs on noise: inputs must be real, got {x.dtype}.")
        centre = x.mean(dim=0, keepdim=True)
        draws = generator(self._program.seed, "noise").standard_normal((_NOISE, len(x)))
        # Random combinations of centred examples have their covariance, which is never formed.
        mix = torch.from_numpy(draws / max(len(x) - 1, 1) ** 0.5).to(x)
        noise: Tensor = centre + torch.tensordot(mix, x - centre, dims=1)
        return noise

    def _part(self, examples: Examples, first: int) -> tuple[Tree, Tree]:
        """Return the inputs and targets of a forward pass, on the device, as the model takes them."""
        return self._program.ready(examples.read(slice(first, first + self._program.at_once)))

    def _measure(
        self, params: Params, examples: Examples, *, plain: bool = False, scored: bool = False
    ) -> tuple[float, float]:
        """Measure a model on raw examples; ``plain``: images have their channels first.

        Returns:
            Mean loss and accuracy; NaN for what the task does not have.
        """
        program, device = self._program, self._program.device
        scores = self._scores if scored else None
        if scores is not None:
            scores.reset()
        # In float64: a share of 10,000 examples is then exact to the last digit that is printed.
        total = torch.zeros((), dtype=torch.float64, device=device)
        hits = torch.zeros((), dtype=torch.int64, device=device)
        written = [writes_to(part, unknown=0) for part in tensors(examples.x)]
        with program.measuring(params, plain=plain):
            for first in range(0, len(examples), program.at_once):
                inputs, targets = self._part(examples, first)
                count = min(program.at_once, len(examples) - first)  # a collate_fn may join examples in a row
                outputs: Any = program.outputs(inputs) if program.classifies or scores is not None else None
                if program.classifies:
                    hits += (program.predicted(outputs) == targets).sum()
                if scores is not None:
                    scores.update(outputs, targets)
                if program.by_logits:
                    loss = torch.nn.functional.cross_entropy(outputs, targets)
                elif program.measurable:
                    # A step may write to its batch, which clients get a copy of, too.
                    loss = program.measured_loss(mapped(Tensor.clone, (inputs, targets)), first)
                else:
                    continue
                total += loss.detach().double() * count
        if [writes_to(part, unknown=0) for part in tensors(examples.x)] != written:
            raise UserError(writes_to_inputs(program.model))
        # Read once: on a GPU every look at a number waits for all that was asked before.
        loss, right = torch.stack([total, hits.double()]).tolist()
        nan = float("nan")
        return (loss / len(examples) if program.measurable else nan), (
            right / len(examples) if program.classifies else nan
        )


def _own_tests(data: FederatedData) -> Examples:
    """Return the set in which the clients' own test data lie."""
    return data.test if data.own_test is None else data.own_test
