"""A selector under the stopwatch: its own time, without what the federation takes to answer it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from settings import wait
from torch import Tensor

from flsel.selector import Need, Plan, Selector, Updates, View

T = TypeVar("T")


class Timed(Selector):
    """Delegate to a selector and add up the seconds of a round.

    Args:
        selector: Whose time is taken.
        clock: Tells the seconds.
    """

    def __init__(self, selector: Selector, clock: Callable[[], float] = time.perf_counter) -> None:
        self.selector = selector
        self.clock = clock
        self.own = 0.0
        self.answers = 0.0

    @property
    def needs(self) -> Need:  # type: ignore[override]
        return self.selector.needs

    def lap(self) -> tuple[float, float]:
        """Return the selector's own seconds and those of the answers since the last call."""
        seconds = self.own, self.answers
        self.own = self.answers = 0.0
        return seconds

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        self.selector.reset(sizes, num_classes)

    def select(self, view: View) -> Plan:
        return self._spend(view, lambda seen: self.selector.select(seen))

    def weigh(self, view: View, updates: Updates) -> Tensor:
        return self._spend(view, lambda seen: self.selector.weigh(seen, updates))

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        self._spend(view, lambda seen: self.selector.observe(seen, updates, weights))

    def _spend(self, view: View, work: Callable[[View], T]) -> T:
        device = next(iter(view.params.values())).device
        wait(device)
        began, answered = self.clock(), self.answers
        result = work(replace(view, answers=_Answers(view.answers, self, device)))
        wait(device)
        self.own += self.clock() - began - (self.answers - answered)
        return result


class _Answers:
    """The federation's answers, timed."""

    def __init__(self, answers: Any, timed: Timed, device: torch.device) -> None:
        self._answers = answers
        self._timed = timed
        self._device = device

    def __getattr__(self, name: str) -> Any:
        answer = getattr(self._answers, name)

        def timed(*arguments: Any) -> Any:
            wait(self._device)
            began = self._timed.clock()
            result = answer(*arguments)
            wait(self._device)
            self._timed.answers += self._timed.clock() - began
            return result

        return timed
