"""Build the server of a run from its settings."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from flsel.arguments.spec import Spec
from flsel.availability import Availability, Trace
from flsel.config import RunConfig
from flsel.config.groups import LocalConfig
from flsel.data.check_arrays import fits_memory
from flsel.data.population import Examples, FederatedData, Source
from flsel.engine.check_plans import check_asynchronous
from flsel.engine.check_updates import check_bounded, check_updates
from flsel.engine.closing import Closing
from flsel.engine.evaluation import Evaluator, Logged
from flsel.engine.federation import Federation
from flsel.engine.scores import Scores
from flsel.engine.server import Server
from flsel.engine.update_steps import UpdateSteps
from flsel.errors import UserError, say_once, short, users_code
from flsel.local import torch_internals
from flsel.local.agreement import Agreement
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.compiled.refusals import require_compiled, why_not_compiled
from flsel.local.judge import CheckedTrainer
from flsel.local.lightning_module import NEEDS_TRAINER, NeedsTrainer, batch_hooks, own_measures
from flsel.local.measure import examples_at_once, with_single_losses
from flsel.local.optimizers import OptimizerMemory, check_remembers
from flsel.local.personal import PersonalParts, personal_names
from flsel.local.program import Program
from flsel.local.schedule import Reach, lr_factors
from flsel.local.sequential import SequentialTrainer, with_logs, without_constants
from flsel.local.tasks import check_optimizer, is_lightning, make_optimizer
from flsel.local.trainer import LocalTrainer
from flsel.metrics import CLIENT_LOG
from flsel.objectives.objective import overrides
from flsel.params import Params, model_bytes
from flsel.runner.callbacks import check_callbacks
from flsel.runner.corrupt_labels import with_steps_labels
from flsel.runner.device import set_up, trainer_flags
from flsel.runner.load_data import load_data, on_device, sample
from flsel.runner.make_clock import client_work, make_clock
from flsel.runner.network import check_outputs, find_features, head_names, make_model
from flsel.runner.privacy import check_accountant
from flsel.selector import ON_HOLDOUT, Need, Selector

_LOG = logging.getLogger("flsel")

if TYPE_CHECKING:
    from flsel.local.lightning_trainer import LightningTrainer


class WorkerPool(Protocol):
    """Processes that train clients: ``local.workers``."""

    def trainer(self, make: Callable[[], LocalTrainer], local: LocalConfig) -> LocalTrainer:
        """Return a trainer that divides the visits of a run among processes.

        Args:
            make: Makes the trainer that each of them uses.
            local: The settings of local training.
        """


@dataclass(frozen=True)
class Built:
    """A run that is ready to start.

    Attributes:
        server: Holds the state; steppable.
        program: The client's side.
        data: The clients' data and the three sets beside it.
        callbacks: The callbacks.
    """

    server: Server
    program: Program
    data: FederatedData
    callbacks: tuple[Any, ...] = ()


@users_code("the run cannot start")
def build(
    config: RunConfig,
    source: Source | None = None,
    trainer: LocalTrainer | None = None,
    workers: WorkerPool | None = None,
    callbacks: tuple[Any, ...] = (),
) -> Built:
    """Build a run.

    Args:
        config: The settings; their number of threads becomes the process's.
        source: The dataset, if it is at hand already.
        trainer: Trains and asks the clients; None makes what ``local`` says.
        workers: The processes that ``local.workers`` counts; None where there are none but this one.
        callbacks: Callbacks besides those of the settings.

    Returns:
        The server at round 0 and what belongs to it.

    Raises:
        UserError: If something in the settings does not fit.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with users_code("callbacks cannot be built"):
        own = tuple(make() for make in config.callbacks)
    check_callbacks(own)
    data = load_data(config.data, config.partition, config.clients, seed=config.seed, source=source)
    data = with_steps_labels(data, config.updates, config.seed)
    if trainer is not None:
        data = replace(data, population=trainer.population(data.population))
    # The settings are checked once more, with the number of clients that the data may tell.
    check_selector(replace(config, clients=len(data.population)))
    program, data = make_program(config, data, own)
    if trainer is not None and program.whole:
        raise UserError(
            f"model {type(program.model).__name__} needs Lightning's own Trainer, which only simulated "
            "clients have: flsel deploy takes models that local.backend sequential can train."
        )
    if trainer is not None:  # other machines send models only
        program = replace(program, logs=())
    federation = _make_federation(config, program, data, trainer or _make_trainer(config, program, workers))
    server = Server(
        federation,
        config.evaluation,
        _make_selector(config, program, data),
        config.server_optimizer,
        asynchronous=None if config.asynchronous.concurrency is None else config.asynchronous,
        limits=_limits(config),
    )
    check_optimizer(server.optimizer, "server_optimizer")
    return Built(server, program, data, (*own, *callbacks))


def _limits(config: RunConfig) -> dict[tuple[str, ...], float]:
    """Return after how much of what the run ends, by the ledger's columns."""
    limits = {
        ("trainings",): config.stop_after_trainings, ("models_down",): config.stop_after_models,
        ("bytes_down", "bytes_up"): config.stop_after_bytes,
        ("bytes_down",): config.stop_after_bytes_down, ("bytes_up",): config.stop_after_bytes_up,
    }  # fmt: skip
    return {names: most for names, most in limits.items() if most is not None}


def check_selector(config: RunConfig) -> None:
    """Refuse a selector that the settings do not fit, whatever the data are.

    Raises:
        UserError: Naming the setting.
    """
    selector, name = config.selector, type(config.selector).__name__
    needs: Any = selector.needs
    if not isinstance(needs, Need):
        raise UserError(f"{name}.needs must be a Need, such as Need.LABELS, got {needs!r}.")
    if ON_HOLDOUT & needs and config.data.server == 0:
        raise UserError(f"{name} needs the server's holdout: set data.server above 0.")
    if Need.DURATIONS & needs and config.devices is None:
        raise UserError(
            f"devices must be set with {name}, which needs the clients' simulated durations, got null: for "
            "example --devices LogNormal."
        )
    if config.clients is not None:
        asked = config.time.asked(config.clients_per_round, config.clients)
        asked = config.asynchronous.concurrency or asked
        selector.check_clients_per_round(asked)


def _make_selector(config: RunConfig, program: Program, data: FederatedData) -> Selector:
    """Build the selector, once the data and the model are known to give it what it needs."""
    name = type(config.selector).__name__
    if Need.LABELS & config.selector.needs:
        data.population.require_labels(name)
    selector: Selector = Spec.of(config.selector, "selector").build()
    rules, asynchronous = config.time, config.asynchronous.concurrency is not None
    hurried = rules.over_selection > 1 or rules.deadline is not None
    if (hurried or asynchronous) and selector.assumes_arrival:
        say_once(
            f"{name}'s weights are unbiased only if all chosen clients arrive: with time.over_selection, "
            "time.deadline or asynchronous.concurrency some clients count more"
        )
    if asynchronous:
        check_asynchronous(selector, program.objective, remembers=program.memory is not None)
    return selector


def make_program(
    config: RunConfig, data: FederatedData, callbacks: Sequence[Any] = ()
) -> tuple[Program, FederatedData]:
    """Make the client's side, and the data on its device.

    Raises:
        NeedsTrainer: If only Lightning's own Trainer can train the model, and another backend is set.
    """
    try:
        return _assemble(config, data, callbacks, whole=False)
    except NeedsTrainer as reason:
        if config.local.backend not in ("auto", "lightning"):
            raise
        said = str(reason).partition(f", {NEEDS_TRAINER}")[0]
        _LOG.info("local.backend auto: lightning, since %s", said)
        return _assemble(config, data, callbacks, whole=True)


def _assemble(
    config: RunConfig, data: FederatedData, callbacks: Sequence[Any], *, whole: bool
) -> tuple[Program, FederatedData]:
    """Make the client's side for plain steps, or for Lightning's own Trainer."""
    model = make_model(config.model, data.population.wanted_outputs, sample(data, 1), config.seed)
    spec, largest = config.local.batches(), int(data.population.sizes.max())
    fits_memory(
        f"a visit of {spec.num_steps(largest):,} local steps (local.epochs, local.steps, local.batch_size)",
        8 * spec.num_steps(largest) * spec.size,
    )
    own = data.population.hooks
    if own is not None and not whole:
        raise NeedsTrainer(f"{type(own).__name__} changes batches by hooks, {NEEDS_TRAINER}.")
    fabric, task = set_up(config, model, callbacks, whole=whole)
    data = on_device(data, task)
    program = Program(
        task=task,
        model=model,
        population=data.population,
        spec=spec,
        objective=Spec.of(config.objective, "objective").build(),
        lr_factors=lr_factors(config.local.lr_schedule, config.rounds),
        seed=config.seed,
        optimizer=make_optimizer(task, config.local.optimizer, whole=whole),
        fabric=fabric,
        at_once=config.evaluation.batch_size or examples_at_once(task),
        work=client_work(config),
        agreement=Agreement(config.local.check),
        whole=whole,
        hooks=batch_hooks(own, task) if whole else {},
    )
    program = without_constants(check_outputs(program, data.test))
    whole = whole or config.local.backend == "lightning"
    logs = _lightning_trainer(config).first_logs if whole else SequentialTrainer().logs
    program = with_logs(program, logs, whole=whole)
    if program.logs and config.local.backend == "compiled" and program.device.type != "cpu":
        say_once(
            f"local.backend compiled drops what training_step of {type(model).__name__} logs on a GPU: take "
            f"auto or sequential to have columns such as {CLIENT_LOG}{program.logs[0]} in metrics.csv"
        )
        program = replace(program, logs=())
    if Need.SQUARED_LOSS in config.selector.needs:
        program = with_single_losses(program, type(config.selector).__name__)
    memory = None
    if config.local.keep_optimizer:
        if whole:
            raise UserError(
                "local.keep_optimizer must be false where Lightning's Trainer trains, which makes new "
                "optimizers for each client."
            )
        check_remembers(program.optimizer)
        memory = OptimizerMemory(len(program.population), program.task.device)
    features = find_features(program, data, config.output_layer)
    program = replace(program, features=features, memory=memory)
    return replace(program, personal=_personal(config, program)), data


def _personal(config: RunConfig, program: Program) -> PersonalParts | None:
    """Make what clients keep of the model; None if they send all of it.

    Raises:
        UserError: If a pattern matches nothing, or another setting does not fit.
    """
    if not config.local.personal:
        return None
    names = personal_names(config.local.personal, program.state())
    method, name = type(program.objective).__name__, type(config.selector).__name__
    if config.asynchronous.concurrency is not None:
        raise UserError("local.personal must be empty with asynchronous.concurrency.")
    if overrides(program.objective, "observe") or overrides(program.objective, "models"):
        raise UserError(f"local.personal must be empty with objective {method}, which compares whole models.")
    if ON_HOLDOUT & config.selector.needs:
        raise UserError(
            f"local.personal must be empty with {name}, which measures whole models on the server."
        )
    if Need.HEAD & config.selector.needs:
        raise UserError(f"local.personal must be empty with {name}, which reads the output layer's update.")
    return PersonalParts(names, program.state(), len(program.population))


def _make_federation(
    config: RunConfig, program: Program, data: FederatedData, trainer: LocalTrainer
) -> Federation:
    reach = Reach(program.optimizer, program.trainable(), program.lr_factors)
    if program.objective.needs_sgd:
        reach.check()
    params = program.shared()
    steps = _make_steps(config, program, len(data.population))
    trace = make_trace(config.availability, data, config.seed)
    clock = make_clock(
        config,
        data.population.sizes.numpy(),
        model_bytes(params),
        program.objective.cost(params),
        None if steps is None else steps.message.bytes,
    )
    if clock is not None and clock.work is None:
        trace.check_stays(clock.profile(np.arange(len(data.population))))
    given = config.evaluation.metrics
    scores = Scores(given, data.population.num_classes, program.task.device) if given else None
    return Federation(
        data=data,
        program=program,
        trainer=trainer,
        evaluator=Evaluator(program, data.server, scores, _validation(config, program)),
        available=_available(trace),
        reach=reach,
        closing=_closing(head_names(config.selector, program.model, data, config.output_layer), steps),
        rounds=config.rounds,
        clients_per_round=config.asynchronous.updates(config.clients_per_round),
        clock=clock,
        steps=steps,
        record=None if trace.records is None else trace,
    )


def _make_steps(config: RunConfig, program: Program, clients: int) -> UpdateSteps | None:
    """Build what happens to updates on their way; None if they are joined as they are."""
    if not config.updates and not config.aggregate.robust:
        return None
    built = [Spec.of(step, f"updates[{at}]").build() for at, step in enumerate(config.updates)]
    params = program.shared()
    trainable = [name for name in program.trainable() if name in params]
    joined = Spec.of(config.aggregate, "aggregate").build()
    steps = UpdateSteps(built, joined, params=params, trainable=trainable, clients=clients, seed=config.seed)
    least = config.asynchronous.updates(config.clients_per_round)
    check_updates(steps, config.selector, program.objective, least=least)
    check_bounded(steps, [name for name in params if name not in trainable])
    check_accountant(steps)
    return steps


def _closing(head: tuple[str, str | None] | None, steps: UpdateSteps | None) -> Closing:
    if steps is None:
        return Closing(head)
    return Closing(head, steps.on_clients if steps.change_updates else None, steps.joined)


def _validation(config: RunConfig, program: Program) -> Callable[[Params, Examples, bool], Logged] | None:
    """Return what runs a LightningModule's own validation on a set; None where it has none."""
    if not (is_lightning(program.task) and own_measures(program.task)):
        return None
    from flsel.local.lightning_trainer import validate

    return functools.partial(validate, trainer_flags(config), program)


def _make_trainer(config: RunConfig, program: Program, workers: WorkerPool | None) -> LocalTrainer:
    local, backend = config.local, config.local.backend
    if program.whole or local.trainer or backend == "lightning":
        trainer = _lightning_trainer(config)
        return CheckedTrainer(trainer, "lightning", trainer)
    if backend == "auto" and program.memory is not None:
        backend = "sequential"
    if backend == "auto":
        kind = program.task.device.type
        # Measured in benchmarks/backends.md, on CPUs.
        tried = kind in ("cpu", "cuda")
        reason = why_not_compiled(program) if tried else f"nothing was compiled on {kind} so far"
        if program.logs and not reason and kind != "cpu":
            names = short(", ".join(program.logs), 60)
            reason = f"training_step logs {names}, which compiled steps do on a CPU alone"
        backend = "sequential" if reason else "compiled"
        _LOG.info("local.backend auto: %s%s", backend, f", since {reason}" if reason else "")
    if backend != "sequential" and torch_internals.gone():
        torch_internals.warn_of_gone()
        backend = "sequential"
    if backend != "sequential":
        require_compiled(program)
    make: Callable[[], LocalTrainer] = SequentialTrainer
    if backend == "compiled":
        make = functools.partial(CompiledTrainer, local.chunk)
    if local.workers == 1:
        return CheckedTrainer(make(), backend)
    if workers is None:
        raise UserError(
            f"local.workers must be 1 where Ray or Flower executes runs, got {local.workers}: how many "
            "processes they have is max_concurrent and nodes."
        )
    return CheckedTrainer(workers.trainer(make, local), f"{backend} in {local.workers} workers")


def _lightning_trainer(config: RunConfig) -> LightningTrainer:
    from flsel.local.lightning_trainer import LightningTrainer

    if config.local.workers > 1:
        raise UserError(
            f"local.workers must be 1 where Lightning's Trainer trains clients, got {config.local.workers}."
        )
    flags = trainer_flags(config)
    flags.check()
    return LightningTrainer(flags, config.local.optimizer)


def make_trace(mode: Availability, data: FederatedData, seed: int) -> Trace:
    """Return who is available when.

    Raises:
        UserError: If the mode reads labels, and the data have none.
    """
    if mode.reads_labels:
        data.population.require_labels(f"availability {type(mode).__name__}")
    population = data.population
    large = population.has_large_table and not mode.reads_labels
    counts = population.sizes[:, None] if large else population.label_counts()
    return Trace(mode, counts.numpy(), seed)


def _available(trace: Trace) -> Callable[[int], Tensor]:
    @functools.lru_cache(maxsize=64)
    def available(round: int) -> Tensor:
        return torch.from_numpy(trace(round))

    return available
