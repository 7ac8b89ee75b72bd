"""Who races: variants that may be used and fit the run; and why others do not."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flsel.selectors
from flsel.choosing.choose_config import ChooseConfig, needs_in_words, read_may
from flsel.comparison.from_python import called
from flsel.comparison.grid import Cell, Grid, Scenario, Variant
from flsel.comparison.parse_variants import all_variants, check_names
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.execution.executor import Sources
from flsel.metrics import Score
from flsel.runner.build import build
from flsel.selector import Need
from flsel.selectors.complete import Complete

_PROBE = Path("choices")


@dataclass(frozen=True)
class Entrants:
    """Who races.

    Attributes:
        variants: What races.
        needs: What each needs to know, in words, by name.
        left_out: Why others do not race, by name.
        score: What the runs are judged by.
    """

    variants: tuple[Variant, ...]
    needs: Mapping[str, str]
    left_out: Mapping[str, str]
    score: Score


def find_entrants(
    config: RunConfig, wanted: ChooseConfig, more: Sequence[Variant], sources: Sources
) -> Entrants:
    """Build everything that could race once, and keep what may be used here.

    Args:
        config: The settings of all runs.
        wanted: The settings of the race.
        more: Variants made in Python.
        sources: The runs' data.

    Raises:
        UserError: If the config itself does not fit, or something that was named by the user.
    """
    base, may = config.to_dict(), read_may(wanted.may)
    every = wanted.selectors is None and not more
    named = all_variants(more, wanted.selectors, wanted.variants, base)
    offered = _offered(config) if every else []
    check_names([*offered, *named])
    with _quietly():
        plain = build(config.with_changes({"selector": "Uniform"}), sources.get(config))
        score = plain.server.expected_score
        found = [(v, *_fit(v, base, config.seed, may, sources)) for v in (*offered, *named)]
    asked = {variant.name for variant in named}
    for variant, _, reason in found:
        if reason and variant.name in asked and not reason.startswith("needs "):
            raise UserError(f"{variant.name}: {reason}")
    return Entrants(
        tuple(variant for variant, _, reason in found if not reason),
        {variant.name: needs for variant, needs, reason in found if not reason},
        {variant.name: reason.rstrip(".") for variant, _, reason in found if reason},
        score,
    )


def _offered(config: RunConfig) -> list[Variant]:
    """Return every selector with its defaults; the config's own has the config's arguments."""
    own, name = type(config.selector), called(config.selector)
    others = [other for other in flsel.selectors.__all__ if getattr(flsel.selectors, other) is not own]
    return [Variant(name, {}), *(Variant(other, {"selector": other}) for other in others)]


def _fit(
    variant: Variant, base: dict[str, Any], seed: int, may: Need | None, sources: Sources
) -> tuple[str, str]:
    """Return what a variant needs to know, in words, and why it does not race; empty if it does."""
    grid = Grid(base, (variant,), (Scenario(),), (seed,))
    try:
        config = grid.run_config(Cell(variant.name, grid.scenarios[0].name, seed), _PROBE)
        needs: Need = config.selector.needs
        if may is not None and needs & ~may:
            return "", f"needs {needs_in_words(needs & ~may)}"
        if needs & Need.DURATIONS and config.devices is None:
            return "", "needs durations, and the run has no simulated devices (--devices LogNormal)"
        source = sources.get(config)
        clients = len(build(config, source).data.population)
    except UserError as error:
        return "", str(error)
    if isinstance(config.selector, Complete) and config.clients_per_round < clients:
        k = config.clients_per_round
        return "", f"needs all clients in each round: {clients}, and clients_per_round is {k}"
    return needs_in_words(needs), ""


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what is logged about runs that are built to be looked at only."""
    log = logging.getLogger("flsel")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
