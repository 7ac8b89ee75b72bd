"""Watches over a selector's methods while they are called: what they draw from, keep, and write to."""

from __future__ import annotations

import copy
import functools
import logging
import random
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from flsel.errors import UserError
from flsel.local.torch_internals import writes_to
from flsel.rng import global_states
from flsel.selector import Selector, View

_LOG = logging.getLogger("flsel")
# Names of torch's functions that draw.
_DRAWS = re.compile(
    "rand|normal|bernoulli|multinomial|poisson|binomial|uniform|exponential|geometric|cauchy|drop|seed"
)
_PYTHONS = random.random.__self__  # type: ignore[attr-defined]
_WATCHED_ROUNDS = 3  # Comparing the generators' states takes a fraction of a millisecond.


class OwnDraws:
    """Warns, in the first rounds, of a selector that draws from a global generator within the block.

    Only the selector's own code is judged. The block is paused while a question is answered, since clients
    and messages draw as they like. Other threads draw at any time: where there are some, a generator must
    have changed, and this thread must have called a function that draws from it. NumPy's calls cannot be
    seen, so for its generator the change alone counts.

    Args:
        name: The selector's name.
        round: Communication round.
    """

    def __init__(self, name: str, round: int) -> None:
        self._name, self._watches = name, round < _WATCHED_ROUNDS
        self._before: dict[str, object] = {}
        self._called: set[str] = set()

    def __enter__(self) -> OwnDraws:
        if self._watches:
            self._called, self._alone = set(), threading.active_count() == 1 or sys.getprofile() is not None
            self._before = global_states()
            if not self._alone:
                sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        if not self._watches:
            return
        if not self._alone:
            sys.setprofile(None)
            self._called.add("numpy.random")
        now = global_states()
        for owner in (owner for owner in self._before if now[owner] != self._before[owner]):
            if self._alone or owner in self._called:
                _warn_of_draws(self._name, owner)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Judge nothing within a block in this block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def _see(self, frame: object, event: str, called: object) -> None:
        """Note a call of a function written in C, as a profiler does."""
        if event == "c_call":
            if getattr(called, "__self__", None) is _PYTHONS:
                self._called.add("random")
            elif _DRAWS.search(getattr(called, "__name__", "")):
                self._called.add("torch")


def unwatched(view: View, watch: OwnDraws) -> View:
    """Return a view whose answers are given while a watch is paused."""
    found = copy.copy(view)  # dataclasses.replace would read ``rounds``, which the view notes.
    object.__setattr__(found, "answers", _Unwatched(view.answers, watch))
    return found


class _Unwatched:
    """A view's answers, which are given while a watch is paused.

    Args:
        answers: The answers.
        watch: Watches over the selector that asks.
    """

    def __init__(self, answers: object, watch: OwnDraws) -> None:
        self._answers, self._watch = answers, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._answers, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def paused(*question: Any) -> Any:
            with self._watch.paused():
                return found(*question)

        return paused


@contextmanager
def remembered(selector: Selector, round: int) -> Iterator[None]:
    """Warn, in the first rounds, of what a user's selector changes in itself and no checkpoint keeps."""
    watches = round < _WATCHED_ROUNDS and not type(selector).__module__.startswith("flsel.")
    before = _unkept(selector) if watches else {}
    yield
    now = _unkept(selector) if before else {}
    for attribute in (name for name in before if name in now and now[name] != before[name]):
        _warn_unkept(type(selector).__name__, attribute)


@contextmanager
def unwritten(method: str, shown: Iterable[Tensor]) -> Iterator[None]:
    """Refuse what a selector's method writes, within the block, into what it was shown.

    Args:
        method: The selector's name and its method's.
        shown: The tensors, which the round goes on with.

    Raises:
        UserError: If one of them was written to.
    """
    watched = list(shown)
    before = [_imprint(tensor) for tensor in watched]
    yield
    if before != [_imprint(tensor) for tensor in watched]:
        raise UserError(
            f"{method} writes to what the view or the updates show it; change a copy (tensor.clone())."
        )


@functools.cache  # once for a selector
def _warn_of_draws(name: str, owner: str) -> None:
    _LOG.warning(
        "%s draws from the global generator of %s, so its runs cannot be repeated or resumed exactly: "
        "draw from view.rng (flsel check)",
        name, owner,
    )  # fmt: skip


@functools.cache  # once for an attribute
def _warn_unkept(name: str, attribute: str) -> None:
    _LOG.warning(
        "%s changes its %s, which checkpoints do not keep, so a resumed run goes another way: call it %s_",
        name, attribute, attribute.rstrip("_"),
    )  # fmt: skip


def _unkept(selector: Selector) -> dict[str, str]:
    """Return what a selector has in attributes that are no state, as texts; large things are left out."""
    plain = (bool, int, float, str, list, tuple, set, dict)
    return {
        name: repr(value)
        for name, value in vars(selector).items()
        if not name.endswith("_")
        and type(value) in plain
        and (not hasattr(value, "__len__") or len(value) < 1000)
    }


def _imprint(tensor: Tensor) -> tuple[object, object]:
    """Return what changes when a tensor is written to, by itself or by an array over its memory."""
    # Tensors that were made for inference keep no count of writes; NaN as a text equals itself.
    count = 0 if tensor.is_inference() else writes_to(tensor, unknown=0)
    total = tensor.sum().item() if tensor.device.type == "cpu" else 0
    return count, total if total == total else "NaN"
