"""Run a user's LightningModule on clients: which parts run, what flsel replaces, what needs a Trainer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import nn

from flsel.data.population import BATCH_HOOKS
from flsel.errors import UserError, say_once
from flsel.local.lightning_internals import deaf_logger, log

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule


NEEDS_TRAINER = "which needs Lightning's own Trainer: set local.backend to lightning, or to auto"
"""How sentences end about what plain steps cannot train."""
# What clients call themselves, and methods that nobody overrides to have them called.
_STEPS = frozenset((
    "backward", "optimizer_step", "configure_gradient_clipping", "on_before_optimizer_step",
    "on_after_backward", "on_before_zero_grad", "optimizer_zero_grad", "lr_scheduler_step",
))  # fmt: skip
_CALLED = frozenset(("forward", "training_step", "configure_optimizers", "configure_model"))
_WHEN = ("start", "end", "batch_start", "batch_end", "epoch_start", "epoch_end", "model_eval", "model_train")
# Hooks of validation, which a Trainer calls on held-out sets.
VALIDATION = (
    "validation_step", "test_step", "on_validation_model_zero_grad",
    *(f"on_{stage}_{when}" for stage in ("validation", "test") for when in _WHEN),
)  # fmt: skip
# Hooks in whose place flsel loads data and keeps checkpoints itself.
REPLACED = (
    "predict_step", *(f"on_predict_{when}" for when in _WHEN[:-1]),
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "prepare_data",
    "on_fit_end", "teardown", "on_save_checkpoint", "on_load_checkpoint",
)  # fmt: skip


class NeedsTrainer(UserError):
    """A module that only Lightning's own Trainer can train."""


class _NoTrainer:
    """Stands for the trainer that clients do not have."""

    @property
    def logger(self) -> Any:
        """What takes what a step writes to its logger."""
        return deaf_logger()

    @property
    def loggers(self) -> list[Any]:
        """The same in a list."""
        return [self.logger]

    def __bool__(self) -> bool:
        """Refuse what Lightning asks before it answers ``global_step`` and ``current_epoch``.

        Raises:
            NeedsTrainer: Always: Lightning would answer 0, a wrong number.
        """
        raise _noted(f"the model asks for global_step, current_epoch or a rank, {NEEDS_TRAINER}.")

    def __getattr__(self, name: str) -> Any:
        """Refuse what is asked of the trainer.

        Raises:
            NeedsTrainer: Always, but for names of Python's own protocols.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(f"trainer.{name}")


_NO_TRAINER = _NoTrainer()
# What the step that runs was refused.
_REFUSED: list[NeedsTrainer] = []
MEASURING = SimpleNamespace(
    training=False, validating=True, testing=False, predicting=False, sanity_checking=False
)
"""Stands for the trainer of hooks that change batches, where no Trainer measures a model."""


def take(model: LightningModule, *, whole: bool = False) -> LightningModule:
    """Make a LightningModule a client's program.

    Args:
        model: The module.
        whole: Only Lightning's own Trainer can train it.

    Raises:
        NeedsTrainer: If it has what only a Trainer calls.
        UserError: If it brings no ``training_step``.
    """
    from lightning.pytorch import LightningModule

    made, name = type(model), type(model).__name__
    if getattr(made, "training_step", None) is LightningModule.training_step:
        raise UserError(f"model {name} is a LightningModule without a training_step.")
    own = _overridden(model)
    if replaced := [hook for hook in REPLACED if hook in own]:
        say_once(
            f"model {name}: {', '.join(replaced)} will not be called: flsel loads the data, measures the "
            "model on held-out sets, and keeps checkpoints itself"
        )
    if asleep := sum(not layer.training for layer in model.modules()):
        say_once(
            f"model {name}: {asleep} of its layers are in eval mode when it is built, and stay so in "
            "training, as with Lightning's Trainer: call train() in __init__ if they are not to"
        )
    if not whole:
        if not model.automatic_optimization:
            raise NeedsTrainer(f"model {name} sets automatic_optimization to False, {NEEDS_TRAINER}.")
        if hooks := sorted(own - _CALLED - {*REPLACED, *VALIDATION}):
            raise NeedsTrainer(f"model {name} overrides {', '.join(hooks)}, {NEEDS_TRAINER}.")
        _act_as_client(model)
    without_trainer(model)
    return model


def batch_hooks(*owners: Any) -> dict[str, Any]:
    """Return by its name what has each hook that changes batches.

    Args:
        owners: A LightningDataModule and a LightningModule, of which the first comes first; or other things.
    """
    from lightning.pytorch.core.hooks import DataHooks

    return {
        hook: owner
        for hook in BATCH_HOOKS
        for owner in owners[::-1]
        if isinstance(owner, DataHooks)
        and (hook in vars(owner) or getattr(type(owner), hook) is not getattr(DataHooks, hook))
    }


def own_measures(model: LightningModule) -> list[str]:
    """Name the steps by which a module measures itself, in the order of their choice."""
    own = _overridden(model)
    return [step for step in ("validation_step", "test_step") if step in own]


def has_own_steps(model: LightningModule) -> bool:
    """Tell whether a module decides itself when its optimizers step, or changes gradients before they do."""
    return not model.automatic_optimization or bool(_overridden(model) & _STEPS)


def _act_as_client(model: LightningModule) -> None:
    """Let steps that are called without a trainer say what they miss."""
    model.log = MethodType(_log, model)  # type: ignore[method-assign]
    model.optimizers = MethodType(_optimizers, model)  # type: ignore[method-assign]
    if _takes_batch_alone(model.training_step):
        model.training_step = MethodType(_step_of_batch, model)  # type: ignore[method-assign]


@contextmanager
def whole_module(model: Any) -> Iterator[LightningModule]:
    """Give a module back what it was built with, so that a Trainer can run it, and take it again after."""
    own = vars(model)
    put = {
        name: own.pop(name)
        for name in ("log", "optimizers", "training_step")
        if isinstance(own.get(name), MethodType) and own[name].__func__.__module__ == __name__
    }
    try:
        yield model
    finally:
        own.update(put)
        without_trainer(model)


def without_trainer(model: LightningModule) -> None:
    """Let a step that asks for its trainer raise an error: Lightning alone would answer with epoch 0."""
    model.fabric = None  # whose loggers are the run's, and which would stand for a trainer
    model.trainer = _NO_TRAINER  # type: ignore[assignment]


@contextmanager
def trained_by(model: Any, trainer: Any) -> Iterator[None]:
    """Let a LightningModule or LightningDataModule have a trainer within the block, for what asks for it."""
    from lightning.pytorch import LightningDataModule, LightningModule

    if isinstance(model, LightningModule | LightningDataModule):
        model.trainer = trainer
    try:
        yield
    finally:
        if isinstance(model, LightningModule):
            without_trainer(model)
        elif isinstance(model, LightningDataModule):
            model.trainer = None


def _overridden(model: LightningModule) -> set[str]:
    """Name the public methods of Lightning's that a module has others of."""
    from lightning.pytorch import LightningModule
    from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

    bases = (LightningModule, ModelHooks, DataHooks, CheckpointHooks)
    named = {name for base in bases for name, made in vars(base).items() if callable(made)}
    hooks = {name for name in named if not name.startswith("_")} - set(vars(nn.Module))
    return {
        name
        for name in hooks
        if name in vars(model) or getattr(type(model), name, None) is not getattr(LightningModule, name)
    }


def _takes_batch_alone(step: Any) -> bool:
    """Tell whether a training_step leaves out ``batch_idx``, as Lightning allows."""
    signature = inspect.signature(step)
    try:
        signature.bind(None, 0)
    except TypeError:
        return len(signature.parameters) == 1
    return False


def _step_of_batch(model: Any, batch: Any, batch_idx: int) -> Any:
    return type(model).training_step(model, batch)


def _refusal(name: str) -> NeedsTrainer:
    return _noted(f"the model uses self.{name}, {NEEDS_TRAINER}.")


def _noted(sentence: str) -> NeedsTrainer:
    _REFUSED.append(NeedsTrainer(sentence))
    return _REFUSED[-1]


def call_step(module: Any, batch: Any, batch_idx: Any) -> Any:
    """Call a module's ``training_step``, and return what it returns.

    Raises:
        NeedsTrainer: If it asks for a trainer, even if it catches the error that it gets.
    """
    _REFUSED.clear()
    output = module.training_step(batch, batch_idx)
    if _REFUSED:
        raise _REFUSED[0]
    return output


def _optimizers(model: Any, *arguments: Any, **options: Any) -> Any:
    raise _refusal("optimizers()")


def _log(model: Any, *values: Any, **options: Any) -> None:
    log(model, *values, **options)
