"""Callbacks on rounds: an epoch is a communication round, and what Lightning's classes ask of a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from flsel.arguments import shown
from flsel.engine.server import Server
from flsel.errors import UserError, say_once, short, users_code
from flsel.local.lightning_internals import interval_of
from flsel.local.lightning_module import trained_by
from flsel.local.program import Program
from flsel.local.tasks import Task
from flsel.local.torch_internals import writes_to

# Of lightning.pytorch.callbacks.
_INSTEAD = {
    "ModelCheckpoint": "flsel keeps checkpoints itself (output.checkpoint_every); Result.model is trained",
    "LearningRateMonitor": "an optimizer lives for one visit; the rate over rounds is local.lr_schedule",
    "StochasticWeightAveraging": "average the global model in an on_round_end of your own callback",
}


# Lightning's hooks that are called once a round, and those that could change a step and are never called.
CALLED = (
    "setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end",
    "on_validation_end", "on_train_end", "state_dict", "load_state_dict", "state_key",
)  # fmt: skip
OF_A_STEP = (
    "on_train_batch_start", "on_train_batch_end", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_before_zero_grad",
)  # fmt: skip


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse Lightning's callbacks that cannot work on rounds, and hooks of local steps, which clients lack.

    Hooks that are not called and cannot change a step are named in a warning.

    Raises:
        UserError: If there is one.
    """
    if not callbacks:
        return
    from lightning.pytorch import callbacks as known

    for callback in callbacks:
        for kind, instead in _INSTEAD.items():
            if isinstance(callback, getattr(known, kind)):
                raise UserError(f"callbacks cannot have {type(callback).__name__}: {instead}.")
        if isinstance(callback, known.Timer) and interval_of(callback) != "epoch":
            raise UserError("callbacks: Timer must have interval: epoch, since an epoch is a round here.")
        # A timer counts rounds, and a bar of Lightning's has no steps to show.
        if not isinstance(callback, (known.Timer, known.ProgressBar)):
            _check_hooks(callback, known.Callback)


def _check_hooks(callback: Any, base: type) -> None:
    name = type(callback).__name__
    hooks = [hook for hook in dir(base) if not hook.startswith("_") and hook not in CALLED]
    own = [hook for hook in hooks if hook in vars(callback) or _overrides(callback, hook, base)]
    for hook in own:
        if hook in OF_A_STEP:
            raise UserError(
                f"callback {name} has {hook}, which clients do not call: let the model's training_step or "
                "the optimizer do it, or a hook of rounds (docs/callbacks.md)."
            )
    if own:
        say_once(f"callback {name}: {', '.join(own)} will not be called; docs/callbacks.md lists what is")


def _overrides(callback: Any, hook: str, base: type) -> bool:
    made = getattr(type(callback), hook, None)
    return made is not None and made is not getattr(base, hook)


class RoundTrainer:
    """What callbacks get for a Lightning Trainer.

    Attributes:
        server: The run's server: ``round``, ``params``, ``counts``, ``ledger``.
        current_epoch: The communication round that is being run, or was run last.
        global_step: Communication rounds completed.
        max_epochs: Communication rounds of the run.
        metrics: The last evaluation, by name.
        should_stop: Set it, and the run ends after this round.
        sanity_checking: True while the initial model is measured.
        check_val_every_n_epoch: Communication rounds between evaluations.
        default_root_dir: The run's folder.
        lightning_module: The client's program, with the global model.
        precision: The setting of that name.
        callbacks: All callbacks.
        loggers: The trackers' Lightning loggers.
    """

    world_size = 1
    global_rank = 0
    is_global_zero = True
    fast_dev_run = False
    val_check_interval = 1.0

    def __init__(
        self, server: Server, module: Task, callbacks: Sequence[Any], folder: Path, precision: str
    ) -> None:
        self.server = server
        self.lightning_module = module
        self.callbacks = list(callbacks)
        self.default_root_dir = str(folder)
        self.loggers: list[Any] = []
        self.metrics: Mapping[str, float] = {}
        self.should_stop = False
        self.sanity_checking = False
        self.current_epoch = 0
        self.check_val_every_n_epoch = server.config.every
        self.state = SimpleNamespace(fn="fit")
        self.precision = precision
        self.strategy = _OneProcess()

    @property
    def round(self) -> int:
        """Communication rounds completed."""
        return self.server.round

    @property
    def global_step(self) -> int:
        """Communication rounds completed."""
        return self.server.round

    @property
    def max_epochs(self) -> int:
        """Communication rounds of the run."""
        return self.server.federation.rounds

    @property
    def logger(self) -> Any:
        """The first tracker's Lightning logger, or None."""
        return self.loggers[0] if self.loggers else None

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The last evaluation, by name, as tensors."""
        return {name: torch.tensor(value) for name, value in self.metrics.items()}


class _OneProcess:
    """A Lightning strategy of one process, as far as callbacks ask it."""

    root_device = torch.device("cpu")

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        return decision

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return value

    def barrier(self, name: str | None = None) -> None:
        pass


class Callbacks:
    """The callbacks of a run; an error of a callback becomes one sentence that names it.

    Args:
        trainer: What they get for a Lightning Trainer; its server's model is put into its module.
        load: Puts a model into the module.
    """

    def __init__(self, trainer: RoundTrainer, load: Any) -> None:
        self.trainer = trainer
        self._load = load
        self._trainable = list(trainer.server.federation.program.trainable())

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of Lightning's with trainer, module and arguments, by position as Lightning does."""
        self._each(hook, (self.trainer, self.trainer.lightning_module, *arguments.values()), {})

    def tell(self, hook: str, **arguments: Any) -> None:
        """Call a hook of flsel's: it gets ``server`` beside the arguments."""
        self._each(hook, (), {"server": self.trainer.server, **arguments})

    def evaluated(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Tell of an evaluation (``on_evaluation``), and return it with the numbers that callbacks add to it.

        Raises:
            UserError: If one adds what is no number, or changes what flsel measured.
        """
        shared: dict[str, Any] = dict(metrics)
        self.trainer.metrics = metrics
        self.tell("on_evaluation", metrics=shared)
        names = [type(c).__name__ for c in self.trainer.callbacks if hasattr(c, "on_evaluation")]
        who = f"on_evaluation of {' or '.join(names)}"
        for name, value in metrics.items():
            if name not in shared or shared[name] is not value:
                raise UserError(
                    f"{who} must leave {name} as it was measured; it may add metrics of other names."
                )
        for name in [name for name in shared if name not in metrics]:
            shared[name] = _number(who, name, shared[name])
        self.trainer.metrics = shared
        return shared

    def state_dict(self) -> dict[str, Any]:
        """Return what the callbacks want to keep, by position and class.

        Raises:
            UserError: If a state is not made of tensors and plain values.
        """
        states = {}
        for key, callback in self._keyed():
            with users_code(f"callback {type(callback).__name__} failed in state_dict"):
                state = callback.state_dict() if hasattr(callback, "state_dict") else {}
            if not _is_plain(state):
                raise UserError(
                    f"callback {type(callback).__name__}: state_dict must hold tensors and plain values."
                )
            states[key] = state
        return states

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Give the callbacks back what they kept; one that was added since starts afresh."""
        for key, callback in self._keyed():
            if states.get(key):
                with users_code(f"callback {type(callback).__name__} failed in load_state_dict"):
                    callback.load_state_dict(states[key])

    def _keyed(self) -> list[tuple[str, Any]]:
        return [(f"{n}:{type(made).__qualname__}", made) for n, made in enumerate(self.trainer.callbacks)]

    def _each(self, hook: str, given: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        able = [made for made in self.trainer.callbacks if callable(getattr(made, hook, None))]
        if not able:
            return
        self._load(self.trainer.server.params)
        federation, module = self.trainer.server.federation, self.trainer.lightning_module
        program, before = federation.program, _traits(federation.program)
        changed = program.kept.changed()  # so does an iterator always
        with trained_by(module, self.trainer):
            self._call(able, hook, given, arguments)
        if _traits(program) != before or program.kept.changed() != changed:
            federation.trainer.forget(program)
            program.kept.renew()

    def _call(
        self, able: Sequence[Any], hook: str, given: tuple[Any, ...], arguments: dict[str, Any]
    ) -> None:
        program = self.trainer.server.federation.program
        for callback in able:
            name = type(callback).__name__
            try:
                with users_code(f"callback {name} failed in {hook}"):
                    getattr(callback, hook)(*given, **arguments)
            except UserError as error:
                cause = error.__cause__
                if isinstance(cause, AttributeError) and cause.obj is self.trainer:
                    raise UserError(
                        f"callback {name} asks in {hook} for the trainer's {cause.name}, which rounds do not "
                        "have: docs/callbacks.md lists what there is."
                    ) from error
                raise
            if list(program.trainable()) != self._trainable:
                raise UserError(
                    f"callback {name} must not change in {hook} which parameters are trained: a run's are "
                    "those that require gradients when it starts."
                )


def _number(who: str, name: Any, value: Any) -> float:
    """Return what a callback adds to an evaluation as a number."""
    with suppress(TypeError, ValueError):
        if isinstance(name, str) and name not in ("", "round") and not isinstance(value, str | bytes):
            return float(value)
    raise UserError(f"{who} must add numbers by name to metrics, got {short(name, 60)}: {shown(value)}.")


def _traits(program: Program) -> list[Any]:
    """List what a callback may change of what clients compute, so that a change is seen."""
    layers = list(program.task.modules())
    owners = [*layers, *{type(layer): None for layer in layers}, program.objective]
    values = [value for own in owners for name, value in vars(own).items() if name != "training"]
    tensors = [*program.task.buffers(), *(value for value in values if isinstance(value, Tensor))]
    plain = [value if isinstance(value, bool | int | float | str) else id(value) for value in values]
    return [*plain, *((id(tensor), writes_to(tensor)) for tensor in tensors)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str | int) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | bytes | Tensor)
