"""The settings of a comparison, beside those of its runs, and the budget that they give to all runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from flsel.arguments import UserPath
from flsel.comparison.judging.deciding import LIMITS
from flsel.comparison.judging.formatting import BYTES, TIMES
from flsel.comparison.judging.settings import JudgingSettings
from flsel.comparison.load_runs import Mismatch, Pick
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.execution.executor import ExecutionSettings
from flsel.files import check_folder_name


@dataclass(frozen=True)
class CompareConfig(ExecutionSettings, JudgingSettings):
    """One comparison: what is compared, how it is judged, and where it runs.

    Attributes:
        selectors: Selectors to compare, with arguments after colons: ``Uniform,PowD:d=12,HiCS``.
        variants: YAML file that gives each variant a name, and settings to change or the path of a config
            such as a sweep's ``best.yaml``.
        seeds: Seeds of the runs: ``5`` is 1 to 5, ``1..10`` a range, ``1,2,7`` a list; null is the
            run's seed.
        grid: Settings that vary: ``KEY=VALUE,VALUE``. May be repeated. Every combination is a scenario.
        pick: Run to take if existing runs have the same settings and seed: ``newest`` or ``oldest``; null
            refuses them by name.
        budget: Amount of the cost that decides (or of ``cost``) at which every run ends, such as ``2GB`` or
            ``6h``: a run that does not arrive has then spent as much as the others; null ends runs by their
            rounds.
        mismatch: What to do with existing runs that do not fit: ``refuse`` them, ``drop`` them (listed, not
            counted), or compare them ``unpaired``.
        name: Name of the comparison's folder; null makes one of dataset and variants. ``--output.name`` is
            the same.
        folder: Folder of all comparisons. ``--output.dir`` is the same.

    Raises:
        UserError: If a value is out of range.
    """

    selectors: str | None = None
    variants: Annotated[str | None, UserPath()] = None
    seeds: str | None = None
    grid: tuple[str, ...] = ()
    budget: str | None = None
    mismatch: Mismatch = "refuse"
    pick: Pick | None = None
    name: str | None = None
    folder: Annotated[str, UserPath()] = "comparisons"

    def __post_init__(self) -> None:
        ExecutionSettings.__post_init__(self)
        self.check()
        check_folder_name("name", self.name)
        if self.until_decided and self.seeds is not None:
            raise UserError(
                "seeds must not be given with until_decided, which runs seeds 1, 2, ... up to max_seeds; "
                f"got {self.seeds}."
            )


def with_budget(config: RunConfig, budget: str | None, cost: str) -> RunConfig:
    """Return settings of runs that end when a budget is spent; None changes nothing.

    A run ends with the round in which it has spent as much, so that its total may be a round's cost larger.

    Args:
        config: The settings.
        budget: The budget, with a unit of bytes or of time where its cost has one.
        cost: The cost that decides, or that verdicts are about.

    Raises:
        UserError: If it is no amount of a cost that runs can be limited in.
    """
    if budget is None:
        return config
    setting = LIMITS.get(cost)
    if setting is None:
        raise UserError(f"budget goes with a cost of {', '.join(LIMITS)}, got {budget} of {cost}.")
    amount = _amount(budget, cost)
    if setting == "time.stop_after_seconds":
        return replace(config, time=replace(config.time, stop_after_seconds=float(amount)))
    changes: Any = {setting: int(amount)}
    return replace(config, **changes)


def _amount(text: str, cost: str) -> float:
    known = BYTES if cost.startswith("bytes") else TIMES if cost == "simulated_seconds" else {}
    units = {"": 1, **known}
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-zA-Z]*)\s*", text)
    amount = float(match[1]) * units.get(match[2], 0) if match else 0.0
    if amount < 1:
        like = f" with a unit of {', '.join(known)}" if known else ""
        raise UserError(f"budget must be a number >= 1{like}, of {cost.replace('_', ' ')}, got {text!r}.")
    return amount
