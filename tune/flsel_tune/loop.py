"""Ray Tune's loop over the trials of a sweep, started again where Ray gives up."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from optuna.trial import TrialState
from ray import tune
from ray.exceptions import OutOfMemoryError

from flsel.errors import UserError, going_on, machine_failed, sentence
from flsel_tune.actor import TrialActor
from flsel_tune.console import Console
from flsel_tune.plan import SweepPlan
from flsel_tune.searcher import StudyScheduler, StudySearch
from flsel_tune.shared import pack
from flsel_tune.study import Study
from flsel_tune.watch import Watch

_LOG = logging.getLogger("flsel")


def play(plan: SweepPlan, study: Study, console: Console) -> bool:
    """Run the trials that are left.

    Args:
        plan: The sweep.
        study: Its trials.
        console: Where progress is shown.

    Returns:
        Whether all were run; False after Ctrl-C.

    Raises:
        UserError: If the memory does not suffice for a single trial, or the disk for the study.
    """
    concurrent = plan.sweep.max_concurrent
    while trials := study.left(plan.sweep.trials):
        watch = Watch(study, plan.job, console, plan.config.track)
        search = StudySearch(study, plan.space, plan.job)
        try:
            _tuner(plan, search, watch, trials=trials, concurrent=concurrent).fit()
            search.settle()
            return (
                not study.trials(TrialState.RUNNING) if study.exhausted else not study.left(plan.sweep.trials)
            )
        except RuntimeError as error:
            # Ray's memory monitor kills a process with an error that its own loop does not know.
            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
            if concurrent == 1:
                raise UserError(
                    "the machine has too little memory for a single trial: lower local.chunk or the model's "
                    f"size, or go on elsewhere with {going_on('tune', plan.job.folder)}."
                ) from error
            concurrent = max(1, min(concurrent or watch.running, watch.running) - 1)
            _LOG.warning("out of memory: the sweep goes on with max_concurrent %d", concurrent)
        except OSError as error:
            if not machine_failed(error):
                raise
            then = f"Once that is mended: {going_on('tune', plan.job.folder)}"
            raise UserError(f"{plan.job.folder} cannot be written: {sentence(error)} {then}") from error
        finally:
            watch.close()
            shutil.rmtree(Path(plan.job.folder) / ".ray", ignore_errors=True)
    return True


def _tuner(
    plan: SweepPlan, search: StudySearch, watch: Watch, *, trials: int, concurrent: int | None
) -> tune.Tuner:
    job, sweep = plan.job, plan.sweep
    names = [job.objective(n) for n in range(len(job.metrics))]
    resources = {"cpu": sweep.cpus, "gpu": sweep.gpus}
    if sweep.memory:
        resources["memory"] = sweep.memory * 2**30
    actor = tune.with_parameters(
        TrialActor, job=job, packed=None if plan.source is None else pack(plan.source)
    )
    return tune.Tuner(
        tune.with_resources(actor, resources),
        tune_config=tune.TuneConfig(
            search_alg=search,
            scheduler=StudyScheduler(search.study, names[0] if len(names) == 1 else None),
            num_samples=trials,
            max_concurrent_trials=concurrent,
            reuse_actors=True,
            trial_dirname_creator=_trial_folder,
        ),
        run_config=tune.RunConfig(
            name=".ray",
            storage_path=job.folder,
            callbacks=[watch],
            failure_config=tune.FailureConfig(max_failures=sweep.retries),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            verbose=0,
        ),
    )


def _trial_folder(trial: tune.experiment.Trial) -> str:
    return str(trial.trial_id)
