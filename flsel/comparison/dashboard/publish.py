"""Saves a dashboard in W&B; nothing else of it turns to the network."""

from __future__ import annotations

from collections.abc import Callable

import wandb

from flsel.comparison.dashboard.panels import CHART, participation_chart
from flsel.comparison.dashboard.views import Dashboard
from flsel.runner.trackers.wandb_run import one_line


def publish(dashboard: Dashboard, warn: Callable[[str], None]) -> list[str]:
    """Save a dashboard in W&B, each time as new views.

    Args:
        dashboard: With its entity.
        warn: Is told in a sentence if W&B does not take the heat map's chart, and the rest is saved.

    Returns:
        Where the report and the workspaces are.

    Raises:
        Exception: Whatever W&B's library raises: no such project, no right to it, no network.
    """
    report = dashboard.report().save()
    views = [view.save() for view in dashboard.workspaces().values()]
    try:
        wandb.Api().create_custom_chart(
            entity=dashboard.entity,
            name=CHART,
            display_name="flsel: participation",
            spec_type="vega2",
            access="private",
            spec=participation_chart(),
        )
    except Exception as error:  # the library's kinds have nothing else in common
        warn(f"W&B did not take the heat map {dashboard.entity}/{CHART}, unless it has it: {one_line(error)}")
    return [report.url, *(view.url for view in views)]
