"""Existing runs as a comparison: what differs between them says what is compared, and where."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from flsel.comparison.config_differences import filled, pairs, shown
from flsel.comparison.grid import ALL, FILE, Tuning
from flsel.comparison.parse_variants import MACHINE, tuning_in
from flsel.comparison.run_table import Run, read_run
from flsel.errors import UserError, going_on
from flsel.files import home

Mismatch = Literal["refuse", "drop", "unpaired"]
Pick = Literal["newest", "oldest"]
_OF_RUNS = ("config.yaml", "metrics.csv", "rounds.jsonl", "summary.json")
# Differences in these are what is compared, in those where; in anything else runs must agree.
COMPARED = ("selector", "objective", "local", "server_optimizer")
PLACE = ("partition", "availability", "completeness")


def gather(
    patterns: Sequence[str], mismatch: Mismatch, pick: Pick | None = None
) -> tuple[list[Run], dict[str, Tuning]]:
    """Read runs and name what each of them stands for.

    Args:
        patterns: Folders of runs, ``*`` and the like allowed.
        mismatch: What to do with a run that is unfinished or has other settings than most: ``refuse``,
            ``drop`` it from the numbers (it stays in the list), or compare it ``unpaired``.
        pick: Which of several runs with the same settings and seed is taken; None refuses them.

    Returns:
        The runs, and by variant the sweep that tuned it, if one did.

    Raises:
        UserError: If a folder is no run, two are the same run, or one does not fit and ``mismatch`` refuses.
    """
    runs = [read_run(folder) for folder in _folders(patterns)]
    runs = [_unless_finished(run, mismatch) for run in runs]
    flat = {run.folder: filled(run.settings) for run in runs}
    runs = _agreeing(runs, flat, mismatch)
    runs = _named(runs, flat)
    runs = _without_duplicates(runs, pick)
    tuned = {run.variant: found for run in runs if (found := _trial_of(run.folder)) is not None}
    return runs, tuned


def _without_duplicates(runs: Sequence[Run], pick: Pick | None) -> list[Run]:
    """Leave out runs that are there twice, or refuse them all by name.

    Raises:
        UserError: If there are such runs, and nothing says which to take.
    """
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        if run.status == "complete":
            groups.setdefault((run.variant, run.scenario, run.seed), []).append(run)
    twice = [group for group in groups.values() if len(group) > 1]
    if twice and pick is None:
        listed = "; ".join(
            f"{' and '.join(str(run.folder) for run in group)} are {group[0].variant} under seed "
            f"{group[0].seed}"
            for group in twice[:5]
        )
        more = f", and {len(twice) - 5} more groups" if len(twice) > 5 else ""
        raise UserError(
            f"{listed}{more}, with the same settings: leave all but one of each out, or give --pick newest "
            "or --pick oldest."
        )

    def ended(run: Run) -> tuple[int, str]:
        return (run.folder / "summary.json").stat().st_mtime_ns, str(run.folder)

    left_out: dict[Path, Path] = {}
    for group in twice:
        ordered = sorted(group, key=ended, reverse=pick == "newest")
        left_out |= {run.folder: ordered[0].folder for run in ordered[1:]}
    return [
        replace(run, status="excluded", reason=f"{left_out[run.folder]} has the same settings and seed")
        if run.folder in left_out
        else run
        for run in runs
    ]


def _folders(patterns: Sequence[str]) -> list[Path]:
    folders: list[Path] = []
    for pattern in patterns:
        # The name of a folder may hold what patterns are made of.
        named = home(pattern)
        found = [named] if named.is_dir() else _runs_among(sorted(map(Path, glob.glob(str(named)))))
        if not found:
            raise UserError(f"there is no folder {pattern} to compare; runs are below runs/ or output.dir.")
        folders += found
    for folder in folders:
        if (folder / FILE).is_file():
            raise UserError(f"{folder} is a comparison, not a run: go on with {going_on('compare', folder)}.")
        if not (folder / "config.yaml").is_file():
            raise UserError(f"{folder} is not the folder of a run: it holds no config.yaml{_below(folder)}.")
    return list(dict.fromkeys(folders))


def _below(folder: Path) -> str:
    """Name a pattern of the runs below a folder, at most four folders deep; nothing if there are none."""
    patterns = ("/".join("*" * depth) for depth in range(1, 5))
    found = next((pattern for pattern in patterns if any(folder.glob(f"{pattern}/config.yaml"))), None)
    return "" if found is None else f" (the runs below it are {folder / found})"


def _runs_among(found: Sequence[Path]) -> list[Path]:
    """Leave out what a pattern matches beside runs: files, comparisons, folders of anything else."""
    runs = [path for path in found if any((path / name).is_file() for name in _OF_RUNS)]
    runs = [path for path in runs if not (path / FILE).is_file()]
    return runs or list(found)


def _unless_finished(run: Run, mismatch: Mismatch) -> Run:
    if run.status in ("complete", "diverged") or mismatch == "drop":
        return run
    raise UserError(
        f"{run.folder} is not finished ({run.reason}): go on with {going_on('train', run.folder)}, leave "
        "it out, or give --mismatch drop to list it without counting it."
    )


def _agreeing(runs: Sequence[Run], flat: Mapping[Path, Mapping[str, Any]], mismatch: Mismatch) -> list[Run]:
    """Refuse or leave out runs that differ from most in what a comparison does not vary."""
    rest = {
        folder: {k: v for k, v in found.items() if k.split(".")[0] not in (*COMPARED, *PLACE, *MACHINE)}
        for folder, found in flat.items()
    }
    marks = {folder: str(sorted(found.items(), key=str)) for folder, found in rest.items()}
    usual = Counter(marks.values()).most_common(1)[0][0]
    reference = next(folder for folder, mark in marks.items() if mark == usual)
    found = []
    for run in runs:
        if marks[run.folder] != usual:
            differing = shown(pairs(rest[reference], rest[run.folder]))
            if mismatch == "refuse":
                raise UserError(
                    f"{run.folder} is not comparable with {reference}: {differing}; leave it out, or give "
                    "--mismatch drop (listed, not counted) or --mismatch unpaired."
                )
            if mismatch == "drop":
                run = replace(run, status="excluded", reason=f"other settings: {differing}")
        found.append(run)
    return found


def _named(runs: Sequence[Run], flat: Mapping[Path, Mapping[str, Any]]) -> list[Run]:
    places = _varying((flat[run.folder] for run in runs), PLACE)
    by_selector: dict[str, list[Run]] = {}
    for run in runs:
        by_selector.setdefault(str(flat[run.folder].get("selector")), []).append(run)
    varying = {
        name: _varying((flat[run.folder] for run in group), COMPARED) for name, group in by_selector.items()
    }
    named = []
    for run in runs:
        values = flat[run.folder]
        selector = str(values.get("selector"))
        own = [f"{key.removeprefix('selector.')}={values.get(key)}" for key in varying[selector]]
        where = [f"{key}={values[key]}" for key in places if key in values]
        named.append(replace(run, variant=":".join([selector, *own]), scenario=", ".join(where) or ALL))
    return named


def _varying(group: Iterable[Mapping[str, Any]], tops: Sequence[str]) -> list[str]:
    """Return the keys below some groups of settings that have more than one value."""
    group = list(group)
    names = dict.fromkeys(key for values in group for key in values if key.split(".")[0] in tops)
    return [name for name in names if len({str(values.get(name)) for values in group}) > 1]


def _trial_of(folder: Path) -> Tuning | None:
    """Return the sweep that a run was a trial of."""
    for above in folder.resolve().parents[:3]:
        if (above / "sweep.yaml").is_file():
            return tuning_in(above)
    return None
