"""Comparisons from Python: ``flsel.compare``, and variants and scenarios that are made of objects."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import nn

from flsel.arguments import Checked, arguments, settings_of, shown
from flsel.arguments.spec import plain
from flsel.comparison import compare as comparing
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.comparison import Comparison
from flsel.comparison.comparison_file import read_declaration
from flsel.comparison.grid import FILE, Scenario, Variant
from flsel.comparison.parse_variants import (
    from_config,
    make_variant,
    read_grid,
    read_selectors,
    read_variants,
    scenarios_of,
)
from flsel.config import RunConfig, model_object
from flsel.config.layers import by_key
from flsel.errors import UserError
from flsel.execution.choose_executor import executor_for
from flsel.execution.single_run import single_run
from flsel.files import home
from flsel.selector import Selector

_OF_EXECUTION = (
    "variants", "selectors", "seeds", "grid", "until_decided", "decides", "max_seeds", "budget",
    "each_scenario",
)  # fmt: skip


def compare(
    what: RunConfig | Comparison | str | PathLike[str] | Sequence[str | PathLike[str]],
    variants: Variants | None = None,
    *,
    seeds: int | str | Sequence[int] | None = None,
    grid: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    resume: bool = False,
    **wanted: Any,
) -> Comparison:
    """Compare variants over seeds and scenarios: execute them, or judge runs that are there.

    ``flsel.compare(config, [Uniform(), PowD(d=12)], seeds=5)`` executes runs.
    ``flsel.compare([result, other])`` and ``flsel.compare("runs/*")`` judge runs, and
    ``flsel.compare("comparisons/NAME")`` judges a comparison again.

    Args:
        what: The runs' settings, where runs are executed; or runs, as :class:`flsel.Result` or by their
            folders (``*`` allowed); or a comparison, or its folder.
        variants: What is compared, where runs are executed: a list of selectors, or of texts such as
            ``PowD:d=12``; or by name a selector, a mapping of settings to change (nested or by dotted key,
            values may be objects), a :class:`flsel.RunConfig`, or the path of a config; or a file of them.
        seeds: A number of seeds (5 is 1 to 5), a list of them, or a text such as ``1..10``; None is the
            config's own.
        grid: Scenarios: by key a list of values, ``{"availability": [IDL(), LN()]}``; all combinations.
        resume: Execute what is left of the comparison ``what``, and what is added to it.
        wanted: The settings of :class:`flsel.comparison.compare_config.CompareConfig`, which says what each
            means and may be, such as ``target``, ``cost``, ``margin``, ``until_decided`` or ``name``.

    Returns:
        The numbers, the verdicts, figures, and :meth:`Comparison.write` for the files.

    Raises:
        UserError: If something does not fit, or another thread executes a run.
        Interrupted: If a signal stopped the runs; ``resume`` goes on.
    """
    settings = settings_of(CompareConfig, wanted | {"seeds": _seeds(seeds)}, "compare")
    if isinstance(what, RunConfig) or resume:
        return _execute(what, settings, variants, grid)
    asked = wanted | {"variants": variants, "seeds": seeds, "grid": grid}
    unused = next((key for key in _OF_EXECUTION if asked.get(key) not in (None, False, ())), None)
    if unused:
        raise UserError(
            f"{unused} goes with runs to execute: give a RunConfig first, such as "
            "flsel.compare(flsel.RunConfig(rounds=50), ['Uniform', 'PowD'], seeds=5), or resume=True."
        )
    return _judge(what, settings)


def _execute(what: Any, wanted: CompareConfig, variants: Variants | None, grid: Any) -> Comparison:
    """Execute a new comparison, or what is left of one."""
    place = None if isinstance(what, RunConfig) else _comparison_folder(what)
    base = what.to_dict() if place is None else read_declaration(place)[0].config
    made, models = ([], list[Any]()) if variants is None else make_variants(variants, base)
    scenarios, others = make_scenarios(grid) if grid else ([], [])
    known = [what.model] if isinstance(what, RunConfig) else getattr(what, "models", ())
    models += [*others, *known]
    command = f"flsel.compare: {', '.join(variant.name for variant in made) or 'resumed'}"
    more, executor = (made, scenarios), executor_for(wanted.resources)
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


Variants = str | Sequence[Any] | Mapping[str, Any]
"""A file of variants, selectors or texts such as ``PowD:d=12``, or by name also settings or configs."""
_RULE = "a selector, a text such as 'PowD:d=12', a mapping of settings, a RunConfig or the path of a config"


def make_variants(given: Variants, base: Mapping[str, Any]) -> tuple[list[Variant], list[Any]]:
    """Make variants.

    Returns:
        The variants, and the model objects among their settings.

    Raises:
        UserError: If something is none, or has the name of another.
    """
    if isinstance(given, str):
        file = given.endswith((".yaml", ".yml"))
        return (read_variants(given, base) if file else read_selectors(given)), []
    if isinstance(given, Mapping):
        named = list(given.items())
    elif isinstance(given, Sequence):
        named = [(_name(item), item) for item in given]
    else:
        raise UserError(f"variants must be a list or a mapping by name, got {shown(given)}.")
    models = [model for _, entry in named for model in _models(entry)]
    return [_variant(name, entry, base) for name, entry in named], models


def make_scenarios(grid: Sequence[str] | Mapping[str, Sequence[Any]]) -> tuple[list[Scenario], list[Any]]:
    """Make the scenarios of a grid.

    Args:
        grid: By key a list of values, which may be objects, or texts as on the command line.

    Returns:
        The scenarios, and the model objects among their settings.

    Raises:
        UserError: If it is malformed.
    """
    if not isinstance(grid, Mapping):
        if isinstance(grid, str) or not all(isinstance(text, str) for text in grid):
            raise UserError(f"grid must be a mapping from keys to lists of values, got {shown(grid)}.")
        return read_grid(grid), []
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UserError(f"grid {key} must be a list of values, got {shown(values)}.")
    axes = [(key, [(called(v), _plain(key, v)) for v in values]) for key, values in grid.items()]
    return scenarios_of(axes), [model for values in grid.values() for v in values for model in _models(v)]


def _variant(name: Any, entry: Any, base: Mapping[str, Any]) -> Variant:
    if isinstance(entry, RunConfig):
        return from_config(str(name), entry.to_dict(), base, str(name))
    if isinstance(entry, str) and not entry.endswith((".yaml", ".yml")):
        (read,) = read_selectors(entry)
        return Variant(str(name), read.changes)
    if _is_selector(entry):
        entry = {"selector": entry}
    if not isinstance(entry, Mapping | str):
        raise UserError(f"variants: {name} must be {_RULE}, got {shown(entry)}.")
    if isinstance(entry, Mapping):
        entry = {key: _plain(key, value) for key, value in by_key(entry).items()}
    return make_variant(name, entry, "variants", Path(), base)


def _is_selector(value: Any) -> bool:
    return isinstance(value, Selector) or (inspect.isclass(value) and issubclass(value, Selector))


def _name(item: Any) -> str:
    if isinstance(item, str):
        return Path(item).stem if item.endswith((".yaml", ".yml")) else item
    if not _is_selector(item):
        raise UserError(
            f"variants must be selectors or texts such as 'PowD:d=12' in a list, got {shown(item)}; give "
            "others by name, as in {'more steps': {'local.steps': 20}}."
        )
    return called(item)


def called(value: Any) -> str:
    """Return what tables call a value: a class with the arguments that are not its defaults."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(value.__name__)
    if isinstance(value, nn.Module):
        return type(value).__name__
    if not isinstance(value, Checked):
        return str(value)
    made: Any = type(value)
    own = [
        f"{name}={called(getattr(value, name))}"
        for name, argument in arguments(made).items()
        if argument.default is MISSING or getattr(value, name) != argument.default
    ]
    return ":".join([made.__name__, *own])


def _plain(key: str, value: Any) -> Any:
    """Write a setting as a file has it; a class stands for itself with its defaults."""
    if key == "model":
        value = model_object.described(value) or value
    if inspect.isclass(value) and issubclass(value, Checked):
        value = value()
    return plain(value, key)


def _models(entry: Any) -> list[Any]:
    if isinstance(entry, RunConfig):
        return [entry.model]
    if isinstance(entry, Mapping) and "model" in entry:
        return [entry["model"]]
    return [entry] if isinstance(entry, nn.Module) else []
