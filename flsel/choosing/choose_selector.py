"""``flsel.choose``: races from Python."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from flsel.arguments import settings_of, shown
from flsel.choosing.choice import Choice, read_choice
from flsel.choosing.choice_file import FILE
from flsel.choosing.choose_config import ChooseConfig
from flsel.choosing.run_race import resume_race, start_race
from flsel.comparison.from_python import Variants, make_variants
from flsel.config import RunConfig, model_object
from flsel.errors import UserError
from flsel.execution.choose_executor import executor_for
from flsel.execution.single_run import single_run
from flsel.files import home


def choose(
    what: RunConfig | Choice | str | PathLike[str],
    variants: Variants | None = None,
    *,
    resume: bool = False,
    **wanted: Any,
) -> Choice:
    """Find the selector for a federation by a race of all that may be used.

    ``flsel.choose(config, margin=1)`` races every selector, ``flsel.choose(config, may="labels,losses")``
    those that need no more than labels and losses. ``flsel.choose("choices/NAME")`` reads a race, and with
    ``resume=True`` runs what is left of it.

    Args:
        what: The runs' settings; or a race, or its folder.
        variants: What races instead of flsel's selectors, as for :func:`flsel.compare`: a list of selectors,
            or by name settings to change, or the path of a file.
        resume: Execute what is left of the race ``what``.
        wanted: The settings of :class:`flsel.choosing.choose_config.ChooseConfig`, such as ``margin``.

    Returns:
        The choice: ``print(choice.headline)``, ``choice.results``, ``choice.best``, ``choice.write()``.

    Raises:
        UserError: If something does not fit, or another thread executes a run.
        Interrupted: If a signal stopped the runs; ``resume`` goes on.
    """
    asked = settings_of(ChooseConfig, wanted, "choose")
    executor = executor_for(asked.resources)
    if isinstance(what, RunConfig):
        made, models = ([], list[Any]()) if variants is None else make_variants(variants, what.to_dict())
        with single_run(), model_object.at_hand([*models, what.model]):
            return Choice(*start_race(what, asked, "flsel.choose", executor, made))
    place = what.folder if isinstance(what, Choice) else what
    if not isinstance(place, str | PathLike) or not (home(place) / FILE).is_file():
        raise UserError(f"choose takes a RunConfig, or a race or its folder, got {shown(what)}.")
    folder = Path(home(place))
    if resume:
        with single_run():
            return Choice(*resume_race(folder, executor))
    return read_choice(folder)
