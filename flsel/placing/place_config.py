"""The settings of a placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flsel.arguments import Range, UserPath, check_settings
from flsel.execution.executor import Resources, check_gpus
from flsel.files import check_folder_name


@dataclass(frozen=True)
class PlaceConfig:
    """One placement.

    Attributes:
        atlas: Atlas whose scenarios are run: ``fashion``, ``mnist``, ``sizes``, ``synthetic``, or ``time``,
            which ranks by simulated seconds to the target.
        seeds: Number of seeds, 2 to 5; null takes all that the atlas has.
        variants: YAML file of settings that are placed: by name settings to change, as for ``flsel compare``.
        objective: Local objective of all that is placed, such as ``FedProx``; null is plain training.
        max_concurrent: Largest number of runs at a time, >= 1; Ray executes more than one.
        cpus: CPUs of a run, > 0, with Ray.
        gpus: GPUs of a run, >= 0, with Ray; a fraction lets runs share one.
        memory: Gigabytes reserved for a run, > 0, or null, with Ray.
        address: Ray cluster to use, ``auto`` or host:port; null starts Ray on this machine.
        retries: How often a run is resumed after its process died, >= 0, with Ray.
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
    max_concurrent: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(above=0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0
    memory: Annotated[float | None, Range(above=0)] = None
    address: str | None = None
    retries: Annotated[int, Range(0)] = 2
    name: str | None = None
    folder: Annotated[str, UserPath()] = "placements"

    def __post_init__(self) -> None:
        check_settings(self)
        check_gpus(self.gpus)
        check_folder_name("name", self.name)

    @property
    def resources(self) -> Resources | None:
        """What runs may use on Ray; None where this process executes them."""
        return Resources.asked(self)
