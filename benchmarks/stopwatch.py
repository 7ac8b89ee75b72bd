"""Time the rounds of a real run from inside, with local training and evaluation or without."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from settings import wait

import flsel.execution.run
from flsel.config import RunConfig
from flsel.config.groups import OutputConfig
from flsel.data.population import Examples
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.params import Params, stacked
from flsel.runner.build import Built, build


class Stopwatch(LocalTrainer):
    """A local trainer that notes when each round's training begins and how long it takes, in seconds.

    Args:
        trainer: What trains.
    """

    def __init__(self, trainer: LocalTrainer) -> None:
        self._trainer = trainer
        self.began: list[float] = []
        self.trained: list[float] = []

    def train(self, visits: Sequence[Visit]) -> Params:
        device = visits[0].program.task.device
        wait(device)
        self.began.append(time.perf_counter())
        ends = self._trainer.train(visits)
        wait(device)
        self.trained.append(time.perf_counter() - self.began[-1])
        return ends

    def between(self) -> list[float]:
        """Return, for every round but the last, the time until the next one's training, without its own."""
        return [
            after - before - trained
            for before, after, trained in zip(self.began, self.began[1:], self.trained, strict=False)
        ]


class Nothing(LocalTrainer):
    """Local training and evaluation that cost nothing: every client moves a little, every loss is one."""

    directions: ClassVar[dict[str, bool]] = {}

    def train(self, visits: Sequence[Visit]) -> Params:
        return {name: start + 1e-6 for name, start in stacked([visit.start for visit in visits]).items()}

    def score(
        self, params: Params, examples: Examples, round: int = 0, *, test: bool = False
    ) -> dict[str, float]:
        return {"loss": 1.0, "accuracy": 0.5}


def timed_run(config: RunConfig, folder: Path, *, work: bool) -> Stopwatch:
    """Execute a run as the command line does, files and all.

    Args:
        config: The run.
        folder: Where it is written.
        work: Train and evaluate; otherwise only what is around it happens.

    Returns:
        The rounds' times.
    """
    watches: list[Stopwatch] = []

    def build_watched(config: RunConfig, **given: Any) -> Built:
        built = build(config, **given)
        federation = built.server.federation
        watches.append(Stopwatch(federation.trainer if work else Nothing()))
        built.server.federation = replace(federation, trainer=watches[0])
        if not work:
            built.server.evaluator = Nothing()  # type: ignore[assignment]
        return built

    # The benchmark's own standard output is its table.
    with patch.object(flsel.execution.run, "build", build_watched), redirect_stdout(sys.stderr):
        flsel.execution.run.run(replace(config, output=OutputConfig(dir=str(folder))))
    return watches[0]
