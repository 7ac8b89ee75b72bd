"""A run among others that Ray plays at the same time: what it may ask for, and what it is given."""

from __future__ import annotations

from dataclasses import replace

from flsel.config import RunConfig
from flsel.errors import UserError


def beside_others(config: RunConfig, cpus: float, gpus: float) -> RunConfig:
    """Fit the settings of a run to a process of Ray's: one device, and as many threads as CPUs.

    Args:
        config: The settings; a number of threads in them stays.
        cpus: CPUs of the process, > 0.
        gpus: Its GPUs, >= 0.
    """
    # Ray hides the other runs' GPUs, but hides none from a run that asks for none.
    accelerator = "cpu" if gpus == 0 else config.accelerator
    return replace(config, accelerator=accelerator, device=0, threads=config.threads or max(1, int(cpus)))


def check_gpus(gpus: float) -> None:
    """Refuse a part of several GPUs, which Ray does not hand out.

    Raises:
        UserError: If it is one.
    """
    if gpus > 1 and gpus != int(gpus):
        raise UserError(f"gpus must be a whole number or below 1, got {gpus:g}.")
