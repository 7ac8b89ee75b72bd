"""The fields of a run's settings: the schema of the YAML file, of the command line and of Python.

Each field is a key (``--local.batch_size 32``); the text under it is the comment that
``flsel train --print_config`` prints. Plug-in points take ``{class_path, init_args}``: a selector, a
partition, an availability mode and an objective are built at once, since their constructors only store
arguments; a model, an optimizer, a schedule and a callback are kept as factories until the run needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import torch
import yaml
from torch import nn
from torch.optim import Optimizer

from flsel.arguments import Range, check_settings, shown
from flsel.arguments.later import Callback, Loss
from flsel.arguments.spec import plain
from flsel.availability import IDL, Availability
from flsel.config import model_object
from flsel.config.groups import EvaluationConfig, LocalConfig, OutputConfig, TrackConfig
from flsel.config.simulated_time import AsyncConfig, TimeConfig
from flsel.data.data_config import DataConfig
from flsel.devices import Devices
from flsel.errors import UserError
from flsel.local.completeness import ClientWork, Completeness
from flsel.models import LogisticRegression
from flsel.objectives import FedAvg, Objective
from flsel.partition import Natural, Partition
from flsel.selector import Selector
from flsel.selectors.uniform import Uniform
from flsel.updates import Aggregate, Mean, UpdateStep
from flsel.updates.check_steps import check_steps


@dataclass(frozen=True, eq=False)
class RunSettings:
    """One federated run.

    Attributes:
        seed: Seed of every generator of the run.
        rounds: Communication rounds (T).
        stop_after_trainings: Number of local trainings after which the run ends, or null. Runs that train
            different numbers of clients per round can so have the same limit.
        stop_after_models: Number of models sent to clients after which the run ends, or null.
        stop_after_bytes: Number of bytes sent, in both directions, after which the run ends, or null.
        stop_after_bytes_down: Number of bytes sent to clients after which the run ends, or null.
        stop_after_bytes_up: Number of bytes sent to the server after which the run ends, or null.
        clients: Number of clients (N); null takes the dataset's natural clients.
        clients_per_round: Clients per round (K), at most N.
        data: The dataset and what is held out of it.
        partition: How examples are split over the clients; ``Natural`` keeps the dataset's natural clients.
        availability: Which clients are available in which round.
        completeness: Which part of its local training a client does; null lets all do all of it.
        devices: How fast the clients' simulated devices and links are; null simulates no time.
        time: What a round waits for on simulated devices.
        asynchronous: Whether and how the server aggregates updates as they arrive.
        model: The network, or a LightningModule that brings its loss and optimizer: a class, a function or,
            from Python, an object, of which each run trains a copy.
        loss: The loss of a plain network, a class that maps outputs and targets to a number, such as
            ``MSELoss`` or ``BCEWithLogitsLoss``; null is the cross-entropy of class labels, or what the
            network itself returns as its loss (Hugging Face).
        local: Local training of a client.
        objective: What a client minimises besides its loss.
        updates: Steps between a client's end model and the aggregate, in order: clipping, noise for
            differential privacy, compression, corrupt clients. An empty list leaves the updates as they are.
        aggregate: How the server joins the updates of a round: the selector's weighted mean, or a robust
            aggregate.
        server_optimizer: Updates the global model with minus the aggregated update as the gradient; SGD with
            learning rate 1 is FedAvg.
        selector: Which clients train.
        evaluation: When and what to measure.
        accelerator: Lightning's flag: ``auto``, ``cpu``, ``gpu``, ``mps``.
        device: Index of the device.
        threads: Threads of torch on the CPU; null leaves the choice to torch. Their number may change
            the rounding of results.
        precision: ``32-true``, ``64-true``, ``bf16-mixed`` (Lightning's; sequential), or ``bf16-true``:
            networks train in bfloat16, and their parameters are kept and evaluated in float32.
        output_layer: Dotted path of the output layer, for selectors that use it; null finds it.
        track: Where the run is tracked besides its own files.
        callbacks: Lightning callbacks.
        output: Where the run is written.
        quiet: Print nothing but warnings and errors.

    Raises:
        UserError: If a value is of another type than is declared, or out of range.
    """

    seed: Annotated[int, Range(0)] = 0
    rounds: Annotated[int, Range(1, 10**8, seconds=1e-3)] = 100
    stop_after_trainings: Annotated[int | None, Range(1)] = None
    stop_after_models: Annotated[int | None, Range(1)] = None
    stop_after_bytes: Annotated[int | None, Range(1)] = None
    stop_after_bytes_down: Annotated[int | None, Range(1)] = None
    stop_after_bytes_up: Annotated[int | None, Range(1)] = None
    clients: Annotated[int | None, Range(1)] = 30
    clients_per_round: Annotated[int, Range(1)] = 6
    data: DataConfig = field(default_factory=DataConfig)
    partition: Partition = field(default_factory=Natural)
    availability: Availability = field(default_factory=IDL)
    completeness: Completeness | None = None
    devices: Devices | None = None
    time: TimeConfig = field(default_factory=TimeConfig)
    asynchronous: AsyncConfig = field(default_factory=AsyncConfig)
    model: Callable[[], nn.Module] = LogisticRegression
    loss: Callable[[], Loss] | None = None
    local: LocalConfig = field(default_factory=LocalConfig)
    objective: Objective = field(default_factory=FedAvg)
    updates: tuple[UpdateStep, ...] = ()
    aggregate: Aggregate = field(default_factory=Mean)
    server_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = field(
        default_factory=lambda: partial(torch.optim.SGD, lr=1.0)
    )
    selector: Selector = field(default_factory=Uniform)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    accelerator: str = "auto"
    device: Annotated[int, Range(0)] = 0
    threads: Annotated[int | None, Range(1, 1024)] = None
    precision: Literal["32-true", "64-true", "bf16-mixed", "bf16-true"] = "32-true"
    output_layer: str | None = None
    track: TrackConfig = field(default_factory=TrackConfig)
    callbacks: tuple[Callable[[], Callback], ...] = ()
    output: OutputConfig = field(default_factory=OutputConfig)
    quiet: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        check_steps(self.updates)
        if self.completeness is not None:
            # One that does not fit the batches says so when it is tried.
            ClientWork(self.completeness, self.local.batches(), self.seed).steps(0, 0, 1)
        if self.devices is None:
            self.time.require_devices()
            if self.availability.in_seconds:
                raise UserError(
                    "devices must be set with availability in seconds, which are simulated, got null: for "
                    "example --devices LogNormal."
                )
            if self.asynchronous.concurrency is not None:
                raise UserError(
                    "devices must be set with asynchronous.concurrency, since updates arrive in simulated "
                    "time, got null: for example --devices LogNormal."
                )
        self.asynchronous.check_fits(self.clients_per_round, self.clients, self.time)
        if self.clients is not None and self.clients_per_round > self.clients:
            raise UserError(
                "clients_per_round must be at most the number of clients, got clients_per_round "
                f"{shown(self.clients_per_round)} of {shown(self.clients)}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, nested as in the YAML file.

        Raises:
            UserError: If a value has no import path, such as a lambda.
        """
        values = vars(self) | {"model": model_object.described(self.model) or self.model}
        return {name: plain(value, name) for name, value in values.items()}

    def __str__(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunSettings):
            return NotImplemented
        try:
            return self.to_dict() == other.to_dict()
        except UserError:
            return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.seed, self.rounds, self.clients, self.clients_per_round, type(self.selector)))
