"""A trial as Ray Tune runs it: one step is the way to the next report."""

from __future__ import annotations

import gc
import logging
from typing import Any

from flsel.data.population import Source
from flsel_tune.guard import die_of_sigterm
from flsel_tune.lean import defer
from flsel_tune.shared import Packed, unpack
from flsel_tune.trial import SweepJob, Trial, attempt, build_trial

# 45 MB of a trial's process, and half a second of its start, for tables of results that only a driver makes.
defer("pandas")
defer("ray.data")
defer("ray.tune.analysis.experiment_analysis", "ExperimentAnalysis")
defer("ray.tune.result_grid", "ResultGrid")
defer("ray.tune.impl.out_of_band_serialize_dataset", "out_of_band_serialize_dataset")

from ray import tune  # noqa: E402


class TrialActor(tune.Trainable):
    """Ray Tune's class trainable around :class:`flsel_tune.trial.Trial`.

    A trial keeps its own checkpoints, so a process that replaces a dead one, or another sweep's driver, only
    has to be given the same number and settings.
    """

    def setup(
        self, config: dict[str, Any], job: SweepJob | None = None, packed: Packed | None = None
    ) -> None:
        """Remember the trial; it is built by its first step, where errors can be reported."""
        assert job is not None
        die_of_sigterm()
        logging.getLogger("flsel").setLevel(logging.WARNING)
        self._job = job
        self._source: Source | None = None if packed is None else unpack(packed)
        self._trial: Trial | None = None
        self._take(config)
        # What is imported stays: the collector need not go through it again.
        gc.freeze()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take up another trial in the same process."""
        self.cleanup()
        self._take(new_config)
        # The trial before is tied in circles; without this its models wait for the collector.
        gc.collect()
        return True

    def _take(self, config: dict[str, Any]) -> None:
        self._number, self._settings = config["number"], config["settings"]

    def step(self) -> dict[str, Any]:
        """Advance to the next report."""
        if self._trial is None:
            built = build_trial(self._job, self._number, self._settings, self._source)
            if not isinstance(built, Trial):
                return built
            self._trial = built
        return attempt(self._trial)

    def cleanup(self) -> None:
        """Let others have the trial's folder."""
        if self._trial is not None:
            self._trial.close()
        self._trial = None

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
        """Keep nothing: the runs' folders hold their checkpoints."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Restore nothing, as nothing is kept."""
