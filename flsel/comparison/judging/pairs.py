"""Form the pairs of a comparison: runs of one seed, verified by the hashes in their summaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flsel.comparison.run_table import Run
from flsel.config.fingerprint import alike

# What a pair must share, by the name of its fingerprint.
_PARTS = ("partition", "holdouts", "availability", "model")
_ROUNDED = ("partition", "holdouts", "model", "devices")


@dataclass(frozen=True)
class Pairs:
    """Runs of a variant and of the baseline in one scenario, seed by seed.

    Attributes:
        ours: The variant's complete runs, seeds ascending.
        theirs: The baseline's, of the same seeds unless ``paired`` is false.
        ended: By seed the runs of both that ended, complete or diverged; None where there is none.
        paired: Whether the runs are compared seed by seed.
        verified: Whether the fingerprints of all pairs are there and agree.
        problems: One sentence for every pair that is none.
    """

    ours: tuple[Run, ...]
    theirs: tuple[Run, ...]
    ended: Mapping[int, tuple[Run | None, Run | None]]
    paired: bool = True
    verified: bool = False
    problems: tuple[str, ...] = ()

    @property
    def by_seed(self) -> dict[int, tuple[Run, Run]]:
        """The pairs of complete runs; none of runs that are not paired."""
        return {a.seed: (a, b) for a, b in zip(self.ours, self.theirs, strict=True)} if self.paired else {}

    @property
    def most(self) -> int:
        """Complete runs of the side that has more."""
        whole = [
            [run is not None and run.status == "complete" for run in both] for both in self.ended.values()
        ]
        return max(sum(ours for ours, _ in whole), sum(theirs for _, theirs in whole))


def form_pairs(runs: Iterable[Run], baseline: str, *, unpaired: bool = False) -> dict[tuple[str, str], Pairs]:
    """Pair all runs that ended with the baseline's.

    Args:
        runs: All runs.
        baseline: Name of the baseline.
        unpaired: Compare all runs of a cell unpaired if some pair is none, instead of leaving it out.

    Returns:
        By variant and scenario the pairs, also where the baseline has no run.
    """
    cells: dict[tuple[str, str], dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.status in ("complete", "diverged"):
            cells.setdefault((run.variant, run.scenario), {})[run.seed] = run
    return {
        (variant, scenario): _form(ours, cells.get((baseline, scenario), {}), unpaired=unpaired)
        for (variant, scenario), ours in cells.items()
        if variant != baseline
    }


def _form(ours: Mapping[int, Run], theirs: Mapping[int, Run], *, unpaired: bool) -> Pairs:
    ended = {seed: (ours.get(seed), theirs.get(seed)) for seed in sorted({*ours, *theirs})}
    kept, problems, verified = list[tuple[Run, Run]](), list[str](), True
    for run, other in ended.values():
        if run is None or other is None or "diverged" in (run.status, other.status):
            continue
        # Who is available is hashed round by round, so that other rounds are another availability.
        longer = run.settings.get("rounds") != other.settings.get("rounds")
        differing = (
            ["rounds"] if longer else [name for name in (*_PARTS, "devices") if _differs(name, run, other)]
        )
        if differing:
            problems.append(
                f"{run.variant} and {other.variant} under seed {run.seed} are no pair: "
                f"{', '.join(differing)} differ ({run.folder}, {other.folder}){_doubt(differing, run, other)}"
            )
            continue
        verified &= _known(run) and _known(other)
        kept.append((run, other))
    if unpaired and (problems or not kept):
        whole, others = (tuple(r for r in side.values() if r.status == "complete") for side in (ours, theirs))
        return Pairs(whole, others, ended, paired=False, problems=tuple(problems))
    mine, yours = tuple(run for run, _ in kept), tuple(other for _, other in kept)
    return Pairs(mine, yours, ended, True, verified and bool(kept), tuple(problems))


def _doubt(differing: list[str], *runs: Run) -> str:
    """Say what may differ by rounding alone, since a run's fingerprint has no figures to compare."""
    seen = [run.summary.get("fingerprints", {}) for run in runs]
    bare = [n for n in differing if n in _ROUNDED and any(" " not in prints[n] for prints in seen)]
    if not bare:
        return ""
    return (
        f"; one run is of an earlier version, whose fingerprint of {', '.join(bare)} cannot tell other "
        "values from the same ones that another processor rounded: run it again"
    )


def _differs(name: str, run: Run, other: Run) -> bool:
    one, two = (r.summary.get("fingerprints", {}).get(name) for r in (run, other))
    if name == "model" and run.settings.get("model") != other.settings.get("model"):
        return False  # the network itself is compared
    return one is not None and two is not None and not alike(one, two)


def _known(run: Run) -> bool:
    return set(_PARTS) <= set(run.summary.get("fingerprints", {}))
