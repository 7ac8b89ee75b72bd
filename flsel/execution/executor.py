"""Interface of executors: this process, or Ray. A comparison gets an executor and treats both alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Protocol

from flsel.arguments import Range, check_settings
from flsel.config import RunConfig
from flsel.data.population import Source
from flsel.data.sources import load_source
from flsel.errors import UserError
from flsel.execution.job import Job


@dataclass(frozen=True)
class Listener:
    """Callbacks for what happens to jobs.

    Attributes:
        ended: Called with every job that ended: complete, diverged or failed.
        advanced: Called with the communication rounds by which a job has advanced.
    """

    ended: Callable[[Job], None]
    advanced: Callable[[int], None]


class Executor(Protocol):
    """Executes jobs until each is complete, diverged or failed."""

    def ready(self, shared: Source | None) -> AbstractContextManager[None]:
        """Have room for a job within the block.

        Args:
            shared: The dataset of all jobs, if they have the same.

        Raises:
            UserError: If there is no room for a job.
        """

    def execute(self, jobs: Sequence[Job], folder: Path, listener: Listener) -> None:
        """Execute jobs, within the block of :meth:`ready`.

        Args:
            jobs: The jobs; those that are complete or diverged must not be among them.
            folder: A folder that holds all of theirs.
            listener: Told what happens to them.

        Raises:
            UserError: If a file cannot be written.
            Interrupted: If a signal came; the jobs can be resumed.
        """


@dataclass(frozen=True)
class Resources:
    """What an executor on Ray may use.

    Attributes:
        cpus: CPUs of a job, > 0.
        gpus: GPUs of a job, >= 0; a fraction lets jobs share one.
        memory: Gigabytes reserved for a job, or None.
        address: Ray cluster to use, ``auto`` or host:port; None starts Ray on this machine.
        max_concurrent: Most jobs at a time; None is what the cluster has room for.
        retries: How often a job whose process died is resumed.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory: float | None = None
    address: str | None = None
    max_concurrent: int | None = None
    retries: int = 2

    @classmethod
    def of(cls, settings: object) -> Resources:
        """Return those that a command's settings name alike."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    @classmethod
    def asked(cls, settings: object) -> Resources | None:
        """Return :meth:`of`; None where this process executes the runs, since nothing is asked."""
        found = cls.of(settings)
        return None if found.max_concurrent == 1 and not found.gpus and found.address is None else found

    def fit(self, config: RunConfig) -> RunConfig:
        """Fit the settings of a run to a process of Ray's: one device, and as many threads as CPUs.

        Raises:
            UserError: If the run asks for processes of its own.
        """
        if config.local.workers > 1:
            raise UserError(
                f"local.workers must be 1 where Ray executes runs, got {config.local.workers}: max_concurrent"
                " says how many run at a time, and cpus how many threads each has."
            )
        # Ray hides the other runs' GPUs, but hides none from a run that asks for none.
        accelerator = "cpu" if self.gpus == 0 else config.accelerator
        threads = config.threads or max(1, int(self.cpus))
        return replace(config, accelerator=accelerator, device=0, threads=threads)


def check_gpus(gpus: float) -> None:
    """Refuse a part of several GPUs, which Ray does not hand out.

    Raises:
        UserError: If it is one.
    """
    if gpus > 1 and gpus != int(gpus):
        raise UserError(f"gpus must be a whole number or below 1, got {gpus:g}.")


@dataclass(frozen=True)
class ExecutionSettings:
    """How a command executes its runs.

    Attributes:
        max_concurrent: Largest number of runs at a time, >= 1; Ray executes more than one.
        cpus: CPUs of a run, > 0, with Ray.
        gpus: GPUs of a run, >= 0, with Ray; a fraction lets runs share one.
        memory: Gigabytes reserved for a run, > 0, or null, with Ray.
        address: Ray cluster to use, ``auto`` or host:port; null starts Ray on this machine.
        retries: How often a run is resumed after its process died, >= 0, with Ray.

    Raises:
        UserError: If a value is out of range.
    """

    max_concurrent: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(above=0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0
    memory: Annotated[float | None, Range(above=0)] = None
    address: str | None = None
    retries: Annotated[int, Range(0)] = 2

    def __post_init__(self) -> None:
        check_settings(self)
        check_gpus(self.gpus)

    @property
    def resources(self) -> Resources | None:
        """What runs may use on Ray; None where this process executes them."""
        return Resources.asked(self)


class Sources:
    """The last dataset that was loaded, kept while jobs use the same one."""

    def __init__(self) -> None:
        self._key: object = None
        self._source: Source | None = None

    def get(self, config: RunConfig) -> Source:
        """Load a run's dataset; a generated one depends on the seed.

        Raises:
            UserError: If it is missing, unreadable or malformed.
        """
        key = (config.data, config.clients, config.seed if config.data.name == "synthetic" else None)
        if self._source is None or key != self._key:
            self._source = load_source(config.data, clients=config.clients, seed=config.seed)
            self._key = key
        return self._source
