"""Call the methods of a selector as every kind of round does: watched, with checked answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from flsel.engine.check_plans import check_plan, check_weights
from flsel.engine.watches import own_draws, remembered, unwritten
from flsel.params import Params
from flsel.selector import Need, Plan, Selector, Updates, View

ANY_UPDATE = Need.DELTAS | Need.HEAD
"""Needs of participants' updates."""


def select(
    selector: Selector,
    view: View,
    shown: Iterable[Tensor],
    check: Callable[[object, View, str], None] = check_plan,
) -> Plan:
    """Return the plan of a selector.

    Args:
        selector: The selector.
        view: What it may know.
        shown: Tensors of the view, which it must not write to.
        check: Refuses a plan that breaks the contract.

    Raises:
        UserError: If the plan breaks the contract, or the selector writes to what it is shown.
    """
    name = type(selector).__name__
    watched = unwritten(f"{name}.select", shown)
    with own_draws(name, view), remembered(selector, view.round), watched:
        plan = selector.select(view)
    check(plan, view, name)
    return plan


def weigh(selector: Selector, view: View, updates: Updates, deltas: Params) -> Tensor:
    """Return the weights of updates, float64 ``[K]``.

    Args:
        selector: The selector.
        view: What it may know.
        updates: The updates, as it sees them.
        deltas: The stacks behind them.

    Raises:
        UserError: If the weights break the contract, or the selector writes to what it is shown.
    """
    name = type(selector).__name__
    with unwritten(f"{name}.weigh", _shown(selector, view, deltas)):
        return check_weights(selector.weigh(view, updates), len(updates.plan), name)


def observe(selector: Selector, view: View, updates: Updates, weights: Tensor, deltas: Params) -> None:
    """Let a selector learn from updates and their weights; see :func:`weigh`."""
    if type(selector).observe is Selector.observe:
        return
    watched = unwritten(f"{type(selector).__name__}.observe", [*_shown(selector, view, deltas), weights])
    with remembered(selector, view.round), watched:
        selector.observe(view, updates, weights)


def _shown(selector: Selector, view: View, deltas: Params) -> list[Tensor]:
    return [*view.params.values(), *(deltas.values() if selector.needs & ANY_UPDATE else ())]
