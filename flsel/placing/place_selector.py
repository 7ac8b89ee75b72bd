"""``flsel.place``: placements from Python."""

from __future__ import annotations

from typing import Any

from flsel.arguments import settings_of
from flsel.comparison.from_python import Variants, make_variants
from flsel.errors import UserError
from flsel.execution.choose_executor import executor_for
from flsel.execution.single_run import single_run
from flsel.placing.place_config import PlaceConfig
from flsel.placing.placement import Placement
from flsel.placing.run_placement import run_placement
from flsel.placing.shipped_atlas import read_atlas


def place(variants: Variants, **wanted: Any) -> Placement:
    """Place selectors on an atlas: only they run, and are paired with the committed results of others.

    ``flsel.place([EpsilonGreedy(epsilon=0.1)], atlas="synthetic")`` says how a selector does against others
    over partitions and availability.

    Args:
        variants: What is placed, as for :func:`flsel.compare`: a list of selectors, or by name settings.
        wanted: The settings of :class:`flsel.placing.place_config.PlaceConfig`, such as ``seeds``.

    Returns:
        Ranks, differences and ratios; :func:`flsel.placing.placement_report.write_placement` writes them.

    Raises:
        UserError: If something does not fit, or another thread executes a run.
        Interrupted: If a signal stopped the runs; the same call continues.
    """
    asked = settings_of(PlaceConfig, wanted, "place")
    made, models = make_variants(variants, dict(read_atlas(asked.atlas).config))
    if models:
        raise UserError("place takes selectors and settings; the model is the atlas's.")
    with single_run():
        return run_placement((), asked, "flsel.place", executor_for(asked.resources), made)
