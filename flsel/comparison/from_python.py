"""``flsel.compare``: comparisons from Python, of runs that are there or of runs to execute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from flsel.arguments import shown
from flsel.comparison import compare as comparing
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.comparison import Comparison
from flsel.comparison.comparison_file import read_declaration
from flsel.comparison.grid import FILE
from flsel.comparison.load_runs import Mismatch, Pick
from flsel.comparison.variant_objects import Variants, make_scenarios, make_variants
from flsel.config import RunConfig, model_object
from flsel.errors import UserError
from flsel.execution.choose_executor import executor_for
from flsel.execution.single_run import single_run
from flsel.files import home

_OF_EXECUTION = (
    "variants",
    "seeds",
    "grid",
    "until_decided",
    "decides",
    "max_seeds",
    "budget",
    "each_scenario",
)


def compare(
    what: RunConfig | Comparison | str | PathLike[str] | Sequence[str | PathLike[str]],
    variants: Variants | None = None,
    *,
    seeds: int | str | Sequence[int] | None = None,
    grid: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    baseline: str | None = None,
    target: float | None = None,
    cost: str | None = None,
    last: int | None = None,
    until_decided: bool = False,
    decides: str | None = None,
    margin: float | None = None,
    margin_ratio: float | None = None,
    level: float | None = None,
    max_seeds: int | None = None,
    budget: str | None = None,
    each_scenario: bool = False,
    mismatch: Mismatch = "refuse",
    pick: Pick | None = None,
    resume: bool = False,
    max_concurrent: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    memory: float | None = None,
    address: str | None = None,
    retries: int = 2,
    name: str | None = None,
    folder: str = "comparisons",
) -> Comparison:
    """Compare variants over seeds and scenarios: execute them, or judge runs that are there.

    ``flsel.compare(config, [Uniform(), PowD(d=12)], seeds=5)`` executes runs.
    ``flsel.compare([result, other])`` and ``flsel.compare("runs/*")`` judge runs, and
    ``flsel.compare("comparisons/NAME")`` judges a comparison again. The arguments without a text here are
    those of :class:`flsel.comparison.compare_config.CompareConfig`, which says what each means and may be.

    Args:
        what: The runs' settings, where runs are executed; or runs, as :class:`flsel.Result` or by their
            folders (``*`` allowed); or a comparison, or its folder.
        variants: What is compared, where runs are executed: a list of selectors, or of texts such as
            ``PowD:d=12``; or by name a selector, a mapping of settings to change (nested or by dotted key,
            values may be objects), a :class:`flsel.RunConfig`, or the path of a config; or a file of them.
        seeds: A number of seeds (5 is 1 to 5), a list of them, or a text such as ``1..10``; None is the
            config's own.
        grid: Scenarios: by key a list of values, ``{"availability": [IDL(), LN()]}``; all combinations.
        baseline: The variant that others are compared with; None is what the comparison declares, or else
            Uniform, or the first.
        target: Score to reach, such as an accuracy in (0, 1]; None is what the comparison or runs declare.
        cost: The cost to the target that verdicts are about.
        last: Evaluations in the mean at the end.
        until_decided: Run seeds until every claim is decided.
        decides: What these claims are about: ``accuracy``, or the cost to ``target``, such as ``rounds``.
        margin: Half-width of practical equivalence in the score's unit, such as points of accuracy.
        margin_ratio: Ratio up to which two costs are equivalent in practice, where a cost decides: 1.1.
        level: Confidence level of all intervals; one minus it is the chance of any false claim.
        max_seeds: Most seeds of ``until_decided``.
        budget: Amount of the cost that decides, or of ``cost``, at which every run ends: ``2GB``, ``6h``.
        each_scenario: Decide every scenario for itself.
        mismatch: What becomes of runs that do not fit: ``refuse``, ``drop`` or ``unpaired``.
        pick: Which of several runs with the same settings and seed is taken, ``newest`` or ``oldest``; None
            refuses them.
        resume: Execute what is left of the comparison ``what``, and what is added to it.
        max_concurrent: Most runs at a time; more than one are executed by Ray.
        cpus: CPUs of a run, with Ray.
        gpus: GPUs of a run, with Ray.
        memory: Gigabytes reserved for a run, with Ray.
        address: Ray cluster to use.
        retries: How often a run whose process died is resumed, with Ray.
        name: Name of the comparison's folder.
        folder: Folder of all comparisons.

    Returns:
        The numbers, the verdicts, figures, and :meth:`Comparison.write` for the files.

    Raises:
        UserError: If something does not fit, or another thread executes a run.
        Interrupted: If a signal stopped the runs; ``resume`` goes on.
    """
    asked = dict(locals())
    given = {key: value for key, value in asked.items() if key in CompareConfig.__dataclass_fields__}
    wanted = CompareConfig(**given | {"variants": None, "grid": (), "seeds": _seeds(seeds)})
    if isinstance(what, RunConfig) or resume:
        return _execute(what, wanted, variants, grid)
    unused = next((key for key in _OF_EXECUTION if asked[key] not in (None, False, ())), None)
    if unused:
        raise UserError(
            f"{unused} goes with runs to execute: give a RunConfig first, such as "
            "flsel.compare(flsel.RunConfig(rounds=50), ['Uniform', 'PowD'], seeds=5), or resume=True."
        )
    return _judge(what, wanted)


def _execute(what: Any, wanted: CompareConfig, variants: Variants | None, grid: Any) -> Comparison:
    """Execute a new comparison, or what is left of one."""
    place = None if isinstance(what, RunConfig) else _comparison_folder(what)
    base = what.to_dict() if place is None else read_declaration(place)[0].config
    made, models = ([], list[Any]()) if variants is None else make_variants(variants, base)
    scenarios, others = make_scenarios(grid) if grid else ([], [])
    known = [what.model] if isinstance(what, RunConfig) else getattr(what, "models", ())
    models += [*others, *known]
    command = f"flsel.compare: {', '.join(variant.name for variant in made) or 'resumed'}"
    more, executor = comparing.Additions(made, scenarios), executor_for(wanted.resources)
    with single_run(), model_object.at_hand(models):
        if isinstance(what, RunConfig):
            found = comparing.start_comparison(what, wanted, command, executor, more)
        else:
            found = comparing.resume_comparison(_comparison_folder(what), wanted, command, executor, more)
    return replace(found, models=tuple(models))


def _comparison_folder(what: Any) -> Path:
    place = what.folder if isinstance(what, Comparison) else what
    if not isinstance(place, str | PathLike) or not (home(place) / FILE).is_file():
        raise UserError(f"resume takes a comparison or its folder, got {shown(what)}.")
    return home(place)


def _judge(what: Any, wanted: CompareConfig) -> Comparison:
    """Judge runs that are there."""
    if isinstance(what, Comparison) and what.folder is not None:
        what = what.folder
    if isinstance(what, str | PathLike) and (home(what) / FILE).is_file():
        return comparing.read_comparison(home(what), wanted)
    patterns = [what] if isinstance(what, str | PathLike) else what
    if isinstance(patterns, Sequence) and not patterns:
        raise UserError("there are no runs to compare: name their folders.")
    if not isinstance(patterns, Sequence) or not all(isinstance(found, str | PathLike) for found in patterns):
        raise UserError(
            f"compare takes a RunConfig and variants to execute, or runs (results or their folders), got "
            f"{shown(what)}."
        )
    return comparing.compare_runs([fspath(pattern) for pattern in patterns], wanted)


def _seeds(seeds: Any) -> Any:
    """Write seeds as the command line has them; leave what are none alone."""
    if isinstance(seeds, list | tuple | range):
        # One number alone would be the count of seeds.
        return f"{seeds[0]}..{seeds[0]}" if len(seeds) == 1 else ",".join(map(str, seeds))
    return str(seeds) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
