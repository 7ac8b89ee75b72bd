"""Build the server of a run from its settings."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flsel.arguments import arguments
from flsel.availability import Trace
from flsel.config import RunConfig, given
from flsel.config.groups import LocalConfig
from flsel.config.spec import Spec
from flsel.data.federate import federate
from flsel.data.population import Examples, FederatedData, Source
from flsel.data.sources import load_source
from flsel.engine.evaluation import Evaluator
from flsel.engine.federation import Federation
from flsel.engine.server import Server
from flsel.errors import UserError, users_code
from flsel.local.compiled.trainer import CompiledTrainer
from flsel.local.features import Features
from flsel.local.head import find_head, find_layer
from flsel.local.measure import examples_at_once
from flsel.local.program import Program, lr_factors
from flsel.local.reach import Reach
from flsel.local.sequential import SequentialTrainer
from flsel.local.tasks import as_task, check_steps_alone, make_optimizer
from flsel.local.trainer import LocalTrainer
from flsel.local.vectorised import VmapTrainer, require_vmap, why_not_vmap
from flsel.local.workers import WorkersTrainer
from flsel.objectives.objective import overrides
from flsel.partition import Natural
from flsel.rng import torch_seed
from flsel.runner.callbacks import check_callbacks
from flsel.selector import ON_HOLDOUT, Need

_LOG = logging.getLogger("flsel")


@dataclass(frozen=True)
class Built:
    """A run that is ready to start.

    Attributes:
        server: Holds the state; steppable.
        fabric: Device, precision and loggers.
        program: The client's side.
        data: The clients' data and the three sets beside it.
        callbacks: The callbacks.
    """

    server: Server
    fabric: Fabric
    program: Program
    data: FederatedData
    callbacks: tuple[Any, ...] = ()


@users_code("the data cannot be dealt")
def load_data(config: RunConfig, source: Source | None = None) -> FederatedData:
    """Load a run's dataset, hold examples out and deal the rest to the clients.

    Args:
        config: The settings.
        source: The dataset, if it is at hand already; it is what the settings name.

    Raises:
        UserError: If the dataset, the partition or the number of clients is not right.
    """
    if source is None:
        source = load_source(config.data, clients=config.clients, seed=config.seed)
    natural = isinstance(config.partition, Natural)
    if natural and source.owner is None:
        raise UserError(
            f"partition must be set, since {source.name} has no natural clients: "
            "for example --partition Dirichlet --partition.alpha 0.3."
        )
    if natural:
        _tell_if_cut(source, config)
        return federate(source, config.data, deal=None, seed=config.seed, clients=config.clients)
    if config.clients is None:
        raise UserError("clients must be a number where a partition deals the examples, got null.")
    deal = functools.partial(_deal, config.partition, config.clients)
    return federate(source, config.data, deal=deal, seed=config.seed)


@users_code("the run cannot start")
def build(config: RunConfig, fabric: Fabric, source: Source | None = None) -> Built:
    """Build a run.

    Args:
        config: The settings; their number of threads becomes the process's.
        fabric: Device, precision and loggers.
        source: The dataset, if it is at hand already.

    Returns:
        The server at round 0 and what belongs to it.

    Raises:
        UserError: If something in the settings does not fit.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with users_code("callbacks cannot be built"):
        callbacks = tuple(make() for make in config.callbacks)
    check_callbacks(callbacks)
    data = load_data(config, source)
    clients = len(data.population)
    if config.budget > clients:
        raise UserError(
            f"budget must be at most the number of clients, got budget {config.budget} of {clients}."
        )
    model = make_model(config, data.population.num_classes, tuple(_sample(data, 1)[0].shape[1:]))
    task = as_task(model, config.local.optimizer)
    fabric.setup_module(task)
    data = _on_device(data, task)
    objective = Spec.of(config.objective, "objective").build()
    optimizer = make_optimizer(task, config.local.optimizer)
    program = Program(
        task=task,
        model=model,
        population=data.population,
        spec=config.local.batches(),
        objective=objective,
        lr_factors=lr_factors(config.local.lr_schedule, config.rounds),
        seed=config.seed,
        optimizer=optimizer,
        fabric=fabric,
        at_once=config.evaluation.batch_size or examples_at_once(task),
    )
    _check_logits(program, data.test)
    program = replace(program, features=_features(config, program, data))
    reach = Reach(optimizer, program.trainable(), program.lr_factors)
    if objective.needs_sgd:
        reach.check()
    evaluator = Evaluator(program, data.server)
    federation = Federation(
        data=data,
        program=program,
        trainer=_make_trainer(config.local, program),
        evaluator=evaluator,
        available=_availability(config, data),
        reach=reach,
        head=_find_head(config, model, data),
        rounds=config.rounds,
        budget=config.budget,
    )
    if ON_HOLDOUT & config.selector.needs and data.server is None:
        raise UserError(
            f"{type(config.selector).__name__} needs the server's holdout: set data.server above 0."
        )
    server = Server(
        federation,
        evaluator,
        config.evaluation,
        params=program.state(),
        trainable=program.trainable(),
        optimizer=config.server_optimizer,
        selector=Spec.of(config.selector, "selector").build(),
        objective=objective,
    )
    check_steps_alone(server.optimizer, "server_optimizer")
    return Built(server, fabric, program, data, callbacks)


def make_fabric(config: RunConfig) -> Fabric:
    """Make the Fabric of a run: one device, Lightning's accelerator and precision flags.

    Raises:
        UserError: If there is no such device.
    """
    try:
        devices: Any = 1 if config.accelerator == "cpu" else [config.device]
        if config.accelerator == "auto" and not (
            torch.cuda.is_available() or torch.backends.mps.is_available()
        ):
            devices = 1
        return Fabric(
            accelerator=config.accelerator,
            devices=devices,
            precision=config.precision,
            loggers=[],
        )
    # Lightning's MisconfigurationException is a ValueError; a TPU's libraries may be missing.
    except (ImportError, RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0].rstrip(".!")
        raise UserError(
            f"accelerator {config.accelerator} with device {config.device} is not usable: {reason}."
        ) from error


def _tell_if_cut(source: Source, config: RunConfig) -> None:
    owners = 0 if source.owner is None else int(source.owner.max()) + 1
    if config.clients is not None and config.clients < owners:
        _LOG.warning(
            "%s has %d natural clients, the first %d are used; clients: null takes all",
            source.name, owners, config.clients,
        )  # fmt: skip


def _deal(partition: Any, clients: int, labels: Any, rng: Any) -> Any:
    return partition(labels, clients, rng)


def make_model(config: RunConfig, num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Build the initial model under its own seed, telling it the data's shapes where it asks.

    Args:
        config: The settings.
        num_classes: C.
        input_shape: Shape of one input.
    """
    known = {"num_classes": num_classes, "input_shape": input_shape}
    # An object or a lambda from Python is no setting that a file could hold; whatever else is, is a Spec.
    made, is_set = given.copied(config.model), dict[str, Any]()
    accepted = arguments(made) if made else {}
    if made is None:
        spec = Spec.of(config.model, "model")
        made, is_set, accepted = spec.build, dict(spec.init_args), arguments(spec.made)
    missing = {k: v for k, v in known.items() if k in accepted and is_set.get(k) is None}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(config.seed, "model"))
        with users_code("model cannot be built"):
            model: nn.Module = made(**missing)
        if isinstance(model, nn.Module) and any(map(is_lazy, model.parameters())):
            # Lazy layers take their shapes from the first inputs and draw their weights then.
            with torch.no_grad():
                model.eval()(torch.zeros(2, *input_shape))
        return model


def _sample(data: FederatedData, count: int) -> tuple[Tensor, Tensor]:
    population = data.population
    where = torch.cat(population.shards[:count])[:count]
    return population.normalize(population.x[where]), population.y[where]


def _on_device(data: FederatedData, task: LightningModule) -> FederatedData:
    """Move all data to the task's device and the normalisation to its precision."""
    device = task.device
    dtype = next((p.dtype for p in task.parameters() if p.is_floating_point()), torch.get_default_dtype())
    population = replace(
        data.population,
        x=data.population.x.to(device),
        y=data.population.y.to(device),
        normalize=data.population.normalize.to(device=device, dtype=dtype),
    )

    def move(examples: Examples) -> Examples:
        return Examples(examples.x.to(device), examples.y.to(device))

    return replace(
        data,
        population=population,
        server=None if data.server is None else move(data.server),
        validation=None if data.validation is None else move(data.validation),
        test=move(data.test),
    )


def _check_logits(program: Program, test: Examples) -> None:
    """Run the model once, so that a shape that does not fit is said before anything is written."""
    classes, name = program.population.num_classes, f"model {type(program.model).__name__}"
    program.task.eval()
    x = program.population.normalize(test.x[:2].to(program.task.device))
    refused = f"{name} does not accept inputs of shape {tuple(test.x.shape[1:])}"
    with users_code(refused, reads=True), torch.inference_mode():
        logits = program.task(x)
    if not isinstance(logits, Tensor) or logits.shape != (len(x), classes):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            f"{name} must return logits of shape ({len(x)}, {classes}) for {len(x)} examples, got {shape}."
        )
    if not logits.is_floating_point():
        raise UserError(f"{name} must return logits that are real numbers, got {logits.dtype}.")


def _features(config: RunConfig, program: Program, data: FederatedData) -> Features | None:
    if not overrides(program.objective, "contrast"):
        return None
    layer = find_layer(program.model, _sample(data, 2)[0], data.population.num_classes, config.output_layer)
    return Features(program.task, program.model, layer)


def _make_trainer(config: LocalConfig, program: Program) -> LocalTrainer:
    backend = config.backend
    if backend == "auto":
        stacks = why_not_vmap(program) is None
        # Measured in benchmarks/results.md; on a GPU the compiled step is not yet.
        backend = ("compiled" if program.task.device.type == "cpu" else "vmap") if stacks else "sequential"
        _LOG.info("local.backend auto: %s", backend)
    if backend != "sequential":
        require_vmap(program)
    make: dict[str, Callable[[], LocalTrainer]] = {
        "compiled": functools.partial(CompiledTrainer, config.chunk),
        "vmap": functools.partial(VmapTrainer, config.chunk),
        "sequential": SequentialTrainer,
    }
    if config.workers == 1:
        return make[backend]()
    return WorkersTrainer(make[backend], config.workers, config.chunk)


def _availability(config: RunConfig, data: FederatedData) -> Callable[[int], Tensor]:
    trace = Trace(config.availability, data.population.label_counts().numpy(), config.seed)

    @functools.lru_cache(maxsize=64)
    def available(round: int) -> Tensor:
        return torch.from_numpy(trace(round))

    return available


def _find_head(config: RunConfig, model: nn.Module, data: FederatedData) -> tuple[str, str | None] | None:
    if Need.HEAD not in config.selector.needs:
        return None
    example, _ = _sample(data, 2)
    head = find_head(model, example, data.population.num_classes, config.output_layer)
    return head.weight_name, head.bias_name
