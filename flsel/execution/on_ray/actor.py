"""A job as Ray Tune executes it, from report to report."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any, Protocol

from flsel.data.population import Source
from flsel.execution.on_ray.deaths import die_of_sigterm
from flsel.execution.on_ray.lazy_import import defer
from flsel.execution.on_ray.shared_data import Packed, unpack

# 45 MB of a job's process, and half a second of its start, for tables of results that only a driver makes.
defer("pandas")
defer("ray.data")
defer("ray.tune.analysis.experiment_analysis", "ExperimentAnalysis")
defer("ray.tune.result_grid", "ResultGrid")
defer("ray.tune.impl.out_of_band_serialize_dataset", "out_of_band_serialize_dataset")

from ray import tune  # noqa: E402


class ReportingJob(Protocol):
    """A job in progress. It keeps its own checkpoints, so that any process can resume it."""

    def advance(self) -> dict[str, Any]:
        """Execute up to the next report; its ``done`` says whether it is the last."""

    def close(self) -> None:
        """Let others have the job's folder."""


Begin = Callable[[int, dict[str, Any], Source | None], ReportingJob]
"""Begins or resumes a job, from its number, its settings and the dataset if all jobs share one."""


class JobActor(tune.Trainable):
    """Ray Tune's class trainable around a job's :class:`ReportingJob`."""

    def setup(self, config: dict[str, Any], begin: Begin | None = None, packed: Packed | None = None) -> None:
        """Remember the job; it is begun by the first :meth:`step`, where errors can be reported."""
        assert begin is not None
        die_of_sigterm()
        logging.getLogger("flsel").setLevel(logging.WARNING)
        self._begin = begin
        self._source: Source | None = None if packed is None else unpack(packed)
        self._job: ReportingJob | None = None
        self._take(config)
        # What is imported stays: the collector need not go through it again.
        gc.freeze()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take up another job in the same process."""
        self.cleanup()
        self._take(new_config)
        # The job before is tied in circles; without this its models wait for the collector.
        gc.collect()
        return True

    def _take(self, config: dict[str, Any]) -> None:
        self._number, self._settings = config["number"], config["settings"]

    def step(self) -> dict[str, Any]:
        """Advance to the next report."""
        if self._job is None:
            self._job = self._begin(self._number, self._settings, self._source)
        return self._job.advance()

    def cleanup(self) -> None:
        """Let others have the job's folder."""
        if self._job is not None:
            self._job.close()
        self._job = None

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
        """Keep nothing: the runs' folders hold their checkpoints."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Restore nothing, as nothing is kept."""
