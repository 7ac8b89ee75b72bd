"""The contract between a client selector and a federation: needs, view, plan, updates, selector.

A selector answers up to three questions a round: who trains (:meth:`Selector.select`), how much does each
update count (:meth:`Selector.weigh`), what did we learn (:meth:`Selector.observe`). It declares the
information it needs, pulls it from a read-only :class:`View`, and every answer's cost enters the ledger.

Dimensions: N clients, K paths (the cohort), H hops, C classes. *pool*: clients available now; *delta*: end
model minus start model; a *stack* has a leading [K].
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
