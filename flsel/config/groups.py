"""Groups of a run's settings: local training, evaluation, trackers and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flsel.arguments import Range, UserPath, check_settings
from flsel.arguments.later import Metric
from flsel.config.metric_object import metric_spec
from flsel.errors import UserError
from flsel.files import check_folder_name
from flsel.local.schedule import BatchSpec

# Local steps of a visit when neither epochs nor steps are set.
DEFAULT_STEPS = 10


@dataclass(frozen=True)
class LocalConfig:
    """Local training of a client.

    Attributes:
        batch_size: Examples per local step (B).
        epochs: Passes over the client's data (E); excludes ``steps``.
        steps: Local optimizer steps; excludes ``epochs``. With neither, 10 steps.
        last_batch: The last batch of an epoch: ``short`` has only the remaining examples; ``wrap`` also has
            the first examples of the next epoch, so that all batches are full.
        optimizer: Local optimizer; null is the LightningModule's own, or SGD with learning rate 0.1 for a
            plain network, whose arguments may be set alone (``--local.optimizer.lr 0.05``).
        lr_schedule: A torch learning-rate scheduler whose unit is the communication round, or null.
        backend: ``sequential`` (one client after another), ``compiled`` (the step is traced once and replayed
            for all clients of a round at once), ``lightning`` (a Lightning Trainer for each client, which
            calls every hook of a LightningModule) or ``auto``.
        trainer: Further arguments of Lightning's Trainer, such as ``gradient_clip_val``; with them it trains
            the clients.
        workers: Processes that train a round's clients in parallel, each with one thread or one GPU; 1 trains
            in the run's own process, with all its threads.
        chunk: Largest number of clients that ``compiled`` stacks, or null for all; bounds memory.
        check: How many models that ``compiled`` trains are compared with those of ``sequential``:
            ``auto`` a few, ``every`` all, ``off`` none. If they differ, ``sequential`` trains the rest of the
            run.
        personal: Patterns of names of tensors, such as ``head.*`` or ``*.bn.*``, that stay with the client
            between its trainings. They are neither sent nor billed (FedPer, FedBN, LG-FedAvg).
        keep_optimizer: Let each client continue with the optimizer state (momentum, Adam's moments) that its
            last training ended with, instead of a new one; ``sequential`` only.

    Raises:
        UserError: If a value is out of range, both ``epochs`` and ``steps`` are set, or optimizers are to be
            kept by a trainer that cannot.
    """

    batch_size: Annotated[int, Range(1)] = 10
    epochs: Annotated[int | None, Range(1)] = None
    steps: Annotated[int | None, Range(1)] = None
    last_batch: Literal["short", "wrap"] = "short"
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None
    lr_schedule: Callable[[Optimizer], LRScheduler] | None = None
    backend: Literal["auto", "sequential", "compiled", "lightning"] = "auto"
    trainer: dict[str, Any] = field(default_factory=dict)
    workers: Annotated[int, Range(1, 256)] = 1
    chunk: Annotated[int | None, Range(1)] = None
    check: Literal["auto", "every", "off"] = "auto"
    keep_optimizer: bool = False
    personal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self, "local.")
        if self.trainer and self.backend not in ("auto", "lightning"):
            raise UserError(
                f"local.trainer must be empty with local.backend {self.backend}, which uses no Trainer of "
                "Lightning: set local.backend to lightning."
            )
        if self.keep_optimizer and (self.backend not in ("auto", "sequential") or self.workers > 1):
            raise UserError(
                f"local.keep_optimizer must be false with local.backend {self.backend} and local.workers "
                f"{self.workers}: only sequential, in one process, keeps optimizers."
            )
        self.batches()

    def batches(self) -> BatchSpec:
        """Return the batches of one visit."""
        steps = DEFAULT_STEPS if self.epochs is None and self.steps is None else self.steps
        return BatchSpec(self.batch_size, self.epochs, steps, self.last_batch)


@dataclass(frozen=True)
class OutputConfig:
    """Where a run is written.

    Attributes:
        dir: Folder of all runs. ``--folder`` is the same.
        name: Name of the run's folder; null makes one of dataset, selector and seed. An existing folder is
            never overwritten: the new one gets a suffix. ``--name`` is the same.
        checkpoint_every: Communication rounds between checkpoints.

    Raises:
        UserError: If a value is out of range or ``name`` is not a plain folder name.
    """

    dir: Annotated[str, UserPath()] = "runs"
    name: str | None = None
    checkpoint_every: Annotated[int, Range(1)] = 10

    def __post_init__(self) -> None:
        check_settings(self, "output.")
        check_folder_name("output.name", self.name)


@dataclass(frozen=True)
class EvaluationConfig:
    """When and what to measure.

    Attributes:
        every: Communication rounds between evaluations; the last round is always evaluated.
        batch_size: Examples per forward pass; null takes the fastest: on a CPU 128 for a model with
            convolutions, up to 1024 for one of narrow linear layers and 256 for others, on a GPU 2048.
        per_client: Also measure the model on every client's training data (mean, worst 10 %, variance): the
            columns ``client_train/*``. Also on its own test data where the data set says whose these are
            (LEAF, ``owner`` of a test set): ``client_test/*``.
        score: Column of ``metrics.csv`` that the run is judged by, such as ``test/perplexity``: targets,
            sweeps, comparisons and pictures are about it. null is the test accuracy, or the test loss if
            targets are no classes.
        better: Whether a ``lower`` or a ``higher`` score is better; null takes the metric's own direction.
        target: Test accuracy, or other score, whose first round is reported, or null.
        stop_at_target: Also end the run at the first evaluation that reaches the target.
        metrics: Metrics of torchmetrics in addition to loss and accuracy, on logits and labels, such as
            ``MulticlassF1Score``; from Python classes, objects, or ``partial`` with arguments. The column is
            ``test/`` and the class's name. ``num_classes`` is filled in from the data.

    Raises:
        UserError: If a value is out of range, or a metric object does not keep its arguments.
    """

    every: Annotated[int, Range(1)] = 1
    batch_size: Annotated[int | None, Range(1)] = None
    per_client: bool = False
    score: str | None = None
    better: Literal["lower", "higher"] | None = None
    target: Annotated[float | None, Range()] = None
    stop_at_target: bool = False
    metrics: tuple[Callable[[], Metric], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.metrics, list | tuple):
            described = tuple(metric_spec(each, at) for at, each in enumerate(self.metrics))
            object.__setattr__(self, "metrics", described)
        check_settings(self, "evaluation.")
        if self.score is not None and not self.score.startswith("test/"):
            raise UserError(
                f"evaluation.score must be a column on the test set, such as test/loss, got {self.score}."
            )
        shares = self.score in (None, "test/accuracy")
        if shares and self.target is not None and not 0 < self.target <= 1:
            raise UserError(
                f"evaluation.target must be in (0, 1] for an accuracy, got {self.target:g}: set "
                "evaluation.score for a target of another measure, such as test/loss."
            )


@dataclass(frozen=True)
class TrackConfig:
    """Where a run is tracked besides its own ``metrics.csv``.

    Attributes:
        tracker: ``none``, ``wandb``, ``mlflow``, ``tensorboard``, or the import path of a Lightning logger's
            class or of a function that makes one (it gets ``save_dir``); several are separated by commas.
        project: W&B project, MLflow experiment.
        entity: W&B user or team; null is the key's own.
        group: W&B group; null is the dataset's name.
        variant: Name that the runs of all seeds share; null is the selector's name. Comparisons set it.
        tags: W&B tags besides the selector's and the dataset's names.
        mode: W&B mode; ``auto`` is online if an API key is found, otherwise offline.
    """

    tracker: str = "none"
    project: str = "flsel"
    entity: str | None = None
    group: str | None = None
    variant: str | None = None
    tags: tuple[str, ...] = ()
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"

    def __post_init__(self) -> None:
        check_settings(self, "track.")
        for name in self.trackers:
            if name not in ("wandb", "mlflow", "tensorboard") and "." not in name:
                raise UserError(
                    "track.tracker must be none, wandb, mlflow, tensorboard or the import path of a "
                    f"Lightning logger, several separated by commas, got {name[:40]!r}."
                )

    @property
    def trackers(self) -> tuple[str, ...]:
        """The trackers, without ``none``."""
        names = dict.fromkeys(name.strip() for name in self.tracker.split(","))
        return tuple(name for name in names if name != "none")
