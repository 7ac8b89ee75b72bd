"""Callbacks by which runs of tests end, importable from Ray's processes too."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback


class StopAt(Callback):
    """Ends the run after a round, as EarlyStopping does."""

    def __init__(self, round: int = 2) -> None:
        self.round = round

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        trainer.should_stop = trainer.should_stop or trainer.server.round >= self.round


class Raise(Callback):
    """Fails in a round."""

    def __init__(self, round: int = 2) -> None:
        self.round = round

    def on_round_start(self, server: Any) -> None:
        if server.round == self.round:
            raise ZeroDivisionError("nobody is there")


class Diverge(Callback):
    """Has every client of a round return a model that is not finite."""

    def __init__(self, round: int = 2) -> None:
        self.round = round

    def on_round_start(self, server: Any) -> None:
        if server.round == self.round:
            next(iter(server.params.values())).fill_(float("nan"))


class Interrupt(Callback):
    """Sends this process the signal of Ctrl-C once, in the middle of a round."""

    def on_round_start(self, server: Any) -> None:
        mark = Path("interrupted")
        if server.round == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGINT)
