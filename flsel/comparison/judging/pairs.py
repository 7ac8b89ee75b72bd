"""Verify that runs of one seed are pairs, by the hashes in their summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flsel.comparison.run_table import Run

# What a pair must share, by the name of its fingerprint.
_PARTS = ("partition", "holdouts", "availability", "model")


@dataclass(frozen=True)
class Pairs:
    """Runs of a variant and of the baseline, seed by seed.

    Attributes:
        ours: The variant's runs, seeds ascending.
        theirs: The baseline's, of the same seeds unless ``paired`` is false.
        paired: Whether the runs are compared seed by seed.
        verified: Whether the fingerprints of all pairs are there and agree.
        problems: One sentence for every pair that is none.
    """

    ours: tuple[Run, ...]
    theirs: tuple[Run, ...]
    paired: bool
    verified: bool
    problems: tuple[str, ...]


def pair(ours: Sequence[Run], theirs: Sequence[Run], *, unpaired: bool) -> Pairs:
    """Pair the complete runs of a variant with the baseline's in one scenario.

    Args:
        ours: The variant's complete runs.
        theirs: The baseline's.
        unpaired: Compare all runs unpaired if some pair is none, instead of leaving it out.
    """
    others = {run.seed: run for run in theirs}
    kept, problems, verified = list[tuple[Run, Run]](), list[str](), True
    for run in sorted(ours, key=lambda run: run.seed):
        other = others.get(run.seed)
        if other is None:
            continue
        # Who is available is hashed round by round, so that other rounds are another availability.
        longer = run.settings.get("rounds") != other.settings.get("rounds")
        differing = (
            ["rounds"] if longer else [name for name in (*_PARTS, "devices") if _differs(name, run, other)]
        )
        if differing:
            problems.append(
                f"{run.variant} and {other.variant} under seed {run.seed} are no pair: "
                f"{', '.join(differing)} differ ({run.folder}, {other.folder})"
            )
            continue
        verified &= _known(run) and _known(other)
        kept.append((run, other))
    if unpaired and (problems or not kept):
        return Pairs(tuple(ours), tuple(theirs), False, False, tuple(problems))
    mine, yours = tuple(run for run, _ in kept), tuple(other for _, other in kept)
    return Pairs(mine, yours, True, verified and bool(kept), tuple(problems))


def _differs(name: str, run: Run, other: Run) -> bool:
    one, two = (r.summary.get("fingerprints", {}).get(name) for r in (run, other))
    if name == "model" and run.settings.get("model") != other.settings.get("model"):
        return False  # the network itself is compared
    return one is not None and two is not None and one != two


def _known(run: Run) -> bool:
    return set(_PARTS) <= set(run.summary.get("fingerprints", {}))
