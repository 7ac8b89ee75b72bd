"""Private names of Lightning that flsel uses. It runs without them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Timer

from flsel.errors import say_once

_LOG = logging.getLogger("flsel")


def interval_of(timer: Timer) -> str:
    """Return after what a timer looks at the clock: ``step`` or ``epoch``; ``epoch`` if it does not tell."""
    if not hasattr(timer, "_interval"):
        _warn("Timer._interval: a Timer with interval: step is accepted, and never ends a run")
    return str(getattr(timer, "_interval", "epoch"))


def leave_signals(trainer: Any) -> None:
    """Keep a Trainer from handling signals: flsel handles them, and ends a run after its round."""
    connector: Any = getattr(trainer, "_signal_connector", None)
    if connector is None:
        _warn("Trainer._signal_connector: a signal ends the training of a client with an error")
        return
    connector.register_signal_handlers = lambda: None


@functools.cache
def deaf_logger() -> Any:
    """Return a logger that takes all that a module writes to it, keeps nothing, and says so once."""
    from lightning.pytorch.loggers.logger import DummyLogger

    class Deaf(DummyLogger):
        @property
        def experiment(self) -> Any:
            return _DeafExperiment()

    return Deaf()


class _DeafExperiment:
    """Takes every call."""

    def __getattr__(self, name: str) -> Any:
        say_once("what a model writes to self.logger is not kept: self.log makes columns of metrics.csv")
        return lambda *given, **named: None

    def __getitem__(self, at: int) -> _DeafExperiment:
        return self


class ClientLog:
    """Hears what a LightningModule logs in the steps of a visit, in a Trainer's place.

    A value is that of the last step (``on_step``), or the mean over the last pass weighted by the examples of
    its batches (``on_epoch``), by Lightning's own code, as ``reduce_fx`` and metrics of torchmetrics say.

    Args:
        pass_length: Batches of a pass over the client's examples.

    Attributes:
        values: What was heard so far, by name.
    """

    barebones, training, logger = False, True, True
    strategy = SimpleNamespace(reduce=lambda value, *given, **named: value)
    _accelerator_connector = SimpleNamespace(is_distributed=False)
    _logger_connector = SimpleNamespace(should_reset_tensors=lambda name: False)

    def __init__(self, pass_length: int) -> None:
        from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

        self.values: dict[str, Any] = {}
        self._length, self._step = pass_length, 0
        self._results = _ResultCollection(training=True)

    @contextmanager
    def hearing(self, batch: Any, last: bool) -> Iterator[None]:
        """Hear one step; no other follows the ``last``."""
        self._results.batch, self._results.batch_size = batch, None
        with heard_by(self):
            yield
        self._step += 1
        self.values |= self._results.metrics(on_step=True)["callback"]
        if last or self._step % self._length == 0:
            self.values |= self._results.metrics(on_step=False)["callback"]
            self._results.reset()

    def take(self, model: Any, *given: Any, **named: Any) -> None:
        """Hear a value, with the arguments of ``LightningModule.log``."""
        from lightning.pytorch import LightningModule

        own = vars(model)
        before = {name: own.get(name) for name in ("_trainer", "_current_fx_name")}
        own |= {"_trainer": self, "_current_fx_name": "training_step"}
        try:
            LightningModule.log(model, *given, **named)
        finally:
            own |= before


def client_log(pass_length: int) -> ClientLog | None:
    """Make what hears the logs of a visit; None where Lightning has other names."""
    try:
        return ClientLog(pass_length)
    except (AttributeError, ImportError):
        _warn("_ResultCollection: what training_step logs is dropped, unless local.backend is lightning")
        return None


_HEARD: ContextVar[Any] = ContextVar("client_log", default=None)


@contextmanager
def heard_by(listener: Any) -> Iterator[None]:
    """Let what modules log within the block go to a listener's ``take``; None hears nothing."""
    token = _HEARD.set(listener)
    try:
        yield
    finally:
        _HEARD.reset(token)


def log(model: Any, *given: Any, **named: Any) -> None:
    """Take the place of ``LightningModule.log`` where no Trainer trains; unheard, it does nothing."""
    heard = _HEARD.get()
    if heard is not None:
        heard.take(model, *given, **named)


@functools.cache
def _warn(what: str) -> None:
    """Say once in a process what is missing, and what follows."""
    import lightning

    _LOG.warning("lightning %s has no %s", lightning.__version__, what)
