"""Run a user's LightningModule on clients: which parts run, which flsel replaces, and which it refuses."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from functools import cache
from types import MethodType
from typing import TYPE_CHECKING, Any

from flsel.errors import UserError, short

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

_LOG = logging.getLogger("flsel")

_STEP = "let training_step or the optimizer do it (an optimizer's step may clip gradients)"
_BATCH = "let training_step do it to the batch that it gets, or the dataset's __getitem__ to an example"
_MAKE = "make its layers in __init__"
_ROUND = "let a callback do it, whose hook of that name is called once a round (docs/callbacks.md)"
# Hooks that could change what is trained, and what does the same on clients.
REFUSED = {
    **dict.fromkeys(
        ("backward", "on_before_backward", "on_after_backward", "on_before_zero_grad",
         "on_before_optimizer_step", "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad",
         "on_train_batch_end"),
        _STEP,
    ),
    **dict.fromkeys(
        ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer",
         "on_train_batch_start"),
        _BATCH,
    ),
    **dict.fromkeys(("setup", "configure_model", "configure_sharded_model"), _MAKE),
    **dict.fromkeys(
        ("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end"),
        _ROUND,
    ),
    "configure_callbacks": "name them under callbacks",
    "lr_scheduler_step": "a schedule over rounds is local.lr_schedule",
}  # fmt: skip
# Hooks in whose place flsel measures, loads data and keeps checkpoints itself.
REPLACED = (
    "validation_step", "test_step", "predict_step",
    *(f"on_{stage}_{when}" for stage in ("validation", "test", "predict") for when in (
        "start", "end", "batch_start", "batch_end", "epoch_start", "epoch_end", "model_eval")),
    "on_validation_model_train", "on_test_model_train", "on_validation_model_zero_grad",
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "prepare_data",
    "on_fit_end", "teardown", "on_save_checkpoint", "on_load_checkpoint",
)  # fmt: skip


class _NoTrainer:
    """Stands for the trainer that clients do not have."""

    logger = None
    loggers: Sequence[Any] = ()

    def __bool__(self) -> bool:
        """Refuse what Lightning asks before it answers ``global_step`` and ``current_epoch``.

        Raises:
            UserError: Always: there is no count over all clients, and 0 would be a wrong number.
        """
        raise UserError(
            "training_step must not ask for global_step, current_epoch or a rank, which clients do not have: "
            "batch_idx counts a client's steps, and a callback may set an attribute of the model between "
            "rounds (docs/callbacks.md)."
        )

    def __getattr__(self, name: str) -> Any:
        """Refuse what is asked of the trainer.

        Raises:
            UserError: Always, but for names of Python's own protocols.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(f"trainer.{name}")


_NO_TRAINER = _NoTrainer()


def take(model: LightningModule) -> LightningModule:
    """Make a LightningModule a client's program.

    Raises:
        UserError: If it brings no loss, or has what clients would not call though it could change the loss.
    """
    from lightning.pytorch import LightningModule

    made, name = type(model), type(model).__name__
    if getattr(made, "training_step", None) is LightningModule.training_step:
        raise UserError(f"model {name} is a LightningModule without a training_step.")
    if not model.automatic_optimization:
        raise UserError(
            f"model {name} sets automatic_optimization to False, and clients step by "
            "themselves: let training_step return the loss, and leave backward and step to flsel."
        )
    own = {hook for hook in (*REFUSED, *REPLACED) if _overrides(model, hook, LightningModule)}
    for hook, instead in REFUSED.items():
        if hook in own:
            raise UserError(f"model {name} overrides {hook}, which clients do not call: {instead}.")
    if replaced := [hook for hook in REPLACED if hook in own]:
        say_once(
            f"model {name}: {', '.join(replaced)} will not be called: flsel loads the data, measures the "
            "loss of training_step and the accuracy of forward, and keeps checkpoints itself"
        )
    model.log = MethodType(_log, model)  # type: ignore[method-assign]
    model.log_dict = MethodType(_log_dict, model)  # type: ignore[method-assign]
    model.optimizers = MethodType(_optimizers, model)  # type: ignore[method-assign]
    without_trainer(model)
    if _takes_batch_alone(model.training_step):
        model.training_step = MethodType(_step_of_batch, model)  # type: ignore[method-assign]
    return model


def without_trainer(model: LightningModule) -> None:
    """Refuse a step that asks for its trainer; without one Lightning would answer for the epoch with 0."""
    model.fabric = None  # whose loggers are the run's, and which would stand for a trainer
    model.trainer = _NO_TRAINER  # type: ignore[assignment]


def _overrides(model: LightningModule, hook: str, base: type) -> bool:
    return hook in vars(model) or getattr(type(model), hook, None) is not getattr(base, hook, None)


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


def _refusal(name: str) -> UserError:
    return UserError(
        f"training_step must not use self.{name}, which clients do not have: let it return the loss, and let "
        "the optimizer's step or a callback (docs/callbacks.md) do the rest."
    )


def _optimizers(model: Any, *arguments: Any, **options: Any) -> Any:
    raise _refusal("optimizers()")


def _log(model: Any, name: Any = None, *values: Any, **options: Any) -> None:
    # What clients log in their own steps is not the run's, and cannot be read under vmap.
    _tell_of_logs(type(model).__name__, short(name, 60))


def _log_dict(model: Any, dictionary: Any = None, *values: Any, **options: Any) -> None:
    _tell_of_logs(type(model).__name__, short(", ".join(map(str, dictionary or ())), 60))


@cache
def _tell_of_logs(model: str, name: str) -> None:
    say_once(
        f"model {model} logs {name}, which is dropped: clients have no logger. Columns of metrics.csv are "
        "added by a callback's on_evaluation (docs/callbacks.md)"
    )


@cache
def say_once(text: str, level: int = logging.WARNING) -> None:
    """Log a text once in a process, however often a model is built."""
    _LOG.log(level, "%s", text)
