"""The comparison's own run in W&B or MLflow: its table, its verdicts, its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flsel.comparison.comparison import Comparison
from flsel.comparison.grid import FILE
from flsel.comparison.reporting.tables import main_table
from flsel.config import RunConfig
from flsel.files.yaml import read_yaml
from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker


def track_comparison(made: Comparison, paths: list[Path]) -> None:
    """Log a comparison as one run of job type ``comparison``, if its runs go to W&B or MLflow."""
    folder = made.folder
    if folder is None or not (folder / FILE).is_file():
        return
    settings = read_yaml(folder / FILE)["config"]
    config = RunConfig.from_dict(settings)
    keepers = [name for name in config.track.trackers if name in ("wandb", "mlflow")]
    if not keepers:
        return
    loggers = make_loggers(
        replace(config.track, tracker=",".join(keepers), group=config.track.group or folder.name),
        run_dir=folder,
        name=folder.name,
        resolved_config=settings,
        tags=(config.data.name,),
        job_type="comparison",
    )
    tracker = Tracker(loggers)
    for scenario in made.analysis.scenarios:
        headings, rows = main_table(made.analysis, scenario)
        tracker.table(f"comparison/{scenario}", headings, rows)
    tracker.table("comparison/verdicts", ("kind", "verdict"), [(v.kind, v.text) for v in made.verdicts])
    for path in paths:
        if path.suffix == ".png":
            tracker.image(f"comparison/{path.stem}", path, config.rounds)
    tracker.file(paths[0], "report")
    tracker.close("success")
