"""Metrics of torchmetrics that a run measures beside loss and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flsel.arguments import arguments
from flsel.arguments.later import Metric
from flsel.arguments.spec import Spec
from flsel.config.groups import EvaluationConfig
from flsel.errors import UserError, users_code
from flsel.metrics import SCORE, Better


class Scores:
    """The metrics of a run, computed over one set at a time.

    Args:
        given: Their classes, with arguments or without.
        num_classes: C, for those that ask.
        device: Where logits are.

    Raises:
        UserError: If one cannot be built.
    """

    def __init__(self, given: Sequence[Any], num_classes: int, device: torch.device) -> None:
        self._metrics: dict[str, Any] = {}
        self.directions = directions(given)
        for at, each in enumerate(given):
            spec = Spec.of(each, f"evaluation.metrics[{at}]", Metric)
            asks = "num_classes" in arguments(spec.made) and spec.init_args.get("num_classes") is None
            with users_code(f"{spec.key} cannot be built"):
                made = spec.build(**{"num_classes": num_classes} if asks else {})
            self._metrics[_new_name(name_of(spec), self._metrics)] = made.to(device)

    def reset(self) -> None:
        """Begin with another set."""
        for metric in self._metrics.values():
            metric.reset()

    def update(self, outputs: Any, targets: Any) -> None:
        """Take a batch: logits ``[n, C]`` and labels ``[n]``, or other outputs and targets.

        Targets with as many numbers as the outputs take their shape.
        """
        if isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.numel() == targets.numel():
            targets = targets.view_as(outputs)
        for name, metric in self._metrics.items():
            with users_code(f"evaluation.metrics {name} failed"):
                metric.update(outputs.detach(), targets)

    def values(self) -> dict[str, float]:
        """Return the values of the set by name.

        Raises:
            UserError: If one is no number.
        """
        numbers = {}
        for name, metric in self._metrics.items():
            with users_code(f"evaluation.metrics {name} failed"):
                value = metric.compute()
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise UserError(
                    f"evaluation.metrics {name} must give one number, such as with average: macro, got "
                    f"{tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}."
                )
            numbers[name] = float(value)
        return numbers


def declared_directions(settings: EvaluationConfig) -> Mapping[str, Better | None]:
    """Return by name of a metric which way is better, as the settings and torchmetrics tell."""
    ways = dict(directions(settings.metrics))
    if settings.better is not None:
        name = (settings.score or SCORE.column).partition("/")[2]
        ways[name] = "max" if settings.better == "higher" else "min"
    return ways


def directions(given: Sequence[Any]) -> Mapping[str, Better | None]:
    """Return by name of a metric which way is better, as torchmetrics tells."""
    ways: dict[str, Better | None] = {}
    for at, each in enumerate(given):
        spec = Spec.of(each, f"evaluation.metrics[{at}]")
        higher = getattr(spec.made, "higher_is_better", None)
        ways[_new_name(name_of(spec), ways)] = None if higher is None else "max" if higher else "min"
    return ways


def name_of(spec: Spec) -> str:
    """Return what a metric's columns are called, after their set."""
    return spec.class_path.rpartition(".")[2]


def _new_name(name: str, known: Mapping[str, Any]) -> str:
    """Number a metric whose class is there already."""
    count = sum(other.partition("_")[0] == name or other == name for other in known)
    return f"{name}_{count + 1}" if count else name
