"""Ray Tune's loop over jobs, started again with fewer at a time where memory does not suffice."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import OutOfMemoryError

from flsel.errors import UserError, machine_failed, sentence
from flsel.execution.executor import Resources
from flsel.execution.on_ray.actor import Begin, JobActor
from flsel.execution.on_ray.cluster_cleanup import resume_advice
from flsel.execution.on_ray.dispatcher import Dispatcher, Reports, Stopper, Workload
from flsel.execution.on_ray.shared_data import Packed

_LOG = logging.getLogger("flsel")


def execute_with_tune(
    workload: Workload, begin: Begin, packed: Packed | None, folder: Path, resources: Resources
) -> None:
    """Execute jobs until all have ended or Ctrl-C comes; :func:`resume_by` was told how to resume them.

    Args:
        workload: The jobs.
        begin: Begins or resumes a job, in a process of Ray's.
        packed: The dataset of all jobs, if they have the same.
        folder: A folder that holds the folders of all jobs.
        resources: How many jobs at a time, and what each needs.

    Raises:
        UserError: If the memory does not suffice for a single job, or the disk for their records.
    """
    dispatcher = Dispatcher(workload, resources.retries)
    while True:
        try:
            _tuner(dispatcher, begin, packed, folder, resources).fit()
            return dispatcher.finish()
        except RuntimeError as error:
            # Ray's memory monitor kills a process with an error that its own loop does not know.
            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
            running = dispatcher.running
            if dispatcher.restart():
                _LOG.warning("out of memory: runs that shared a process go on one by one")
                continue
            if resources.max_concurrent == 1:
                raise UserError(
                    "the machine has too little memory for a single job: lower local.chunk or the model's "
                    f"size, or go elsewhere; {resume_advice()}."
                ) from error
            most = max(1, min(resources.max_concurrent or running, running) - 1)
            _LOG.warning("out of memory: the jobs go on with max_concurrent %d", most)
            resources = replace(resources, max_concurrent=most)
        except OSError as error:
            if not machine_failed(error):
                raise
            then = f"Once that is mended, {resume_advice()}"
            raise UserError(f"{folder} cannot be written: {sentence(error)} {then}") from error
        finally:
            shutil.rmtree(folder / ".ray", ignore_errors=True)


def _tuner(
    dispatcher: Dispatcher, begin: Begin, packed: Packed | None, folder: Path, resources: Resources
) -> tune.Tuner:
    needs = {"cpu": resources.cpus, "gpu": resources.gpus}
    if resources.memory:
        needs["memory"] = resources.memory * 2**30
    actor = tune.with_parameters(JobActor, begin=begin, packed=packed)
    return tune.Tuner(
        tune.with_resources(actor, needs),
        tune_config=tune.TuneConfig(
            search_alg=dispatcher,
            scheduler=Stopper(dispatcher),
            num_samples=-1,
            max_concurrent_trials=resources.max_concurrent,
            reuse_actors=True,
            trial_dirname_creator=_trial_folder,
        ),
        run_config=tune.RunConfig(
            name=".ray",
            storage_path=str(folder),
            callbacks=[Reports(dispatcher)],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            verbose=0,
            progress_reporter=_Silent(),
        ),
    )


class _Silent(tune.ProgressReporter):
    """Show nothing: in a notebook Tune's own reporter clears the cell, however quiet it is."""

    def should_report(self, trials: Any, done: bool = False) -> bool:
        """Tell whether there is something to show."""
        return False

    def report(self, trials: Any, done: bool, *sys_info: str) -> None:
        """Show nothing."""


def _trial_folder(trial: tune.experiment.Trial) -> str:
    return str(trial.trial_id)
