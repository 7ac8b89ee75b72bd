"""Local training and validation by Lightning's own Trainer, which calls every hook of a LightningModule."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor
from torch.optim import Optimizer

from flsel.arguments import Range
from flsel.data.population import Examples
from flsel.data.trees import Tree
from flsel.errors import UserError, meant, say_once, users_code
from flsel.local.dropout import Masks, step_keys, visit_key
from flsel.local.lightning_internals import deaf_logger, leave_signals
from flsel.local.lightning_module import own_measures, trained_by, whole_module
from flsel.local.program import Program
from flsel.local.sequential import VisitBatches
from flsel.local.tasks import OptimizerFactory, loss_of
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, empty_ends, put_end
from flsel.metrics import Better
from flsel.params import Params
from flsel.rng import repeatable, seed_layers

# Arguments of the Trainer that other settings decide, or that make no sense for one client of many.
_DECIDED = frozenset((
    "accelerator", "strategy", "devices", "num_nodes", "precision", "logger", "callbacks", "fast_dev_run",
    "max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "limit_val_batches",
    "limit_test_batches", "limit_predict_batches", "val_check_interval", "check_val_every_n_epoch",
    "num_sanity_val_steps", "enable_checkpointing", "enable_progress_bar", "enable_model_summary",
    "inference_mode", "use_distributed_sampler", "reload_dataloaders_every_n_epochs", "default_root_dir",
    "barebones", "sync_batchnorm", "model_registry",
))  # fmt: skip
# What Lightning does not check: it takes a norm below 0 for none.
_RANGES = {"gradient_clip_val": Range(0), "accumulate_grad_batches": Range(1)}
Logged = tuple[dict[str, float], dict[str, Better | None]]
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # what torch's schedulers keep in an optimizer's groups


@dataclass(frozen=True)
class TrainerFlags:
    """Arguments of Lightning's Trainer that a run decides.

    Attributes:
        accelerator: Lightning's accelerator.
        devices: Number of devices, or the index of the one that trains.
        precision: Lightning's precision flag.
        more: Further arguments, from the setting ``local.trainer``.
    """

    accelerator: str
    devices: int | list[int]
    precision: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Make a Trainer once.

        Raises:
            UserError: If an argument is unknown, decided by flsel, or refused by Lightning.
        """
        allowed = {*inspect.signature(Trainer).parameters} - _DECIDED
        for name in self.more:
            if name not in allowed:
                raise UserError(
                    f"local.trainer.{name} must be an argument of Lightning's Trainer that flsel leaves open"
                    f"{meant(name, allowed)}"
                )
        for name, least in _RANGES.items():
            if isinstance(value := self.more.get(name), int | float) and value not in least:
                raise UserError(f"local.trainer.{name} must be a number {least}, got {value}.")
        with users_code("local.trainer is refused by Lightning", reads=True):
            self.make(max_epochs=1)

    def make(self, **given: Any) -> Trainer:
        """Make a Trainer that writes nothing, shows nothing and handles no signals."""
        with _quiet():
            trainer = Trainer(
                accelerator=self.accelerator,
                devices=self.devices,
                precision=self.precision,  # type: ignore[arg-type]
                logger=deaf_logger(),
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                inference_mode=False,
                **{**self.more, **given},
            )
        leave_signals(trainer)
        return trainer


@final
class LightningTrainer(LocalTrainer):
    """Train clients in turn, each by a Lightning Trainer of its own.

    A visit has the batches of the other trainers. Each of its passes over the client's examples is an epoch.
    The objective corrects gradients before each step of an optimizer, and before clipping.

    Args:
        flags: Arguments of the Trainer.
        optimizer: Takes the place of the module's ``configure_optimizers`` if given.
    """

    def __init__(self, flags: TrainerFlags, optimizer: OptimizerFactory | None = None) -> None:
        self._flags = flags
        self._optimizer = optimizer

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`)."""
        ends = empty_ends(visits)
        devices = {visit.program.task.device for visit in visits}
        with repeatable(0, [device for device in devices if device.type == "cuda"]):
            for row, visit in enumerate(visits):
                logged = self.logs(visit)
                put_end(ends, row, visit.program.state(), logged)
        return ends

    def one_by_one(self, program: Program) -> bool:
        """Return True: there is nothing to compare with sequential."""
        return True

    def first_logs(self, visit: Visit) -> dict[str, float]:
        """Return what the task logs on one client's examples if each pass ends after its first batch."""
        return self.logs(visit, limit_train_batches=1)

    def logs(self, visit: Visit, **flags: int) -> dict[str, float]:
        """Fit the task on one client's examples, with more arguments of the Trainer; return what it logs."""
        program = visit.program
        program.load(visit.start)
        for param in program.task.parameters():
            param.grad = None
        try:
            table = visit.batches()
            logged = self._fit(visit, table, flags) if len(table) else {}
            program.kept.check_frozen(program.model)
            return logged
        finally:
            program.task.zero_grad()
            program.kept.restore()

    def _fit(self, visit: Visit, table: Tensor, flags: Mapping[str, int]) -> dict[str, float]:
        program, device = visit.program, visit.program.task.device
        examples = len(program.population.shards[visit.client])
        feed = VisitBatches(program, table, visit.client, visit.draw)
        passes = _Passes(feed, program.spec.pass_length(examples))
        corrections = _Corrections(visit)
        trainer = self._flags.make(
            max_epochs=len(passes),
            limit_val_batches=0,
            reload_dataloaders_every_n_epochs=int(len(passes) > 1),
            callbacks=[corrections],
            **flags,
        )
        seed_layers(device, visit_key(program.seed, visit.draw, visit.client))
        name = type(program.model).__name__
        with (
            _quiet(),
            whole_module(program.task) as module,
            self._wrapped(module, visit, corrections),
            _hooked(program, module, trainer),
            users_code(f"model {name} cannot be trained"),
        ):
            try:
                trainer.fit(module, datamodule=passes)
            except MisconfigurationException:
                _require_monitored(trainer, name)
                raise
            _require_monitored(trainer, name)
        if not (corrections.took or flags):
            say_once(f"training_step of {name} returned None in every step of a client, which did not train")
        program.task.to(device)  # the Trainer leaves it on the CPU
        return {name: float(value) for name, value in trainer.callback_metrics.items()}

    @contextmanager
    def _wrapped(self, module: LightningModule, visit: Visit, at: _Corrections) -> Iterator[None]:
        """Put the objective's loss and dropout's masks around the module's own step."""
        program = visit.program
        plain_step = module.training_step
        keys = step_keys([visit_key(program.seed, visit.draw, visit.client)], range(visit.steps))
        models = program.opponents(visit.start, visit.client)
        drawn = program.drawn(visit.client, visit.round, visit.draw)

        @functools.wraps(plain_step)
        def training_step(*given: Any, **named: Any) -> Any:
            step = at.step
            with Masks(keys[step, 0].to(program.task.device)):
                if not models and not drawn:
                    output = plain_step(*given, **named)
                    at.took |= output is not None or not module.automatic_optimization
                    return output
                at.took = True
                rows = {name: values[step] for name, values in drawn.items()}
                batch = program.parted(named["batch"] if "batch" in named else given[0])
                return program.loss(lambda: loss_of(plain_step(*given, **named)), batch, models, rows)

        changed: dict[str, Any] = {
            "training_step": training_step,
            "configure_callbacks": functools.partial(_client_callbacks, module, module.configure_callbacks),
        }
        if self._optimizer is not None:
            changed["configure_optimizers"] = functools.partial(_made, self._optimizer, module)
        with _put(module, changed):
            yield


def validate(
    flags: TrainerFlags, program: Program, params: Params, examples: Examples, test: bool = False
) -> Logged:
    """Return what a LightningModule logs when it measures itself on a set, weighted as Lightning weighs it.

    Its ``validation_step`` measures, and on test data, or where it has no other, its ``test_step``.

    Args:
        flags: Arguments of the Trainer.
        program: The client's side.
        params: The model.
        examples: The set.
        test: The set is test data.

    Returns:
        The values by name, and which way of each is better, as far as a metric of torchmetrics says so.
    """
    device, size = program.task.device, program.at_once
    where = [torch.arange(first, min(first + size, len(examples))) for first in range(0, len(examples), size)]
    values, ways = dict[str, float](), dict[str, Better | None]()
    with (
        program.evaluating(params, plain=True),
        _quiet(),
        whole_module(program.task) as module,
        _noting(module, ways),
    ):
        batches = _Given(functools.partial(_normalised, program, examples), where)
        steps = own_measures(module)
        for step in steps if test else steps[:1]:
            trainer = flags.make()
            run = trainer.validate if step == "validation_step" else trainer.test
            with _hooked(program, module, trainer):
                run(module, dataloaders=batches, verbose=False)
            values |= {name: float(value) for name, value in trainer.callback_metrics.items()}
        program.task.to(device)
    return values, {name: ways.get(name) for name in values}


@contextmanager
def _noting(module: LightningModule, ways: dict[str, Better | None]) -> Iterator[None]:
    """Note which way metrics of torchmetrics are better that a module logs within the block."""
    plain = module.log

    def log(name: str, value: Any, *given: Any, **named: Any) -> None:
        higher = getattr(value, "higher_is_better", None)
        ways[name] = None if higher is None else "max" if higher else "min"
        plain(name, value, *given, **named)

    with _put(module, {"log": log}):
        yield


@contextmanager
def _hooked(program: Program, module: LightningModule, trainer: Trainer) -> Iterator[None]:
    """Let a Trainer call the hooks of the run's LightningDataModule that change batches."""
    hooks = {name: getattr(program.hooks[name], name) for name in program.hooks}
    with trained_by(program.population.hooks, trainer), _put(module, hooks):
        yield


@contextmanager
def _put(module: LightningModule, changed: Mapping[str, Any]) -> Iterator[None]:
    """Give a module other methods within the block."""
    own = {name: vars(module)[name] for name in changed if name in vars(module)}
    vars(module).update(changed)
    try:
        yield
    finally:
        for name in changed:
            vars(module).pop(name, None)
        vars(module).update(own)


def _client_callbacks(module: LightningModule, plain: Callable[[], Any]) -> list[Callback]:
    """Return a module's own callbacks without those that write checkpoints."""
    made = plain()
    given = [made] if isinstance(made, Callback) else [*made]
    kept = [each for each in given if not isinstance(each, Checkpoint)]
    if len(kept) < len(given):
        say_once(
            f"model {type(module).__name__}: checkpoints of configure_callbacks are left out, since flsel "
            "keeps checkpoints itself"
        )
    return kept


def _require_monitored(trainer: Trainer, name: str) -> None:
    """Refuse a schedule that follows what a client does not measure while it trains.

    Raises:
        UserError: If there is one.
    """
    known = sorted(trainer.callback_metrics)
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.monitor not in known:
            such = f", such as {known[0]}" if known else ""
            raise UserError(
                f"configure_optimizers of {name} must monitor what training_step logs{such}, got "
                f"{config.monitor}: a client has no validation set."
            )


class _Passes(LightningDataModule):
    """The batches of a visit, pass by pass over the client's examples, of ``length`` batches each."""

    def __init__(self, feed: VisitBatches, length: int) -> None:
        super().__init__()
        self._feed, self._length = feed, length

    def __len__(self) -> int:
        return -(-len(self._feed) // self._length)

    def train_dataloader(self) -> Iterable[Any]:
        """Return the batches of the Trainer's epoch."""
        assert self.trainer is not None
        first = self.trainer.current_epoch * self._length
        feed = replace(self._feed, first=first, stop=first + self._length)
        return _Given(feed.program.as_given, feed)


class _Given:
    """Batches as a step takes them, made from some other form of theirs."""

    def __init__(self, make: Callable[[Any], Any], forms: VisitBatches | list[Tensor]) -> None:
        self._make, self._forms = make, forms

    def __len__(self) -> int:
        return len(self._forms)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._forms)


class _Corrections(Callback):
    """Lets the objective correct gradients, and the run's schedule scale learning rates.

    Attributes:
        step: Batches that were begun, less one.
        took: Whether a batch had a loss, or may have had one where the module steps its optimizers itself.
    """

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._params = visit.program.trainable()
        self.step, self.took = -1, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Scale learning rates by the factor of the communication round.

        Raises:
            UserError: If the module has made new parameters, so that the server's model is lost.
        """
        for name, param in self._visit.program.trainable().items():
            if param is not self._params.get(name):
                raise UserError(
                    f"model {type(self._visit.program.model).__name__} makes parameters such as {name} where "
                    "each client's training begins, which would replace the server's: make them in __init__ "
                    "or configure_model, or in setup if they are not there yet."
                )
        factor = self._visit.program.lr_factors[self._visit.round]
        if factor == 1.0:
            return
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group.update({name: group[name] * factor for name in _RATES if name in group})
        for config in trainer.lr_scheduler_configs:
            if hasattr(config.scheduler, "base_lrs"):
                config.scheduler.base_lrs = [rate * factor for rate in config.scheduler.base_lrs]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch."""
        self.step += 1

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Correct the gradients of the optimizer's parameters."""
        own = {id(param) for group in optimizer.param_groups for param in group["params"]}
        params = self._params
        grads = {n: p.grad for n, p in params.items() if p.grad is not None and id(p) in own}
        visit, objective = self._visit, self._visit.program.objective
        with torch.no_grad():
            for name, grad in objective.corrected(grads, params, visit.start, visit.client).items():
                params[name].grad = grad


def _made(optimizer: OptimizerFactory, module: LightningModule) -> Optimizer:
    return optimizer(param for param in module.parameters() if param.requires_grad)


def _normalised(program: Program, examples: Examples, where: Tensor) -> Tree:
    return program.as_given(program.ready(examples.read(where), fed=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's advice about trainers of long runs from the log of a visit."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.")
            yield
    finally:
        logger.setLevel(level)
