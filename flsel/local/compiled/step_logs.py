"""What a LightningModule logs in compiled steps, put together for each client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flsel.local.compiled.refusals import Refused


class LogKind(NamedTuple):
    """How a step logs a value.

    Attributes:
        name: What it is called.
        on_step: Whether the value of the last step is kept.
        on_epoch: Whether the mean over the last pass is kept.
        size: Weight of a batch in that mean; None takes its number of examples.
    """

    name: str
    on_step: bool
    on_epoch: bool
    size: int | None


class StepLog:
    """Hears what a step logs while it is recorded.

    Attributes:
        kinds: How each value is logged.
        values: The values, scalars.
    """

    def __init__(self) -> None:
        self.kinds: list[LogKind] = []
        self.values: list[Tensor] = []

    def take(
        self,
        model: Any,
        name: str,
        value: Any,
        *given: Any,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        """Hear a value, with the arguments of ``LightningModule.log``.

        Raises:
            Refused: If it is no number, or no mean is taken of it.
        """
        number = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
        if not number or given or (on_epoch and reduce_fx not in ("mean", torch.mean)):
            raise Refused(f"it logs {name} otherwise than as a number and its mean (log a tensor)")
        self.kinds.append(LogKind(name, on_step is not False, bool(on_epoch), batch_size))
        self.values.append(torch.as_tensor(value).detach().reshape(()))


class ClientLogs:
    """Puts together what the clients of a stack log, as Lightning's Trainer does.

    Args:
        steps: Local steps of each client.
        passes: Batches of a pass over each client's examples.
    """

    def __init__(self, steps: Sequence[int], passes: Sequence[int]) -> None:
        self._last = np.array(steps) - 1
        self._first = self._last // np.array(passes) * np.array(passes)
        self._kinds: list[LogKind] = []
        self._steps: dict[str, np.ndarray] = {}
        self._sums: dict[str, np.ndarray] = {}
        self._weights: dict[str, np.ndarray] = {}

    def ear(self, step: int, size: int, kinds: list[LogKind]) -> Callable[[Sequence[Tensor]], None] | None:
        """Return what hears a step's values; None if no client needs them.

        Args:
            step: Number of the step.
            size: Examples of its batches.
            kinds: How each value is logged.
        """
        first = self._first if any(kind.on_epoch for kind in kinds) else self._last
        inside = (first <= step) & (step <= self._last)

        def hear(values: Sequence[Tensor]) -> None:
            self._kinds = kinds
            for kind, value in zip(kinds, values, strict=True):
                numbers = np.full(len(inside), np.nan)
                rows = value.detach().double().reshape(-1).numpy()[: len(inside)]
                numbers[: len(rows)] = rows
                self._take(kind, numbers, step, inside, kind.size or size)

        return hear if kinds and inside.any() else None

    def _take(self, kind: LogKind, numbers: np.ndarray, step: int, inside: np.ndarray, weight: int) -> None:
        blank = np.full(len(inside), np.nan)
        before = self._steps.get(kind.name, blank)
        self._steps[kind.name] = np.where(self._last == step, numbers, before)
        nothing = np.zeros(len(inside))
        for table, more in ((self._sums, numbers * weight), (self._weights, nothing + weight)):
            table[kind.name] = table.get(kind.name, nothing) + np.where(inside, more, 0.0)

    def values(self, place: int) -> dict[str, float]:
        """Return what a client has logged, by name."""
        logged = {}
        for name, on_step, on_epoch, _ in self._kinds:
            step = float(self._steps[name][place])
            mean = float(self._sums[name][place] / self._weights[name][place])
            logged[name] = mean if on_epoch else step
            if on_step and on_epoch:
                logged |= {f"{name}_step": step, f"{name}_epoch": mean}
        return logged
