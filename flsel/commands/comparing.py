"""``flsel compare`` itself: which selector is better, is the difference real, and what does it cost?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from flsel.commands.argv import Word, parse
from flsel.commands.command_settings import CommandSettings
from flsel.commands.set_up_logging import set_up_logging
from flsel.comparison.cells import expected_score
from flsel.comparison.compare import (
    compare_runs,
    declared_grid,
    existing,
    read_comparison,
    resume_comparison,
    start_comparison,
)
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.comparison import Comparison
from flsel.comparison.comparison_display import say, track_comparison
from flsel.comparison.comparison_plan import ComparisonPlan, pilot_sd, plan_comparison, read_sd
from flsel.comparison.grid import Grid
from flsel.comparison.judging.settings import Judging
from flsel.comparison.parse_variants import read_grid, read_selectors
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.execution.choose_executor import executor_for
from flsel.files import home
from flsel.metrics import SCORE

USAGE = """flsel compare --selectors Uniform,PowD,... --seeds 5 [--config FILE] [--key value ...]
       flsel compare --variants FILE --seeds 1..10 --grid "availability=IDL,LN"
       flsel compare RUN RUN ... [--target 0.7]
       flsel compare COMPARISON [--target 0.7]
       flsel compare --selectors Uniform,PowD,... --until-decided [--margin 0.5] [--max-seeds 32]
       flsel compare --selectors Uniform,... --until-decided --decides bytes --target 0.8 [--budget 2GB]
       flsel compare --selectors Uniform,PowD,... --plan --margin 0.5 --sd 1.2
       flsel compare --resume COMPARISON [--seeds 10] [--selectors ...]"""
DESCRIPTION = """\
Compare selectors, or any settings, over seeds. flsel runs every combination, or takes existing runs. A report
says which variants differ, whether the differences are significant, and what they cost. Every setting of
flsel train is a setting of the runs, on the command line or in a file (--config FILE).
"""
OWN = CommandSettings("compare", CompareConfig, USAGE, DESCRIPTION, ("resume", "plan", "sd"))
_OPTIONS = ("resume", "plan", "sd")
_SWITCHES = ("until_decided", "each_scenario")
# What a resumed comparison keeps: its runs have it.
_KEPT = ("name", "folder")


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    left = list(arguments)
    patterns: list[str] = []
    while left and not left[0].startswith("-"):
        patterns.append(left.pop(0))
    given = OWN.split(left)
    if given is None:
        print(OWN.parser().format_help())
        return 0
    mine, others = given
    own = [(key, _switched(key, value)) for key, value in mine if key not in _OPTIONS]
    wanted = OWN.typed(own)
    command = shlex.join(["flsel", "compare", *arguments])
    resumed = next((value or "" for key, value in mine if key == "resume"), None)
    if any(key in ("plan", "sd") for key, _ in mine):
        if patterns or resumed is not None:
            _refuse_settings(others)
        grid = None if patterns or resumed is not None else _planned(parse(others), wanted)
        print(_plan((patterns, resumed), grid, mine, wanted).text())
        return 0
    if wanted.pick is not None and not patterns:
        raise UserError(f"pick goes with existing runs (flsel compare 'runs/*'), got {wanted.pick}.")
    if patterns or resumed is not None:
        set_up_logging(quiet=True)
        made = _without_config(patterns, resumed, own, others, wanted, command)
        quiet = False
    else:
        config = parse(others)
        set_up_logging(quiet=True)
        made = start_comparison(config, wanted, command, executor_for(wanted.resources))
        quiet = config.quiet
    paths = made.write()
    set_up_logging(quiet=quiet)
    track_comparison(made, paths)
    if not quiet:
        say(made.analysis, paths[:1])
    _refuse_without_runs(made, paths[0])
    return 0


def _switched(key: str, value: str | None) -> str | None:
    """Take a switch without a value for true."""
    return "true" if value is None and key in _SWITCHES else value


def _planned(config: RunConfig, wanted: CompareConfig) -> Grid:
    """Return the runs that are planned, whose settings are checked.

    Raises:
        UserError: If there are no variants, or one has a wrong setting.
    """
    if wanted.selectors is None and wanted.variants is None:
        raise UserError("a plan needs variants: give --selectors Uniform,PowD,..., or pilot runs.")
    return declared_grid(config, wanted)


def _plan(
    pilots: tuple[Sequence[str], str | None], grid: Grid | None, mine: Sequence[Word], wanted: CompareConfig
) -> ComparisonPlan:
    """Plan a comparison from a standard deviation, or from pilot runs.

    Raises:
        UserError: If there is neither, or no variants.
    """
    rules = Judging(**wanted.given() | {"until_decided": True})
    if wanted.seeds is not None:
        raise UserError(
            f"seeds must not be given with plan, which plans up to max_seeds; got {wanted.seeds}."
        )
    sd = next((value for key, value in mine if key == "sd"), None)
    pilot, (patterns, resumed) = None, pilots
    if resumed or patterns:
        pilot = (read_comparison(home(resumed)) if resumed else compare_runs(patterns, wanted)).analysis
    if wanted.selectors is not None and grid is None:
        variants = len(read_selectors(wanted.selectors))
    else:
        variants = len(grid.variants if grid is not None else pilot.variants if pilot is not None else ())
    scenarios = len(read_grid(wanted.grid)) if pilot is None else len(pilot.scenarios)
    if sd is None and pilot is None:
        raise UserError("a plan needs the spread of differences: give --sd POINTS, or pilot runs.")
    if pilot is not None:
        score = pilot.options.score
    else:
        score = SCORE if grid is None else expected_score(grid, Path(wanted.folder))
    spread = read_sd(sd, rules, score) if sd is not None or pilot is None else pilot_sd(pilot, rules)
    target = wanted.target
    if target is None and pilot is not None and pilot.target is not None:
        target = pilot.target.value
    return plan_comparison(
        rules, variants=variants, scenarios=scenarios, sd=spread, target=target, score=score
    )


def _refuse_without_runs(made: Comparison, report: Path) -> None:
    """End with a sentence where a variant has no run at all."""
    whole = {run.variant for run in made.analysis.runs if run.status == "complete"}
    for run in made.analysis.runs:
        if run.variant not in whole:
            reason = run.reason.rstrip(".")
            raise UserError(f"no run of {run.variant} could be counted ({reason}); the rest is in {report}.")


def _without_config(
    patterns: Sequence[str],
    resumed: str | None,
    own: Sequence[Word],
    others: Sequence[Word],
    wanted: CompareConfig,
    command: str,
) -> Comparison:
    _refuse_settings(others)
    if patterns:
        starts = next(
            (key for key, _ in own if key in ("selectors", "variants", "seeds", "grid", "budget")), None
        )
        if starts or resumed is not None:
            raise UserError(
                f"{starts or 'resume'} starts runs, and existing ones are named; give one or the other."
            )
        return existing(patterns, wanted, command)
    if not resumed:
        raise UserError("--resume takes the folder of a comparison: flsel compare --resume COMPARISON.")
    kept = next((key for key, _ in own if key in _KEPT), None)
    if kept:
        raise UserError(f"{kept} stays as it is when a comparison is resumed; leave it out.")
    return resume_comparison(home(resumed), wanted, command, executor_for(wanted.resources))


def _refuse_settings(others: Sequence[Word]) -> None:
    """Refuse settings of runs where there are runs."""
    if others:
        raise UserError(f"{others[0][0]} is a setting of runs, and these have theirs already; leave it out.")
