"""The settings of a race among selectors, beside those of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flsel.arguments import Range, UserPath
from flsel.choosing.race import DEFAULT_MAX_SEEDS, FIRST_LOOK
from flsel.comparison.judging.settings import check_decides
from flsel.errors import UserError
from flsel.execution.executor import ExecutionSettings
from flsel.files import check_folder_name
from flsel.selector import Need

ACCURACY = "accuracy"
DEFAULT_MARGIN, DEFAULT_RATIO = 1.0, 1.1
MOST_SEEDS = 1000


@dataclass(frozen=True)
class ChooseConfig(ExecutionSettings):
    """One race.

    Attributes:
        selectors: Selectors that race, with arguments after colons: ``Uniform,PowD:d=12``; null is every
            selector of flsel, and the config's own with the config's arguments.
        variants: YAML file with more that race: by name settings to change, such as an objective or
            ``time.over_selection``, or the path of a config such as a sweep's ``best.yaml``.
        may: What the server may know and ask, separated by commas: ``labels``, ``own_loss``, ``head``,
            ``deltas``, ``losses``, ``shadow``, ``server_loss``, ``gradients``, ``noise_outputs``,
            ``true_models``, ``durations``, ``squared_loss``; or ``nothing``. Null is all that the config can
            answer.
        margin: Difference that does not matter, > 0: in points of accuracy, where null is 1, or in the unit
            of the runs' ``evaluation.score``.
        margin_ratio: If a cost decides, the ratio of two costs that does not matter, in (1, 10]; null is 1.1.
        decides: What is decided: ``accuracy``, which stands for the runs' score, or the cost to ``target``:
            ``rounds``, ``models``, ``bytes``, ``bytes_down``, ``bytes_up``, ``trainings``, ``seconds`` or
            ``simulated_seconds``.
        target: Test accuracy to reach, in (0, 1], or other score of the runs; null is the run's
            ``evaluation.target``.
        last: Number of evaluations in the mean at the end, and in the running mean to the target, >= 1.
        max_seeds: Largest number of seeds, 3 to 1000.
        name: Name of the race's folder; null makes one of the dataset.
        folder: Folder of all races.

    Raises:
        UserError: If a value is out of range, or two do not go together.
    """

    selectors: str | None = None
    variants: Annotated[str | None, UserPath()] = None
    may: str | None = None
    margin: Annotated[float | None, Range(above=0, high=100)] = None
    margin_ratio: Annotated[float | None, Range(above=1, high=10)] = None
    decides: str = ACCURACY
    target: Annotated[float | None, Range()] = None
    last: Annotated[int, Range(1)] = 10
    max_seeds: Annotated[int, Range(FIRST_LOOK, MOST_SEEDS)] = DEFAULT_MAX_SEEDS
    name: str | None = None
    folder: Annotated[str, UserPath()] = "choices"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_folder_name("name", self.name)
        read_may(self.may)
        check_decides(self.decides)
        if self.decides == ACCURACY and self.margin_ratio is not None:
            raise UserError(
                f"margin_ratio must be given with a cost that decides, got {self.margin_ratio:g}: add "
                "--decides rounds, or give --margin POINTS."
            )
        if self.decides != ACCURACY and self.margin is not None:
            raise UserError(
                f"margin is a difference of scores, and {self.decides} decide: give --margin_ratio, such as "
                f"1.1, got margin {self.margin:g}."
            )


def read_may(text: str | None) -> Need | None:
    """Read what the server may know: names of needs separated by commas, or ``nothing``; None is everything.

    Raises:
        UserError: If a name is none.
    """
    if text is None:
        return None
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if words == ["nothing"]:
        return Need.NONE
    if "nothing" in words:
        raise UserError(f"may must be nothing alone, or what the server may know, got {text!r}.")
    known = {str(need.name).lower(): need for need in Need if need.name != "NONE"}
    for word in words or [text]:
        if word not in known:
            raise UserError(f"may must be nothing, or some of {', '.join(known)}, got {word!r}.")
    found = Need.NONE
    for word in words:
        found |= known[word]
    return found


def needs_in_words(needs: Need) -> str:
    """Return the names of needs as ``may`` takes them; ``nothing`` where there are none."""
    names = [str(need.name).lower() for need in Need if need.name != "NONE" and need in needs]
    return ", ".join(names) or "nothing"
