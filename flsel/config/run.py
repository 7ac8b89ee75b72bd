"""The settings of a run: the schema of the YAML file, of the command line and of Python.

Each field is a key (``--local.batch_size 32``); the text under it is the comment that
``flsel train --print_config`` prints. Plug-in points take ``{class_path, init_args}``: a selector, a
partition, an availability mode and an objective are built at once, since their constructors only store
arguments; a model, an optimizer, a schedule and a callback are kept as factories until the run needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from flsel.arguments import Checked, Range, arguments, check, shown
from flsel.arguments.later import Callback
from flsel.availability import IDL, Availability
from flsel.config.groups import EvaluationConfig, LocalConfig, OutputConfig, TrackConfig
from flsel.data.config import DataConfig
from flsel.errors import UserError
from flsel.models import LogisticRegression
from flsel.objectives import FedAvg, Objective
from flsel.partition import Natural, Partition
from flsel.selector import Selector
from flsel.selectors.uniform import Uniform


@dataclass(frozen=True)
class RunConfig:
    """One federated run.

    Attributes:
        seed: Seed of every generator of the run.
        rounds: Communication rounds (T).
        clients: Number of clients (N); null takes the dataset's natural clients.
        budget: Clients per round (K), at most N.
        data: The dataset and what is held out of it.
        partition: How examples are dealt to clients; ``Natural`` keeps the dataset's natural clients.
        availability: Who can be reached in which round.
        model: The network, or a LightningModule that brings its loss and optimizer: a class, a function or,
            from Python, an object, of which each run trains a copy.
        local: What a client does in one visit.
        objective: What a client minimises besides its loss.
        server_optimizer: Updates the global model with minus the aggregated update as the gradient; SGD with
            learning rate 1 is FedAvg.
        selector: Who trains.
        evaluation: When and what to measure.
        accelerator: Lightning's flag: ``auto``, ``cpu``, ``gpu``, ``mps``.
        device: Index of the device.
        threads: Threads of torch on the CPU; null leaves torch's choice. Other numbers of threads may
            round sums differently.
        precision: ``32-true``, ``64-true``, ``bf16-mixed`` (Lightning's; sequential), or ``bf16-true``:
            networks train in bfloat16, their parameters kept and evaluated in float32.
        output_layer: Dotted path of the output layer, for selectors that look at it; null finds it.
        track: Where the run is tracked besides its own files.
        callbacks: Lightning callbacks.
        output: Where the run is written.
        quiet: Print nothing but warnings and errors.

    Raises:
        UserError: If a value is out of range.
    """

    seed: Annotated[int, Range(0)] = 0
    rounds: Annotated[int, Range(1, 10**8, seconds=1e-3)] = 100
    clients: Annotated[int | None, Range(1)] = 30
    budget: Annotated[int, Range(1)] = 6
    data: DataConfig = field(default_factory=DataConfig)
    partition: Partition = field(default_factory=Natural)
    availability: Availability = field(default_factory=IDL)
    model: Callable[[], nn.Module] = LogisticRegression
    local: LocalConfig = field(default_factory=LocalConfig)
    objective: Objective = field(default_factory=FedAvg)
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
        check(type(self), vars(self))
        for name, argument in arguments(RunConfig).items():
            default, given = argument.default, getattr(self, name)
            if isinstance(default, Checked) and not isinstance(given, argument.hint):
                example = f"{argument.hint.__name__} object, such as {name}={type(default).__name__}()"
                raise UserError(f"{name} must be a {example}, got {shown(given)}.")
        if self.clients is not None and self.budget > self.clients:
            raise UserError(
                "budget must be at most the number of clients, got budget "
                f"{shown(self.budget)} of {shown(self.clients)}."
            )
