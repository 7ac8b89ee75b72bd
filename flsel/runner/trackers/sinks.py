"""W&B's run, MLflow's run and Lightning's loggers behind the same few methods."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.report.style import own_letters

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger
    from lightning.pytorch.loggers import MLFlowLogger
    from matplotlib.figure import Figure
    from PIL.Image import Image


class Sink:
    """Interface of a tracker; a tracker ignores what it has no place for.

    Args:
        name: Its name, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Take the run's hyper-parameters."""

    def log(self, metrics: Mapping[str, float], round: int) -> None:
        """Take the metrics of a communication round."""

    def image(self, key: str, image: Image, round: int) -> None:
        """Take a picture."""

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Take a table, ``rows`` of ``len(columns)`` cells each."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Take the run's final values."""

    def file(self, path: Path, kind: str) -> None:
        """Take a file as an artifact of a kind."""

    def close(self, status: str) -> None:
        """Finish; ``status`` is ``"success"``, or anything else for a run that did not end well."""


class _LoggerSink(Sink):
    """TensorBoard, or any Lightning logger: metrics over rounds; pictures where TensorBoard takes them."""

    def __init__(self, logger: Logger) -> None:
        super().__init__(type(logger).__name__)
        self._logger: Any = logger  # what TensorBoard's offers besides is not in the type
        self._settings: dict[str, Any] = {}

    def settings(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        if settings and not self._is_tensorboard():
            self._logger.log_hyperparams(self._settings)

    def log(self, metrics: Mapping[str, float], round: int) -> None:
        self._logger.log_metrics(dict(metrics), step=round)

    def image(self, key: str, image: Image, round: int) -> None:
        import numpy as np

        if self._is_tensorboard():
            self._logger.experiment.add_image(key, np.asarray(image), round, dataformats="HWC")

    def _is_tensorboard(self) -> bool:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        return isinstance(self._logger, TensorBoardLogger)

    def summary(self, values: Mapping[str, Any]) -> None:
        # TensorBoard shows hyper-parameters beside results only, so they wait for these.
        results = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        if self._settings and results and self._is_tensorboard():
            self._logger.log_hyperparams(self._settings, results)

    def close(self, status: str) -> None:
        self._logger.finalize(status)


class _WandbSink(Sink):
    """W&B: the round is a logged value, and also W&B's own step, which an offline run counts from 0 again."""

    def __init__(self, run: Any) -> None:
        super().__init__("W&B")
        self._run = run

    def log(self, metrics: Mapping[str, float], round: int) -> None:
        self._run.log({**metrics, "round": round}, step=self._step(round), commit=True)

    def image(self, key: str, image: Image, round: int) -> None:
        import wandb

        self._run.log({key: wandb.Image(image), "round": round}, step=self._step(round), commit=False)

    def _step(self, round: int) -> int:
        """Return the step of a round: a later one where the user's own code has logged that many values."""
        return max(round, int(self._run.step))

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        import wandb

        self._run.log({key: wandb.Table(columns=list(columns), data=[list(row) for row in rows])})

    def summary(self, values: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(values))

    def file(self, path: Path, kind: str) -> None:
        self._run.log_artifact(str(path), name=f"{kind}-{self._run.id}", type=kind)

    def close(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)


class _MlflowSink(_LoggerSink):
    """MLflow: parameters, metrics by round, pictures, tables and artifacts."""

    def __init__(self, logger: MLFlowLogger) -> None:
        super().__init__(logger)
        self.name = "MLflow"
        self._client: Any = logger.experiment
        self._id = logger.run_id

    def settings(self, settings: Mapping[str, Any]) -> None:
        # A parameter keeps its first value: MLflow refuses another one, as of a run that gets more rounds.
        known = self._client.get_run(self._id).data.params
        self._logger.log_hyperparams({name: value for name, value in settings.items() if name not in known})

    def image(self, key: str, image: Image, round: int) -> None:
        self._client.log_image(self._id, image, key=key, step=round)

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        cells = {name: [row[at] for row in rows] for at, name in enumerate(columns)}
        self._client.log_table(self._id, cells, artifact_file=f"{key}.json")

    def summary(self, values: Mapping[str, Any]) -> None:
        self.log({name: float(value) for name, value in values.items() if isinstance(value, int | float)}, 0)

    def file(self, path: Path, kind: str) -> None:
        self._client.log_artifact(self._id, str(path))


def sink_of(logger: Logger) -> Sink:
    """Return what a Lightning logger leads to."""
    from lightning.pytorch.loggers import MLFlowLogger, WandbLogger

    if isinstance(logger, MLFlowLogger):
        return _MlflowSink(logger)
    return _WandbSink(logger.experiment) if isinstance(logger, WandbLogger) else _LoggerSink(logger)


def as_image(picture: Path | Figure) -> Image:
    """Return a PNG file, or a Matplotlib figure, as an image of three channels."""
    from PIL import Image

    if isinstance(picture, Path):
        with Image.open(picture) as image:
            return image.convert("RGB")
    buffer = io.BytesIO()
    with own_letters(picture):
        picture.savefig(buffer, format="png")
    return Image.open(buffer).convert("RGB")
