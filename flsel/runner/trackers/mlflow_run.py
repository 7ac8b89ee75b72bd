"""Opens a run in MLflow's tracking store, the same one again after a resume."""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger
    from mlflow.tracking import MlflowClient

_TAG = "flsel.run"
# Defaults only: the user's own choice wins. A server that does not answer costs seconds, and nothing is sent
# to MLflow's makers.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


def open_run(run_id: str, project: str, name: str, tags: Mapping[str, Any]) -> MLFlowLogger:
    """Open a run, or go on with the one of the same id.

    Args:
        run_id: flsel's id of the run, kept as a tag.
        project: Name of the experiment.
        name: Name of the run.
        tags: Further tags; those that are null are left out.

    Returns:
        Lightning's logger. The store is ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the current folder.
    """
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    from lightning.pytorch.loggers import MLFlowLogger
    from mlflow.tracking import MlflowClient

    store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"
    # A new store's tables are made in steps, which MLflow reports, and which two processes must not mix.
    with open(Path.cwd() / ".mlflow.lock", "a") as lock, redirect_stderr(io.StringIO()):
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(store)
        experiment = _experiment(client, project)
    matches = client.search_runs([experiment], f"tags.`{_TAG}` = '{run_id}'", max_results=1)
    if matches:
        run = matches[0]
        client.update_run(run.info.run_id, status="RUNNING")
    else:
        texts = {key: str(value) for key, value in tags.items() if value}
        run = client.create_run(experiment, run_name=name, tags={_TAG: run_id, **texts})
    return MLFlowLogger(tracking_uri=store, run_id=run.info.run_id)


def _experiment(client: MlflowClient, name: str) -> str:
    experiment = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if experiment is None else experiment.experiment_id)
