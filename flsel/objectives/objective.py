"""The contract of a local objective, and FedAvg, which adds nothing to a client's loss."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from torch import Tensor

from flsel.arguments import Checked
from flsel.errors import UserError
from flsel.metrics import NOTHING, Cost
from flsel.params import Params
from flsel.selector.state import Stateful


@dataclass(frozen=True)
class LocalUpdates:
    """The local training of a round's clients, each client once, without non-finite updates.

    Attributes:
        clients: Ids of K distinct clients, int64 ``[K]``.
        starts: The global model that all of them started from.
        deltas: End minus start, each tensor ``[K, ...]``.
        steps: Local optimizer steps taken, int64 ``[K]``.
        reach: Returns, by name of trainable parameter, how far a constant gradient of one would have moved it
            in these steps, float64 ``[K]``: learning rate times steps for plain SGD. Raises a ``UserError``
            if the local optimizer is not ``torch.optim.SGD``.
        labels: Returns how often each client trained on an example of each label, int64 ``[K, C]``.
        round: Communication round.
        rng: The server's generator for this round.
    """

    clients: Tensor
    starts: Params
    deltas: Params
    steps: Tensor
    reach: Callable[[], Params]
    labels: Callable[[], Tensor]
    round: int
    rng: np.random.Generator


class Objective(Checked, Stateful, ABC):
    """The terms that a client minimises in addition to its own loss, and the state kept for each client.

    :meth:`correct`, :meth:`models` and :meth:`contrast` serve one client (``clients`` is an int, no leading
    dimension) and a stack of K (``clients`` is int64 ``[K]``, every tensor ``[K, ...]``) with the same code.
    State is in attributes whose names end in ``_``, as in a selector. Checkpoints keep it. A hook that is not
    overridden costs nothing. An objective that overrides :meth:`observe` refuses plans of several hops, in
    which clients do not start from the global model.
    """

    needs_sgd: ClassVar[bool] = False
    """Whether the local optimizer must be ``torch.optim.SGD``."""

    messages: ClassVar[int] = 1
    """Model-sized messages per training, in each direction: the model, and others of the method."""

    frozen_models: ClassVar[int] = 0
    """Number of :meth:`models` that each local step runs forward; simulated devices need time for them."""

    averages: ClassVar[bool] = False
    """Whether :meth:`contrast` is a mean over the examples of a batch."""

    head: tuple[str, str | None] | None = None
    """Names of the output layer's weight ``[C, L]`` and bias ``[C]`` in a model. If :meth:`generated` is
    defined, they are set before :meth:`reset`, and the model must end in a linear layer."""

    def cost(self, params: Params) -> Cost:
        """Return what a local training sends besides models, such as label counts.

        Args:
            params: The global model.
        """
        return NOTHING

    def reset(self, params: Params, clients: int) -> None:
        """Allocate state for ``clients`` clients.

        Args:
            params: The trainable parameters, on the device that trains. Do not keep them.
            clients: N.
        """

    def correct(self, grads: Params, params: Params, starts: Params, clients: int | Tensor) -> None:
        """Add, in place, the objective's gradient to that of the client's loss, before a local step.

        Args:
            grads: Gradients of the client's loss.
            params: Current local parameters.
            starts: Parameters that the client started from this round.
            clients: Client id(s) the rows belong to.
        """

    @final
    def corrected(self, grads: Params, params: Params, starts: Params, clients: int | Tensor) -> Params:
        """Return the gradients after :meth:`correct`, also if it replaces them by new tensors.

        Raises:
            UserError: If :meth:`correct` returns something or removes gradients.
        """
        names, method = [*grads], f"{type(self).__name__}.correct"
        returned: object = self.correct(grads, params, starts, clients)  # type: ignore[func-returns-value]
        if returned is not None:
            raise UserError(f"{method} must change the gradients that it is given, and return nothing.")
        if [*grads] != names or not all(isinstance(grad, Tensor) for grad in grads.values()):
            raise UserError(f"{method} must leave a gradient of every parameter.")
        return grads

    def models(self, starts: Params, clients: int | Tensor) -> tuple[Params, ...]:
        """Return the frozen models that :meth:`contrast` compares with; called once per training.

        Args:
            starts: Start models of the clients.
            clients: Client id(s) the rows belong to.

        Returns:
            Each like ``starts``; an empty tuple means that this training has no contrast.
        """
        return ()

    def contrast(self, own: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Return the term that is added to the mean loss of a batch of one client, a scalar.

        If :meth:`models` returns models, this method must be defined. Otherwise training stops with an error.

        Args:
            own: Inputs of the output layer of the model in training, ``[B, L]``.
            others: The same for each of :meth:`models`, in eval mode and without gradients, ``[B, L]`` each.
        """
        return own.new_zeros(())

    def draw(self, steps: int, size: int, round: int, rng: np.random.Generator) -> Params:
        """Draw the inputs of :meth:`generated` for all local steps; called once per training.

        Args:
            steps: Local steps of the training (S).
            size: Largest number of examples in a batch.
            round: Communication round.
            rng: Generator of this training.

        Returns:
            Tables by name, each ``[S, ...]`` on the CPU, with the same names and shapes in every round;
            an empty dict means that nothing is generated.
        """
        return {}

    def generated(
        self,
        head: Callable[[Tensor], Tensor],
        own: Tensor,
        batch: tuple[Tensor, Tensor],
        drawn: Params,
    ) -> Tensor:
        """Return the term that is added to the mean loss of a batch of one client, a scalar.

        Args:
            head: The output layer of the model in training: features ``[n, L]`` to logits ``[n, C]``.
            own: Its inputs from the client's own batch, ``[B, L]``.
            batch: The batch's labels, int64 ``[B]``, and the weights of its examples in a mean, ``[B]``.
            drawn: This step's rows of what :meth:`draw` returned, floating-point numbers in the model's
                precision.
        """
        return own.new_zeros(())

    def observe(self, updates: LocalUpdates) -> None:
        """Learn from the participants' updates, before aggregation."""

    def reweigh(self, weights: Tensor, travel: Tensor) -> Tensor:
        """Return the weights that the updates are summed with, float64 ``[K]``, finite and >= 0.

        Args:
            weights: The selector's weights, float64 ``[K]``. Do not write to them.
            travel: How far a constant gradient moves each client's model, in first steps, float64 ``[K]``:
                the number of steps for plain SGD, more with momentum.
        """
        return weights

    def aggregate(self, delta: Params) -> Params:
        """Return the server's update, after :meth:`observe`.

        Args:
            delta: The weighted sum of the clients' updates. Do not write to it.
        """
        return delta


class FedAvg(Objective):
    """Federated averaging: the client's own loss, nothing else.

    Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017.
    """


def overrides(objective: Objective, hook: str) -> bool:
    """Return whether an objective overrides a hook."""
    return getattr(type(objective), hook) is not getattr(Objective, hook)
