"""What a client's local steps are made of: batches, learning rates over rounds, and how far they reach."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flsel.errors import UserError
from flsel.local.optimizers import groups_of
from flsel.local.tasks import LARGEST
from flsel.local.torch_internals import without_compiler
from flsel.params import Params
from flsel.rng import generator


@dataclass(frozen=True)
class BatchSpec:
    """How much a client trains in one visit.

    Attributes:
        size: Examples per batch (B), >= 1.
        epochs: Passes over the client's data (E), >= 1, or None if ``steps`` is given.
        steps: Optimizer steps, >= 1, or None if ``epochs`` is given.
        last: ``short``: the last batch of a pass has what is left; ``wrap``: batches are cut from an endless
            stream of reshuffled passes, so that all have ``size`` examples.

    Raises:
        UserError: If not exactly one of ``epochs`` and ``steps`` is given.
    """

    size: int
    epochs: int | None = None
    steps: int | None = None
    last: Literal["short", "wrap"] = "short"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise UserError(
                "exactly one of local.epochs and local.steps must be set, got "
                f"{self.epochs} and {self.steps}."
            )

    def num_steps(self, examples: int) -> int:
        """Count the optimizer steps of one visit to a client with ``examples`` examples (0 if none)."""
        if examples == 0:
            return 0
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        if self.last == "wrap":
            return -(-self.epochs * examples // self.size)
        return self.epochs * self.pass_length(examples)

    def pass_length(self, examples: int) -> int:
        """Count the batches of one pass over a client's examples."""
        return -(-examples // self.size)

    def num_examples(self, examples: int) -> int:
        """Count the examples in all batches of one visit; one that is in several of them counts as often."""
        return self.examples_in(self.num_steps(examples), examples)

    def examples_in(self, steps: int, examples: int) -> int:
        """Count the examples in the first batches of a visit to a client with ``examples`` examples."""
        if self.last == "wrap":
            return steps * self.size
        passes, rest = divmod(steps, max(self.pass_length(examples), 1))
        return passes * examples + min(rest * self.size, examples)

    def steps_within(self, share: float, steps: int, examples: int) -> int:
        """Count the first steps of a visit whose examples are at most a share of those of all its steps."""
        most = share * self.examples_in(steps, examples)
        return bisect_right(range(1, steps + 1), most, key=lambda step: self.examples_in(step, examples))


def batch_table(spec: BatchSpec, shard: np.ndarray, *, seed: int, round: int, client: int) -> np.ndarray:
    """Deal a client's examples to the batches of one visit.

    Args:
        spec: How much the client trains.
        shard: The client's examples, int64 ``[n_k]``.
        seed: The run's seed.
        round: Communication round.
        client: Client id.

    Returns:
        Entries of ``shard``, int64 ``[steps, size]``; -1 pads batches that are shorter, always at the end of
        the row. Each pass visits every example once.
    """
    steps, examples = spec.num_steps(len(shard)), len(shard)
    if steps == 0:
        return np.empty((0, spec.size), dtype=np.int64)
    rng = generator(seed, "batches", round, client)
    # Examples that one pass contributes to the rows of the table, padding included.
    width = examples if spec.last == "wrap" else -(-examples // spec.size) * spec.size
    passes = -(-steps * spec.size // width)
    table = np.empty((passes, width), dtype=np.int64)
    table[:, :examples], table[:, examples:] = shard, -1
    for row in table:
        rng.shuffle(row[:examples])
    return table.reshape(-1)[: steps * spec.size].reshape(steps, spec.size)


class _Still(SGD):
    """An optimizer with nothing to do; torch's own steps import its compiler first."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing."""


def lr_factors(schedule: Callable[[Optimizer], LRScheduler] | None, rounds: int) -> list[float]:
    """Tabulate a torch learning-rate schedule whose unit is the communication round.

    Args:
        schedule: Makes the scheduler of an optimizer; None keeps the rate constant.
        rounds: Number of communication rounds.

    Returns:
        The factor on the initial learning rate in rounds ``0..rounds-1``.

    Raises:
        UserError: If the scheduler fails before the last round or asks for more than the round.
    """
    if schedule is None:
        return [1.0] * rounds
    with without_compiler():
        optimizer = _Still([nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler = schedule(optimizer)
    factors = []
    try:
        for _ in range(rounds):
            factors.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
    except (ArithmeticError, TypeError, ValueError) as error:
        name = type(scheduler).__name__
        raise UserError(
            f"local.lr_schedule {name} must step through {rounds} rounds by itself, and failed in round "
            f"{len(factors) - 1}: {error}."
        ) from error
    beyond = next((round for round, factor in enumerate(factors) if not abs(factor) <= LARGEST), None)
    if beyond is not None:
        raise UserError(
            f"local.lr_schedule must keep the learning rate finite and below {LARGEST:.1e} times the first, "
            f"and in round {beyond} it is {factors[beyond]:g} times."
        )
    return factors


def scale_lr(groups: Iterable[dict[str, object]], base: Sequence[float], factor: float) -> None:
    """Set the learning rate of optimizer groups to ``factor`` times their base rates."""
    for group, lr in zip(groups, base, strict=True):
        group["lr"] = lr * factor


@final
class Reach:
    """Tell how far a constant gradient of one moves each trainable parameter in a visit.

    For plain SGD that is the learning rate times the number of steps; with momentum it is what the optimizer
    does, so that an update divided by its reach is a weighted mean of the gradients on the way.

    Args:
        optimizer: The local optimizer; its settings are copied.
        params: The parameters that it updates, by name.
        lr_factors: Factor on the local learning rate for every communication round.
    """

    def __init__(self, optimizer: Optimizer, params: Params, lr_factors: Sequence[float]) -> None:
        self._kind = type(optimizer).__name__
        self._linear = isinstance(optimizer, SGD)
        self._groups = groups_of(optimizer, params)
        sizes = [sum(p.numel() for p in group["params"]) for group in optimizer.param_groups]
        self._main = self._groups[sizes.index(max(sizes))][0]
        self._units = torch.zeros(1, dtype=torch.float64)
        self._lr_factors = lr_factors
        self._tables = [torch.zeros(1, dtype=torch.float64) for _ in self._groups]

    def check(self) -> None:
        """Refuse an optimizer whose moves are not in proportion to the gradient.

        Raises:
            UserError: If it is not SGD.
        """
        if not self._linear:
            raise UserError(f"local.optimizer must be torch.optim.SGD for this objective, got {self._kind}.")

    def __call__(self, round: int, steps: Tensor) -> Params:
        """Return the reach by name of parameter.

        Args:
            round: Communication round.
            steps: Local steps of K visits, int64 ``[K]``.

        Returns:
            Float64 ``[K]`` each, >= 0; zero without steps.

        Raises:
            UserError: If the optimizer is not SGD.
        """
        self.check()
        reach: Params = {}
        for index, (settings, names) in enumerate(self._groups):
            if len(self._tables[index]) <= int(steps.max()):
                self._tables[index] = _travel(settings, int(steps.max()))
            reach |= dict.fromkeys(names, self._tables[index][steps] * self._lr_factors[round])
        return reach

    def travel(self, steps: Tensor) -> Tensor:
        """Tell how far a constant gradient comes in units of a visit's first step.

        Args:
            steps: Local steps of K visits, int64 ``[K]``.

        Returns:
            Float64 ``[K]``, of the group with the most parameters; the number of steps for an optimizer other
            than SGD.
        """
        if not self._linear:
            return steps.double()
        if len(self._units) <= int(steps.max()):
            # At a learning rate of one: plain SGD's steps are then exact.
            self._units = _travel({**self._main, "lr": 1.0}, max(int(steps.max()), 1))
        return self._units[steps] / self._units[1]


def _travel(settings: dict[str, Any], steps: int) -> Tensor:
    """Return how far a scalar has come after 0..steps steps with a gradient of one, float64."""
    place = nn.Parameter(torch.zeros((), dtype=torch.float64))
    place.grad = torch.ones_like(place)
    plain = {"weight_decay": 0.0, "foreach": False, "fused": False}
    optimizer = SGD([{**settings, **plain, "params": [place]}], lr=0.0)
    come = [0.0]
    for _ in range(steps):
        optimizer.step()
        come.append(-float(place.detach()))
    return torch.tensor(come, dtype=torch.float64)
