"""A comparison from its declaration to its report: started, resumed with more, or made of existing runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from flsel.arguments import shown
from flsel.comparison.beside import beside_others
from flsel.comparison.comparison import Comparison, judge
from flsel.comparison.config import CompareConfig
from flsel.comparison.console import Progress
from flsel.comparison.declaration import Judging, read_declaration, write_declaration
from flsel.comparison.declare import read_grid, read_seeds, read_selectors, read_variants
from flsel.comparison.gather import Mismatch, gather
from flsel.comparison.grid import FILE, Grid, Tuning, Variant
from flsel.comparison.judging.measures import Target
from flsel.comparison.judging.results import Analysis
from flsel.comparison.play import Sources, check, play, read_cells, waiting
from flsel.comparison.reading import Run
from flsel.config import RunConfig
from flsel.config.describe import describe
from flsel.errors import Interrupted, UserError, going_on
from flsel.files import home, new_run_dir
from flsel.runner.alone import alone
from flsel.runner.lock import Lock
from flsel.runner.settings import short_name

# Plays cells side by side; above this package, so it is loaded by its name.
_PARALLEL = "flsel_tune.cells"


def start(config: RunConfig, wanted: CompareConfig, command: str) -> Comparison:
    """Play a new comparison and report it.

    Args:
        config: The runs' settings.
        wanted: The comparison's.
        command: The command line, for the report.

    Raises:
        UserError: If something does not fit, or a file cannot be written.
        Interrupted: If a signal stopped it; it can be resumed.
    """
    base = describe(_playable(config, wanted))
    seeds = (config.seed,) if wanted.seeds is None else read_seeds(wanted.seeds)
    variants = _variants(wanted, base)
    if not variants:
        raise UserError("nothing to compare: give --selectors Uniform,PowD,... or --variants FILE.")
    grid = Grid(base, tuple(variants), tuple(read_grid(wanted.grid)), seeds)
    judging = Judging(target=base["evaluation"]["target"]).asked_again(wanted)
    _check_baseline(judging, grid)
    sources = Sources()
    check(grid, Path(wanted.folder), sources)
    folder = new_run_dir(
        wanted.folder,
        wanted.name
        or config.output.name
        or _default_name(config.data.name, (_selector(v.name) for v in variants)),
        "folder",
    )
    with Lock(folder, "comparison"):
        try:
            write_declaration(folder, grid, judging, [command])
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return _play(folder, grid, wanted, sources, read_cells(grid, folder))


def resume(folder: Path, wanted: CompareConfig, command: str) -> Comparison:
    """Go on with a comparison: what is finished stays, what is new or was stopped is played.

    Raises:
        UserError: If the folder is no comparison, or what is added does not fit.
        Interrupted: If a signal stopped it.
    """
    grid, judging, commands = read_declaration(folder)
    more = _variants(wanted, grid.config)
    settings = read_grid(wanted.grid) if wanted.grid else []
    seeds = () if wanted.seeds is None else read_seeds(wanted.seeds)
    grown = grid.merged(more, settings, seeds)
    judging = judging.asked_again(wanted)
    _check_baseline(judging, grown)
    sources = Sources()
    if grown != grid:
        check(grown, folder.parent, sources)
    with Lock(folder, "comparison"):
        runs = read_cells(grown, folder)  # refuses before anything is written
        write_declaration(folder, grown, judging, [*commands, command])
        return _play(folder, grown, wanted, sources, runs)


def existing(patterns: Sequence[str], wanted: CompareConfig, command: str) -> Comparison:
    """Compare existing runs; the report gets a folder of its own.

    Raises:
        UserError: If a run does not fit, or nothing is left to compare.
    """
    made = compare_runs(patterns, wanted)
    runs = made.analysis.runs
    dataset = runs[0].settings.get("data", {}).get("name", "runs")
    name = wanted.name or _default_name(dataset, dict.fromkeys(map(_selector, made.analysis.variants)))
    folder = new_run_dir(wanted.folder, name, "folder")
    return replace(made, folder=folder, commands=(command,))


def compare_runs(patterns: Sequence[str], wanted: CompareConfig) -> Comparison:
    """Judge existing runs without writing anything.

    Raises:
        UserError: If a run does not fit, or nothing is left to compare.
    """
    runs, tuned = gather(patterns, wanted.mismatch)
    stated = {run.settings.get("evaluation", {}).get("target") for run in runs}
    judging = Judging(target=stated.pop() if len(stated) == 1 else None).asked_again(wanted)
    return Comparison(_judged(runs, judging, tuned, unpaired=wanted.mismatch == "unpaired"))


def read_comparison(
    folder: Path, wanted: CompareConfig | None = None, runs: Sequence[Run] | None = None
) -> Comparison:
    """Judge a comparison as it lies in its folder.

    Args:
        folder: The folder.
        wanted: How to judge it instead of as it declares; None and what is null in it change nothing.
        runs: Its cells, if they were just read.

    Raises:
        UserError: If the folder is no comparison, or has nothing to judge yet.
    """
    grid, judging, commands = read_declaration(folder)
    if wanted is not None:
        judging = judging.asked_again(wanted)
    tuned = {v.name: v.tuned for v in grid.variants if v.tuned is not None}
    cells = read_cells(grid, folder) if runs is None else runs
    return Comparison(_judged(cells, judging, tuned), folder, tuple(commands))


def _judged(
    runs: Sequence[Run], judging: Judging, tuned: Mapping[str, Tuning], *, unpaired: bool = False
) -> Analysis:
    target = None if judging.target is None else Target(judging.target, judging.target_after)
    return judge(runs, judging.baseline, target, last=judging.last, unpaired=unpaired, tuned=tuned)


def _play(
    folder: Path, grid: Grid, wanted: CompareConfig, sources: Sources, runs: Sequence[Run]
) -> Comparison:
    if not waiting(runs):
        return read_comparison(folder, runs=runs)
    with Progress(runs, int(grid.config["rounds"]), quiet=bool(grid.config["quiet"])) as progress:
        try:
            _player(wanted)(grid, folder, sources, progress)
        except Interrupted as stop:
            raise Interrupted(f"{stop}; continue with: {going_on('compare', folder)}") from stop
    return read_comparison(folder)


def _player(wanted: CompareConfig) -> Callable[[Grid, Path, Sources, Progress], None]:
    if not wanted.parallel:
        return lambda grid, folder, sources, progress: play(
            grid, folder, sources, progress.ended, progress.round_ended
        )
    parallel = import_module(_PARALLEL)
    return lambda grid, folder, sources, progress: parallel.play(grid, folder, wanted, progress.ended)


def _playable(config: RunConfig, wanted: CompareConfig) -> RunConfig:
    """Return the config of all runs: every round is played, and beside others on one device."""
    target = wanted.target or config.evaluation.target
    config = replace(config, evaluation=replace(config.evaluation, target=target, stop_at_target=False))
    return beside_others(config, wanted.cpus, wanted.gpus) if wanted.parallel else config


def _variants(wanted: CompareConfig, base: dict[str, Any]) -> list[Variant]:
    variants = [] if wanted.selectors is None else read_selectors(wanted.selectors)
    if wanted.variants is not None:
        variants += read_variants(wanted.variants, base)
    names = [variant.name for variant in variants]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} names two variants; give one of them another name in the file.")
    return variants


def _check_baseline(judging: Judging, grid: Grid) -> None:
    names = [variant.name for variant in grid.variants]
    if judging.baseline is not None and judging.baseline not in names:
        raise UserError(f"baseline must be one of the variants {', '.join(names)}, got {judging.baseline}.")


def _default_name(dataset: str, names: Iterable[str]) -> str:
    """Make the name of a folder of what a dataset and variants are called."""
    return re.sub(r"[^\w.=+-]+", "_", f"{short_name(dataset)}-{'-'.join(names)}")[:80]


def _selector(variant: str) -> str:
    """Return the name of a variant without its arguments, in lower case."""
    return variant.split(":")[0].lower()


def compare(
    what: str | PathLike[str] | Sequence[str | PathLike[str]] | Mapping[str, Any],
    *,
    baseline: str | None = None,
    target: float | None = None,
    last: int | None = None,
    mismatch: Mismatch = "refuse",
) -> Comparison:
    """Compare runs from Python.

    Args:
        what: Runs, by their folders (``*`` allowed) or as :class:`flsel.Result`; or a comparison's folder,
            of which nothing is played; or what to play: ``config`` (a :class:`flsel.RunConfig`) and settings
            of a :class:`flsel.comparison.config.CompareConfig` such as ``selectors`` and ``seeds``.
        baseline: The variant that others are compared with; None is what the comparison declares, or else
            Uniform, or the first.
        target: Test accuracy to reach, in (0, 1]; None is what the comparison, or all runs, declare.
        last: Evaluations in the mean at the end, >= 1; None is what the comparison declares, or else 10.
        mismatch: What becomes of runs that do not fit: ``refuse``, ``drop`` or ``unpaired``.

    Returns:
        The numbers, the verdicts, figures, and :meth:`Comparison.write` for the files.

    Raises:
        UserError: If something does not fit, or what is to be played would be beside another thread's run.
    """
    judging = {"baseline": baseline, "target": target, "last": last, "mismatch": mismatch}
    if isinstance(what, Mapping):
        settings = {name: value for name, value in what.items() if name != "config"}
        known = [f.name for f in fields(CompareConfig)]
        unknown = next((name for name in settings if name not in known), None)
        if unknown:
            raise UserError(f"there is no setting {unknown} of a comparison; there are {', '.join(known)}.")
        config = what.get("config", RunConfig(quiet=True))
        if not isinstance(config, RunConfig):
            raise UserError(
                f"config must be a RunConfig, such as flsel.RunConfig(rounds=50), got {config!r}."
            )
        texts = {name: _text(value) for name, value in settings.items() if name in ("selectors", "seeds")}
        with alone():
            return start(
                config, CompareConfig(**{**judging, **settings, **texts}), f"flsel.compare({settings})"
            )
    if isinstance(what, str | PathLike) and (home(what) / FILE).is_file():
        return read_comparison(home(what), CompareConfig(**judging))  # type: ignore[arg-type]
    patterns = [what] if isinstance(what, str | PathLike) else what
    if isinstance(patterns, Sequence) and not patterns:
        raise UserError("there are no runs to compare: name their folders.")
    if not isinstance(patterns, Sequence) or not all(isinstance(found, str | PathLike) for found in patterns):
        raise UserError(
            f"compare takes runs (results or their folders), or what to play as a mapping, got {shown(what)}."
        )
    return compare_runs([fspath(pattern) for pattern in patterns], CompareConfig(**judging))  # type: ignore[arg-type]


def _text(value: Any) -> Any:
    """Write a number, or a list of names or numbers, as the command line has it; leave the rest alone."""
    if isinstance(value, list | tuple | range):
        # One number alone would be the count of seeds.
        one = len(value) == 1 and not isinstance(value[0], str)
        return f"{value[0]}..{value[0]}" if one else ",".join(map(str, value))
    plain = isinstance(value, int | str) and not isinstance(value, bool)
    return str(value) if plain else value
