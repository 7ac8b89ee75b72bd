"""The settings of a comparison, beside those of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flsel.arguments import Range, UserPath
from flsel.comparison.judging.settings import JudgingSettings
from flsel.comparison.load_runs import Mismatch, Pick
from flsel.errors import UserError
from flsel.execution.executor import Resources, check_gpus
from flsel.files import check_folder_name


@dataclass(frozen=True)
class CompareConfig(JudgingSettings):
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
        max_concurrent: Largest number of runs at a time, >= 1; Ray executes more than one.
        cpus: CPUs of a run, > 0, with Ray.
        gpus: GPUs of a run, >= 0, with Ray; a fraction lets runs share one.
        memory: Gigabytes reserved for a run, > 0, or null, with Ray.
        address: Ray cluster to use, ``auto`` or host:port; null starts Ray on this machine.
        retries: How often a run is resumed after its process died, >= 0, with Ray.
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
    max_concurrent: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(above=0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0
    memory: Annotated[float | None, Range(above=0)] = None
    address: str | None = None
    retries: Annotated[int, Range(0)] = 2
    name: str | None = None
    folder: Annotated[str, UserPath()] = "comparisons"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gpus(self.gpus)
        check_folder_name("name", self.name)
        if self.until_decided and self.seeds is not None:
            raise UserError(
                "seeds must not be given with until_decided, which runs seeds 1, 2, ... up to max_seeds; "
                f"got {self.seeds}."
            )

    @property
    def resources(self) -> Resources | None:
        """What runs may use on Ray; None where this process executes them."""
        return Resources.asked(self)
