"""A sweep from its settings to its files: Ray Tune runs the trials, a study remembers them."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from optuna.trial import TrialState

from flsel.config.fingerprint import PRESENTATION
from flsel.errors import Interrupted, UserError, going_on
from flsel.execution.on_ray.cluster import cluster
from flsel.execution.on_ray.cluster_cleanup import resume_by
from flsel.execution.on_ray.shared_data import pack
from flsel.execution.progress import final_table
from flsel.files import new_run_dir, write_atomic
from flsel.files.yaml import read_yaml
from flsel.runner.lock import Lock
from flsel.runner.saved_settings import dataset_and_selector
from flsel.runner.terminal import in_notebook
from flsel_tune.earlier_trials import extend_space, write_journal
from flsel_tune.journal_repair import repair_journal
from flsel_tune.space_file import to_plain
from flsel_tune.study import RESULT, Study
from flsel_tune.sweep_config import CHANGEABLE, SweepConfig
from flsel_tune.sweep_display import Console
from flsel_tune.sweep_figures import write_figures
from flsel_tune.sweep_plan import SweepPlan
from flsel_tune.track_sweep import track_sweep
from flsel_tune.trial import ReportingTrial
from flsel_tune.workload import SweepWorkload
from flsel_tune.write_results import best_trials, trial_rows, write_results

_LOG = logging.getLogger("flsel")
_ENDED = ("complete", "pruned", "diverged", "failed")


def begin_sweep(plan: SweepPlan) -> Path:
    """Run a new sweep.

    Returns:
        Its folder.

    Raises:
        UserError: If there is no room for a trial or a file cannot be written.
        Interrupted: If Ctrl-C stopped it; it can be resumed.
    """
    with cluster(plan.sweep.resources, _shared_bytes(plan)):
        folder = _new_folder(plan)
        plan = replace(plan, job=replace(plan.job, folder=str(folder)))
        with Lock(folder, "sweep"):
            study = _study(plan)
            return _run_trials(plan, study)


def resume_sweep(plan: SweepPlan, folder: Path, *, retry_failed: bool = False) -> Path:
    """Finish a sweep: trials that ended are kept, those that had begun continue from their checkpoints.

    Trials that failed because the machine did, such as on a full disk, are tried again.

    Args:
        plan: The sweep.
        folder: Its folder.
        retry_failed: Try trials that failed otherwise once more, too, under new numbers.

    Returns:
        Its folder.

    Raises:
        UserError: As :func:`begin_sweep`, or if another process is at it.
        Interrupted: As :func:`begin_sweep`.
    """
    plan = replace(plan, job=replace(plan.job, folder=str(folder.resolve())))
    with Lock(folder, "sweep"):
        repair_journal(folder)
        study = _study(plan, extends=True)
        if again := study.retry("machine"):
            _LOG.info("%d trials that failed with the machine (a full disk, say) are tried again", again)
        if retry_failed:
            _LOG.info("%d trials that failed are tried again", study.retry("failed"))
        if not study.left(plan.sweep.trials):
            _LOG.info("%s is finished; nothing is left to resume", folder)
            return _finish(plan, study)
        with cluster(plan.sweep.resources, _shared_bytes(plan)):
            # A later resume goes on with what is given now, once a cluster has taken it.
            _write_settings(plan, folder / "sweep.yaml")
            return _run_trials(plan, study)


def _run_trials(plan: SweepPlan, study: Study) -> Path:
    # Ray reads its settings from the environment when it is imported; cluster() has set them.
    from flsel.execution.on_ray.sent_objects import with_objects
    from flsel.execution.on_ray.tune_loop import execute_with_tune

    metric, job = plan.job.metrics[0], plan.job
    console = Console(plan.sweep.trials, metric, job.objective(0), quiet=plan.config.quiet)
    uncounted = study.uncounted()
    rows = [row for row in trial_rows(study, job.metrics) if row["trial"] not in uncounted]
    ended = [row for row in rows if row["status"] in _ENDED]
    best = sorted(best_trials(study), key=lambda trial: trial.values[0], reverse=metric.mode == "max")
    console.resumed(
        Counter(row["status"] for row in ended), (best[0].values[0], best[0].number) if best else None
    )
    workload, packed = SweepWorkload(plan, study, console), None if plan.source is None else pack(plan.source)
    named = [job.config, to_plain(plan.space)]
    begin = with_objects(partial(ReportingTrial, job), named, shared_data=packed is not None)
    more = f"continue with: {going_on('tune', _shown(job.folder))}"
    resume_by(more)
    try:
        with console:
            execute_with_tune(workload, begin, packed, Path(job.folder), plan.sweep.resources)
    finally:
        workload.close()
    if study.trials(TrialState.RUNNING) or (not study.exhausted and study.left(plan.sweep.trials)):
        write_results(study, job)
        raise Interrupted(f"stopped; {more}")
    return _finish(plan, study)


def _finish(plan: SweepPlan, study: Study) -> Path:
    folder = Path(plan.job.folder)
    write_results(study, plan.job)
    drawn = plan.pictures or plan.config.track.tracker != "none"
    pictures = write_figures(study, plan.job) if drawn else []
    rows = trial_rows(study, plan.job.metrics)
    try:
        track_sweep(plan, study, pictures)
    except UserError as error:
        _LOG.warning("the sweep's own run was not tracked: %s", error)
    if not plan.config.quiet and not in_notebook():  # where a sweep shows itself
        _say(plan, study, pictures)
    dead = [t for t in study.trials(TrialState.FAIL) if t.number not in study.repeated()]
    if failed := sum(t.user_attrs.get(RESULT, {}).get("machine", False) for t in dead):
        _LOG.warning(
            "%d trials failed because the machine did; once that is mended: %s",
            failed, going_on("tune", _shown(folder)),
        )  # fmt: skip
    if not best_trials(study):
        errors = Counter(row["error"] for row in rows if row["error"])
        why = f": {errors.most_common(1)[0][0]}" if errors else "."
        if any(row["status"] == "failed" for row in rows):
            why += f" Once that is mended: {going_on('tune', _shown(folder))} --retry-failed"
        raise UserError(f"no trial of {_shown(folder)} was completed, so there is no best one{why}")
    return folder


def _say(plan: SweepPlan, study: Study, pictures: list[Path]) -> None:
    folder, best = Path(plan.job.folder), best_trials(study)
    rows, uncounted = trial_rows(study, plan.job.metrics), study.uncounted()
    counts = Counter(row["status"] for row in rows if row["trial"] not in uncounted)
    shown = [("trials", ", ".join(f"{counts[name]} {name}" for name in _ENDED if counts[name]))]
    if taken := sum(bool(row["from"]) for row in rows):
        shown.append((f"taken from {plan.sweep.start_from}", str(taken)))
    for trial in best[:1]:
        row = rows[trial.number]
        shown.append(("best trial", str(trial.number)))
        shown += [(metric.text, f"{row[metric.text]:.4f}") for metric in plan.job.metrics]
        if len(plan.job.seeds) > 1:
            shown.append((f"spread over {len(plan.job.seeds)} seeds", f"{row['spread']:.4f}"))
        shown += [(key, f"{v:.4g}" if isinstance(v, float) else str(v)) for key, v in row["settings"].items()]
    names = ["trials.csv", "trials.json", "study.journal", *(["best.yaml"] if best else [])]
    paths = [_shown(folder / name) for name in names] + [_shown(path) for path in pictures]
    final_table(shown, paths, columns=("sweep", "value"))


def _study(plan: SweepPlan, *, extends: bool = False) -> Study:
    folder = Path(plan.job.folder)
    opened = partial(
        Study,
        folder,
        folder.name,
        metrics=plan.job.metrics,
        config=plan.sweep,
        rounds=plan.config.rounds,
        seed=plan.config.seed,
    )
    study = opened()
    if extends and extend_space(_shown(folder), study, plan):
        _LOG.info("%s goes on in a wider space with all its trials", _shown(folder))
        study = opened()
    study.hold_to(folder, _declared(plan))
    if plan.sweep.sampler != "grid":
        points = list(plan.space.first_points(plan.config.to_dict()))
        study.enqueue(points[: plan.sweep.trials])
    return study


def _declared(plan: SweepPlan) -> dict[str, dict[str, Any]]:
    """Return what a sweep's files say that its trials depend on."""
    free = (*CHANGEABLE, "space", "name", "folder", "start_from")
    return {
        "config.yaml": {k: v for k, v in plan.config.to_dict().items() if k not in PRESENTATION},
        "space.yaml": to_plain(plan.space),
        "sweep.yaml": {k: v for k, v in asdict(plan.sweep).items() if k not in free},
    }


def _new_folder(plan: SweepPlan) -> Path:
    name = plan.sweep.name or plan.config.output.name or dataset_and_selector(plan.config)
    folder = new_run_dir(plan.sweep.folder, name, "folder").resolve()
    try:
        if plan.earlier:  # first, since a folder without the other files is no sweep
            write_journal(folder, folder.name, plan.job.metrics, plan.earlier, {})
        files = {
            "config.yaml": yaml.safe_dump(plan.config.to_dict(), sort_keys=False),
            "space.yaml": yaml.safe_dump(to_plain(plan.space), sort_keys=False),
            "sweep.yaml": _sweep_yaml(plan),
        }
        for file, text in files.items():
            write_atomic(folder / file, text)
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _write_settings(plan: SweepPlan, path: Path) -> None:
    """Write the sweep's settings, unless the file says the same already: its words may be the user's own."""
    text = _sweep_yaml(plan)
    known = {**asdict(SweepConfig()), **read_yaml(path)}
    if json.loads(json.dumps(known)) != yaml.safe_load(text):
        write_atomic(path, text)


def _sweep_yaml(plan: SweepPlan) -> str:
    return yaml.safe_dump(json.loads(json.dumps(asdict(plan.sweep))), sort_keys=False)


def _shared_bytes(plan: SweepPlan) -> int:
    return 0 if plan.source is None else pack(plan.source).size


def _shown(path: str | Path) -> Path:
    """Write a path as the user would: relative where it lies below the current folder."""
    path = Path(path)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
