"""Complete participation: all available clients train, to compare with centralised training.

**Deviations.** None, because there is no paper. If K is below the number of available clients, the run stops
with an error.
"""

from __future__ import annotations

from typing import final

from flsel.errors import UserError
from flsel.selector import Plan, Selector, View


@final
class Complete(Selector):
    """Select every available client; weights are proportional to their examples.

    ``clients_per_round`` must be at least the number of clients that are ever available at once.
    """

    only_synchronous = "all clients train together"

    def select(self, view: View) -> Plan:
        """Take the whole pool.

        Raises:
            UserError: If ``clients_per_round`` is smaller than the pool.
        """
        pool = view.pool
        if view.clients_per_round < len(pool):
            raise UserError(
                f"clients_per_round must be the number of clients ({len(view.sizes)}) for "
                f"complete participation: {len(pool)} are available in round {view.round}, "
                f"got {view.clients_per_round}."
            )
        return Plan.star(pool)
