"""Set up the device and the precision of a run. Lightning is imported only if the run needs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from flsel.arguments.later import Loss
from flsel.arguments.spec import Spec
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.local.lightning_module import without_trainer
from flsel.local.plain import DTYPES, PlainFabric
from flsel.local.tasks import Classifier, Task, as_task, is_lightning
from flsel.local.torch_internals import has_bf16

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from flsel.local.lightning_trainer import TrainerFlags

_LOG = logging.getLogger("flsel")
_BFLOAT = "bf16-true"


def set_up(
    config: RunConfig, model: nn.Module, callbacks: Sequence[Any], *, whole: bool = False
) -> tuple[Fabric | PlainFabric, Task]:
    """Make a model the client's program, on its device and in its precision.

    Args:
        config: The settings.
        model: The network, or a LightningModule.
        callbacks: The callbacks of the run, which get a LightningModule.
        whole: Only Lightning's own Trainer can train it.

    Raises:
        UserError: If there is no such device, or the model cannot be trained.
    """
    if config.precision == _BFLOAT:
        fabric, task = set_up(replace(config, precision="32-true"), model, callbacks, whole=whole)
        return fabric, _rounding(task)
    loss = None if config.loss is None else Spec.of(config.loss, "loss", Loss).build()
    on_cpu = _on_cpu(config)
    if on_cpu and config.device != 0:
        raise UserError(f"device must be 0 where the processor trains, got {config.device}.")
    light = config.precision in DTYPES and config.local.backend != "lightning" and not config.local.trainer
    if on_cpu and light and not whole and not callbacks and not is_lightning(model):
        plain, task = PlainFabric(config.precision), as_task(model, config.local.optimizer, loss=loss)
        plain.setup_module(task)
        return plain, task
    from flsel.local.lightning import LightningClassifier

    fabric = _make_fabric(config, 1 if on_cpu else [config.device])
    task = as_task(model, config.local.optimizer, LightningClassifier, loss=loss, whole=whole)
    fabric.setup_module(task)
    if is_lightning(task):
        without_trainer(task)
    return fabric, task


def trainer_flags(config: RunConfig) -> TrainerFlags:
    """Return the arguments of Lightning's Trainer that the settings decide."""
    from flsel.local.lightning_trainer import TrainerFlags

    precision = "32-true" if config.precision == _BFLOAT else config.precision
    devices = 1 if _on_cpu(config) else [config.device]
    return TrainerFlags(config.accelerator, devices, precision, config.local.trainer)


def _on_cpu(config: RunConfig) -> bool:
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    return config.accelerator == "cpu" or (config.accelerator == "auto" and not accelerated)


def _rounding(task: Task) -> Task:
    """Let a network train in bfloat16; its parameters stay what they are.

    Raises:
        UserError: If it cannot.
    """
    if not isinstance(task, Classifier):
        raise UserError(
            f"precision {_BFLOAT} trains plain networks, and {type(task).__name__} brings a step of its own: "
            "use bf16-mixed."
        )
    recurrent = next((type(m).__name__ for m in task.modules() if isinstance(m, nn.RNNBase)), None)
    if recurrent is not None:
        raise UserError(f"precision {_BFLOAT} cannot train {recurrent}: use bf16-mixed.")
    task.compute = torch.bfloat16
    if task.device.type == "cpu" and not has_bf16():
        _LOG.warning("precision %s: this CPU has no AVX-512 BF16, so 32-true is likely faster", _BFLOAT)
    return task


def _make_fabric(config: RunConfig, devices: int | list[int]) -> Fabric:
    """Make the Fabric of a run: one device, Lightning's accelerator and precision flags."""
    from flsel.local.lightning import Fabric

    try:
        return Fabric(accelerator=config.accelerator, devices=devices, precision=config.precision, loggers=[])
    # Lightning's MisconfigurationException is a ValueError; a TPU's libraries may be missing.
    except (ImportError, RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0].rstrip(".!")
        raise UserError(
            f"accelerator {config.accelerator} with device {config.device} is not usable: {reason}."
        ) from error
