"""Watches over a selector's methods while they are called: what they draw from, keep, and write to."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from flsel.errors import UserError
from flsel.local.torch_internals import writes_to
from flsel.rng import global_states
from flsel.selector import Selector, View

_LOG = logging.getLogger("flsel")
_WATCHED_ROUNDS = 3  # Comparing the generators' states takes a fraction of a millisecond.


@contextmanager
def own_draws(name: str, view: View) -> Iterator[None]:
    """Warn, in the first rounds, of a selector that draws from a global generator within the block.

    Answers to its questions leave these generators as they were; where messages carry them, nothing is
    judged. Threads of trackers may draw from Python's generator at any time, which is judged only where there
    are none. ``flsel check`` judges everything.

    Args:
        name: The selector's name.
        view: What it sees.
    """
    before = global_states() if view.round < _WATCHED_ROUNDS else {}
    if threading.active_count() > 1:
        before.pop("random", None)
    yield
    now = global_states() if before and not view.answers.who.sends_messages else before
    for owner in (owner for owner in before if now[owner] != before[owner]):
        _warn_of_draws(name, owner)


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
