"""The settings of a placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flsel.arguments import Range, UserPath
from flsel.execution.executor import ExecutionSettings
from flsel.files import check_folder_name


@dataclass(frozen=True)
class PlaceConfig(ExecutionSettings):
    """One placement.

    Attributes:
        atlas: Atlas whose scenarios are run: ``fashion``, ``mnist``, ``sizes``, ``synthetic``, or ``time``,
            which ranks by simulated seconds to the target.
        seeds: Number of seeds, 2 to 5; null takes all that the atlas has.
        variants: YAML file of settings that are placed: by name settings to change, as for ``flsel compare``.
        objective: Local objective of all that is placed, such as ``FedProx``; null is plain training.
        name: Name of the placement's folder; null makes one of the selector and the atlas. A placement that
            was stopped is continued by the same command.
        folder: Folder of all placements.

    Raises:
        UserError: If a value is out of range.
    """

    atlas: str = "synthetic"
    seeds: Annotated[int | None, Range(2, 5)] = None
    variants: Annotated[str | None, UserPath()] = None
    objective: str | None = None
    name: str | None = None
    folder: Annotated[str, UserPath()] = "placements"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_folder_name("name", self.name)
