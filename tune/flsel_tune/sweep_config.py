"""The settings of a sweep, beside those of its runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from flsel.arguments import Range, UserPath, check_settings
from flsel.errors import UserError, located, meant
from flsel.execution.executor import Resources, check_gpus
from flsel.files import check_folder_name, home
from flsel.files.yaml import read_yaml

Sampler = Literal["tpe", "cmaes", "gp", "random", "grid"]
Scheduler = Literal["asha", "median", "none"]
# Settings that say how a sweep is run, not what it finds; a resumed sweep may change them.
CHANGEABLE = ("trials", "max_concurrent", "gpus", "memory", "address", "retries")


def read_sweep_file(path: str) -> dict[str, Any]:
    """Read a file of a sweep's settings; values may still be texts.

    Raises:
        UserError: If it is unreadable, or has a key that is no setting.
    """
    known = [each.name for each in fields(SweepConfig)]
    with located(path):
        loaded = read_yaml(home(path))
        for key in loaded:
            if key not in known:
                raise UserError(f"there is no setting {key} of a sweep{meant(str(key), known)}")
    return {str(key): value for key, value in loaded.items()}


@dataclass(frozen=True)
class SweepConfig:
    """One sweep.

    Attributes:
        space: YAML file of the search space, a name that ``flsel configs`` lists, or ``auto``: the shipped
            space of the selector, or the ranges that a class without one declares.
        trials: Number of settings to try, 1 to 10^6; a resumed sweep counts the earlier trials, too.
        metric: What to optimise, over the validation set: null is the run's score (``evaluation.score``)
            there. ``validation/accuracy`` (its last value), ``best(validation/loss)``,
            ``auc(validation/accuracy)`` (mean over the rounds),
            ``rounds_to(validation/accuracy, 0.7)``, with devices ``seconds_to(validation/accuracy, 0.7)``,
            or any other column of ``metrics.csv``. Several, separated by commas, are optimised together.
        mode: ``max``, ``min`` or ``auto``, which maximises accuracies and minimises losses, rounds, costs and
            seconds; one for all metrics or, separated by commas, one for each.
        sampler: Method that suggests settings: ``tpe``, ``cmaes`` (numbers only), ``gp``, ``random`` or
            ``grid``.
        scheduler: Method that stops bad trials early: ``asha``, ``median`` or ``none``.
        grace_rounds: Communication rounds before a trial may be stopped, >= 1; null is a fifth of the rounds.
        reduction: At each rung ASHA keeps one of this many trials, >= 2.
        seeds: Every trial runs with each of these seeds, and their mean counts; null is the run's seed.
        max_concurrent: Largest number of trials at a time, >= 1; null is as many as the cluster can take.
        cpus: CPUs of a trial, > 0; torch uses as many threads, at least one.
        gpus: GPUs of a trial, >= 0; a fraction lets trials share one.
        memory: Gigabytes reserved for a trial, > 0, or null. Fewer trials start, but a trial may use more.
        address: Ray cluster to use, ``auto`` or host:port; null starts Ray on this machine.
        retries: How often a trial is resumed after its process died, >= 0.
        report_every: Communication rounds between reports, >= 1; null reports about fifty times.
        start_from: Folder of another sweep. A new sweep starts with those of its finished trials that it
            could have tried itself, and runs ``trials`` more. ``--from`` is the same.
        name: Name of the sweep's folder; null makes one of dataset and selector. ``--output.name`` is the
            same.
        folder: Folder of all sweeps; on a cluster it must be shared. ``--output.dir`` is the same.

    Raises:
        UserError: If a value is out of range.
    """

    space: Annotated[str, UserPath()] = "auto"
    trials: Annotated[int, Range(1, 10**6, seconds=1.0)] = 32
    metric: str | None = None
    mode: str = "auto"
    sampler: Sampler = "tpe"
    scheduler: Scheduler = "asha"
    grace_rounds: Annotated[int | None, Range(1)] = None
    reduction: Annotated[int, Range(2)] = 3
    seeds: Annotated[tuple[int, ...] | None, Range(0)] = None
    max_concurrent: Annotated[int | None, Range(1)] = None
    cpus: Annotated[float, Range(above=0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0
    memory: Annotated[float | None, Range(above=0)] = None
    address: str | None = None
    retries: Annotated[int, Range(0)] = 2
    report_every: Annotated[int | None, Range(1)] = None
    start_from: Annotated[str | None, UserPath()] = None
    name: str | None = None
    folder: Annotated[str, UserPath()] = "sweeps"

    def __post_init__(self) -> None:
        check_settings(self)
        if self.seeds is not None and len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds must differ from one another, got {list(self.seeds)}.")
        check_gpus(self.gpus)
        check_folder_name("name", self.name)

    @property
    def resources(self) -> Resources:
        """What trials may use on Ray."""
        return Resources.of(self)
