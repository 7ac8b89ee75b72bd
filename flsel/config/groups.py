"""Groups of a run's settings: what a client does in a visit, what is measured, tracked and written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flsel.arguments import Range, UserPath, check_settings, shown
from flsel.arguments.later import Metric
from flsel.config.metric_object import metric_spec
from flsel.errors import UserError
from flsel.files import check_folder_name
from flsel.local.batches import BatchSpec

# Local steps of a visit when neither epochs nor steps are set.
DEFAULT_STEPS = 10


@dataclass(frozen=True)
class LocalConfig:
    """What a client does in one visit.

    Attributes:
        batch_size: Examples per local step (B).
        epochs: Passes over the client's data (E); excludes ``steps``.
        steps: Local optimizer steps; excludes ``epochs``. With neither, 10 steps.
        last_batch: ``short``, the last batch of a pass has what is left, or ``wrap``, batches are cut from an
            endless stream of reshuffled passes.
        optimizer: Local optimizer; null is the LightningModule's own, or SGD with learning rate 0.1 for a
            plain network.
        lr_schedule: A torch learning-rate scheduler whose unit is the communication round, or null.
        backend: ``sequential`` (any model), ``vmap`` (all clients of a round at once), ``compiled`` (the step
            is traced once and replayed) or ``auto``.
        workers: Processes of one thread each, or on a GPU each, that share a round's clients; 1 trains in
            the run's own process, with all its threads.
        chunk: Most clients that ``vmap`` and ``compiled`` stack, or null for all; bounds memory.
        check: ``auto`` compares a few models that ``vmap`` and ``compiled`` train with those of sequential,
            which trains the rest of the run if they differ; ``every`` compares all of them; ``off`` none.
        keep_optimizer: Let each client go on with the optimizer state (momentum, Adam's moments) that its
            last visit ended with, instead of a fresh one; ``sequential`` only.

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
    backend: Literal["auto", "sequential", "vmap", "compiled"] = "auto"
    workers: Annotated[int, Range(1, 256)] = 1
    chunk: Annotated[int | None, Range(1)] = None
    check: Literal["auto", "every", "off"] = "auto"
    keep_optimizer: bool = False

    def __post_init__(self) -> None:
        check_settings(self, "local.")
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
class TimeConfig:
    """What a round waits for on simulated devices; without ``devices`` nothing here may be set.

    Attributes:
        over_selection: Factor on the clients that are asked; the first clients to finish, as many as
            ``clients_per_round`` says, are aggregated. Only for plans of one hop.
        deadline: Simulated seconds after which a hop is closed, or null. Where no client is in time, the
            round waits for the first one.
        late: What becomes of a path that misses a deadline: ``drop``, or ``rest``, the model that it had
            before the late client counts.
        relay: A model goes from client to client; otherwise all paths wait for each other after each hop.
        overhead: Simulated seconds that each communication round takes besides its clients.
        backward: Forward passes that a backward pass is worth; training an example takes one more.
        server_pass: Simulated seconds of a pass over the server's holdout.
        stop_after_seconds: Simulated seconds after which the run ends, or null.

    Raises:
        UserError: If a value is out of range.
    """

    over_selection: Annotated[float, Range(1, 100)] = 1.0
    deadline: Annotated[float | None, Range(above=0)] = None
    late: Literal["drop", "rest"] = "drop"
    relay: bool = False
    overhead: Annotated[float, Range(0)] = 0.0
    backward: Annotated[float, Range(0)] = 2.0
    server_pass: Annotated[float, Range(0)] = 0.0
    stop_after_seconds: Annotated[float | None, Range(above=0)] = None

    def __post_init__(self) -> None:
        check_settings(self, "time.")

    def asked(self, wanted: int, clients: int) -> int:
        """Return how many clients are asked for so many updates, out of so many clients."""
        return min(clients, max(wanted, math.floor(self.over_selection * wanted + 1e-9)))

    def require_devices(self) -> None:
        """Refuse settings that say nothing without devices.

        Raises:
            UserError: Naming the first.
        """
        for name, default in vars(TimeConfig()).items():
            if getattr(self, name) != default:
                raise UserError(
                    f"time.{name} must be {shown(default)} without devices, got "
                    f"{shown(getattr(self, name))}: "
                    "set devices, for example --devices LogNormal."
                )


@dataclass(frozen=True)
class AsyncConfig:
    """Whether and how the server aggregates updates as they arrive, on simulated devices.

    A round is then a step of the server, which takes place whenever enough updates have arrived.

    Attributes:
        concurrency: Clients that train at any time (C), at least the buffer; null trains in synchronous
            rounds, and nothing else here may be set.
        buffer: Updates that the server waits for before each step (K); null takes ``clients_per_round``.
        refill: When a free slot gets a client: at each ``arrival``, or all free slots after each ``step`` of
            the server.
        staleness: Weight s of an update that is t steps late: ``constant`` 1, ``polynomial``
            (1 + t)^-``exponent``, or ``hinge``: 1 up to ``knee``, then 1 / (``slope`` (t - ``knee``) + 1).
        exponent: Exponent of ``polynomial`` (a).
        slope: Slope of ``hinge`` (a).
        knee: Staleness up to which ``hinge`` weighs 1 (b).
        bound: Largest staleness of an update that is aggregated; null aggregates all.
        division: ``buffer``: the selector's weights times s, so that stale steps are smaller; ``weights``:
            divided by their sum, so that they are not.
        mixing: ``updates`` adds what clients changed (FedBuff); ``models`` moves towards their models
            (FedAsync, whose mixing rate is the server optimizer's learning rate).

    Raises:
        UserError: If a value is out of range, or set though ``concurrency`` is null.
    """

    concurrency: Annotated[int | None, Range(1)] = None
    buffer: Annotated[int | None, Range(1)] = None
    refill: Literal["arrival", "step"] = "arrival"
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    exponent: Annotated[float, Range(0)] = 0.5
    slope: Annotated[float, Range(0)] = 10.0
    knee: Annotated[int, Range(0)] = 4
    bound: Annotated[int | None, Range(0)] = None
    division: Literal["buffer", "weights"] = "buffer"
    mixing: Literal["updates", "models"] = "updates"

    def __post_init__(self) -> None:
        check_settings(self, "asynchronous.")
        if self.concurrency is None:
            for field in fields(self):
                if getattr(self, field.name) != field.default:
                    raise UserError(
                        f"asynchronous.{field.name} must be {shown(field.default)} without "
                        f"asynchronous.concurrency, got {shown(getattr(self, field.name))}."
                    )

    def updates(self, clients_per_round: int) -> int:
        """Return how many updates the server waits for before each step."""
        return clients_per_round if self.buffer is None else self.buffer

    def check_fits(self, clients_per_round: int, clients: int | None, time: TimeConfig) -> None:
        """Refuse a buffer that never fills, more flights than clients, and rules of synchronous rounds.

        Raises:
            UserError: Naming the setting.
        """
        if self.concurrency is None:
            return
        buffer = self.updates(clients_per_round)
        if buffer > self.concurrency:
            name = "clients_per_round" if self.buffer is None else "asynchronous.buffer"
            raise UserError(
                f"{name} must be at most asynchronous.concurrency, got {shown(buffer)} of "
                f"{shown(self.concurrency)}: set asynchronous.buffer to the updates per server step."
            )
        if clients is not None and self.concurrency > clients:
            raise UserError(
                "asynchronous.concurrency must be at most the number of clients, got "
                f"{shown(self.concurrency)} of {shown(clients)}: a client trains one model at a time."
            )
        for name in ("over_selection", "deadline", "late", "relay"):
            default, value = getattr(TimeConfig(), name), getattr(time, name)
            if value != default:
                raise UserError(
                    f"time.{name} must be {shown(default)} with asynchronous.concurrency, got "
                    f"{shown(value)}: it is a rule of synchronous rounds."
                )

    def weight(self, staleness: Tensor) -> Tensor:
        """Return the staleness weights s, float64 ``[K]`` in [0, 1].

        Args:
            staleness: Server steps since each update's start, int64 ``[K]``.
        """
        late = staleness.double()
        if self.staleness == "polynomial":
            return (1 + late) ** -self.exponent
        if self.staleness == "hinge":
            return 1 / (self.slope * (late - self.knee).clamp(min=0) + 1)
        return torch.ones_like(late)


@dataclass(frozen=True)
class OutputConfig:
    """Where a run is written.

    Attributes:
        dir: Folder of all runs.
        name: Name of the run's folder; null makes one of dataset, selector and seed. An existing folder is
            never overwritten: the new one gets a suffix.
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
            convolutions and 256 for others, on a GPU 2048.
        per_client: Also measure the model on every client's training data (mean, worst 10 %, variance).
        target: Test accuracy whose first round is reported, or null.
        stop_at_target: Also end the run at the first evaluation that reaches the target.
        metrics: Metrics of torchmetrics beside loss and accuracy, on logits and labels, such as
            ``MulticlassF1Score``; from Python classes, objects, or ``partial`` with arguments. The column of
            one is ``test/`` with its class's name. ``num_classes`` is filled in from the data.

    Raises:
        UserError: If a value is out of range, or a metric object does not keep its arguments.
    """

    every: Annotated[int, Range(1)] = 1
    batch_size: Annotated[int | None, Range(1)] = None
    per_client: bool = False
    target: Annotated[float | None, Range(above=0, high=1)] = None
    stop_at_target: bool = False
    metrics: tuple[Callable[[], Metric], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.metrics, list | tuple):
            described = tuple(metric_spec(each, at) for at, each in enumerate(self.metrics))
            object.__setattr__(self, "metrics", described)
        check_settings(self, "evaluation.")


@dataclass(frozen=True)
class TrackConfig:
    """Where a run is tracked besides its own ``metrics.csv``.

    Attributes:
        tracker: ``none``, ``wandb``, ``tensorboard``, or the import path of a Lightning logger's class or of
            a function that makes one (it gets ``save_dir``); several are separated by commas.
        project: W&B project.
        entity: W&B user or team; null is the key's own.
        group: W&B group; null is the dataset's name.
        variant: What the run is one of the seeds of; null is the selector's name. Comparisons set it.
        tags: W&B tags besides the selector's and the dataset's names.
        mode: W&B mode; ``auto`` is online where an API key is found and offline elsewhere.
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
            if name not in ("wandb", "tensorboard") and "." not in name:
                raise UserError(
                    "track.tracker must be none, wandb, tensorboard or the import path of a Lightning "
                    f"logger, several separated by commas, got {name[:40]!r}."
                )

    @property
    def trackers(self) -> tuple[str, ...]:
        """The trackers, without ``none``."""
        names = dict.fromkeys(name.strip() for name in self.tracker.split(","))
        return tuple(name for name in names if name != "none")
