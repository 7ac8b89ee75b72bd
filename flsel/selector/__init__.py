"""The contract between a client selector and a federation: needs, view, plan, updates, selector.

A selector answers up to three questions per round: which clients train (:meth:`Selector.select`), how much
each update counts (:meth:`Selector.weigh`), and what the selector learns from the updates
(:meth:`Selector.observe`). It declares the information that it needs and asks a read-only :class:`View` for
it. The ledger counts the cost of every answer.

Dimensions: N clients, K paths (the cohort), H hops, C classes. The *pool* is the clients available now. A
*delta* is the end model minus the start model. A *stack* has a leading [K].
"""

from flsel.arguments import Range, Tunable
from flsel.selector.base import Selector
from flsel.selector.diagnostic import Diagnostic
from flsel.selector.plan import IDLE, Plan
from flsel.selector.updates import Late, Updates
from flsel.selector.view import ON_HOLDOUT, Need, View

__all__ = [
    "IDLE", "ON_HOLDOUT", "Diagnostic", "Late", "Need", "Plan", "Range", "Selector", "Tunable", "Updates",
    "View",
]  # fmt: skip
