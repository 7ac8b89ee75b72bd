"""The settings of a comparison, beside those of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flsel.arguments import Range, check
from flsel.comparison.beside import check_gpus
from flsel.comparison.gather import Mismatch
from flsel.files import check_folder_name


@dataclass(frozen=True)
class CompareConfig:
    """One comparison.

    Attributes:
        selectors: What is compared, with arguments behind colons: ``Uniform,PowD:d=12,HiCS``.
        variants: YAML file of variants: by name, settings to change or the path of a config such as a sweep's
            ``best.yaml``.
        seeds: Seeds: ``5`` is 1 to 5, ``1..10`` a range, ``1,2,7`` a list; null is the run's seed.
        grid: Settings around, ``KEY=VALUE,VALUE``; may be repeated, and all combinations are played.
        baseline: The variant that the others are compared with; null is Uniform, or the first.
        target: Test accuracy to reach, in (0, 1]; null is the run's ``evaluation.target``, and without one it
            is chosen from the baseline's runs, which the report says.
        last: Evaluations in the mean at the end and in the running mean to the target, >= 1; null is 10, or
            what a resumed comparison has.
        mismatch: What becomes of existing runs that do not fit: ``refuse``, ``drop`` (listed, not counted) or
            ``unpaired``.
        max_concurrent: Most runs at a time, >= 1; more than one are played by Ray.
        cpus: CPUs of a run, > 0, with Ray.
        gpus: GPUs of a run, >= 0, with Ray; a fraction lets runs share one.
        memory: Gigabytes reserved for a run, > 0, or null, with Ray.
        address: Ray cluster to use, ``auto`` or host:port; null starts Ray on this machine.
        retries: How often a run whose process died is resumed, >= 0, with Ray.
        name: Name of the comparison's folder; null makes one of dataset and variants.
        folder: Folder of all comparisons.

    Raises:
        UserError: If a value is out of range.
    """

    selectors: str | None = None
    variants: str | None = None
    seeds: str | None = None
    grid: tuple[str, ...] = ()
    baseline: str | None = None
    target: Annotated[float | None, Range(above=0, high=1)] = None
    last: Annotated[int | None, Range(1)] = None
    mismatch: Mismatch = "refuse"
    max_concurrent: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(above=0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0
    memory: Annotated[float | None, Range(above=0)] = None
    address: str | None = None
    retries: Annotated[int, Range(0)] = 2
    name: str | None = None
    folder: str = "comparisons"

    def __post_init__(self) -> None:
        check(type(self), vars(self))
        check_gpus(self.gpus)
        check_folder_name("name", self.name)

    @property
    def parallel(self) -> bool:
        """Whether Ray plays the runs."""
        return self.max_concurrent > 1 or self.gpus > 0 or self.address is not None
