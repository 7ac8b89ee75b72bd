"""Clients trained by actors of a Ray cluster: ``flsel train --address auto --local.workers 8``."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

import ray
import torch
from torch import Tensor

from flsel.config import RunConfig
from flsel.config.describe import describe
from flsel.config.parser import parse_settings
from flsel.data.population import Source
from flsel.errors import UserError, relayed
from flsel.execution.on_ray.cluster import connected
from flsel.execution.on_ray.shared_data import Packed, pack, unpack
from flsel.execution.on_ray.supervisor import die_of_sigterm
from flsel.local.share import Part, Question, answer, blank, cut, distinct_starts
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.params import Params
from flsel.runner.build import Built, MakeTrainer, build

# Actors that may die over the same visits before it is the visits' fault.
_ATTEMPTS = 3
_ON_GPU = ("gpu", "cuda")


@contextmanager
def trainers_on(address: str) -> Iterator[MakeTrainer]:
    """Connect to a cluster, and yield what makes the trainer of a run.

    Args:
        address: ``auto`` or host:port.

    Raises:
        UserError: If no cluster answers.
    """
    with connected(address):
        yield RemoteTrainer


@final
class RemoteTrainer(LocalTrainer):
    """Let actors of a Ray cluster train and ask clients, a few visits at a time.

    Visits are cut as :class:`flsel.local.workers.WorkersTrainer` cuts them, whatever the number of actors;
    one that dies is replaced and its visits are run again. Each actor builds the run from its settings;
    the dataset lies once on each machine, in Ray's object store.

    Args:
        config: The run's settings; ``local.workers`` is the number of actors.
        source: The dataset.

    Raises:
        UserError: If the cluster has no room for so many actors, or clients shall remember something.
    """

    def __init__(self, config: RunConfig, source: Source) -> None:
        self._count, self._together = config.local.workers, config.local.chunk
        alone = replace(config, local=replace(config.local, workers=1), threads=1, callbacks=())
        self._settings = describe(alone)
        self._gpus = int(config.accelerator in _ON_GPU)
        if config.local.keep_optimizer:
            raise UserError("local.keep_optimizer must be false with --address: actors remember no client.")
        has = ray.cluster_resources()  # type: ignore[no-untyped-call]
        if self._count > has.get("CPU", 0) or self._gpus * self._count > has.get("GPU", 0):
            raise UserError(
                f"local.workers {self._count} asks for more than the cluster has: "
                f"{has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs."
            )
        self._packed = ray.put(pack(source))
        self._actors: list[Any] = []
        self._calls = 0

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            UserError: If the same visits ended several actors.
        """
        return self._ask("train", visits)

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' losses (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return self._ask("losses", visits)["loss"]

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the clients' gradients (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return self._ask("gradients", visits)

    def _ask(self, question: Question, visits: Sequence[Visit]) -> Params:
        program = visits[0].program
        distinct = distinct_starts(visits)
        starts = {name: torch.stack([start[name].cpu() for start in distinct]) for name in distinct[0]}
        shared = ray.put((starts, program.objective.state_dict()))
        answers = blank(question, visits)
        waiting = deque((part, 0) for part in cut(question, visits, [program], self._together))
        while len(self._actors) < min(self._count, len(waiting)):
            self._actors.append(self._start())
        self._calls += 1
        free, running = deque(range(len(self._actors))), dict[Any, tuple[int, Part, int]]()
        while waiting or running:
            while waiting and free:
                (part, deaths), place = waiting.popleft(), free.popleft()
                running[self._actors[place].ask.remote(self._calls, part, shared)] = (place, part, deaths)
            (done,), _ = ray.wait(list(running))
            place, part, deaths = running.pop(done)
            free.append(place)
            try:
                answered = ray.get(done)
            except ray.exceptions.RayActorError:
                self._actors[place] = self._start()
                waiting.appendleft((part, _survived(part, deaths + 1)))
                continue
            if isinstance(answered, Exception):
                raise answered
            for name, value in answered.items():
                answers[name][part.rows] = value.to(answers[name])
        return answers

    def _start(self) -> Any:
        made: Any = ray.remote(num_cpus=1, num_gpus=self._gpus)(_Actor)
        return made.remote(self._settings, self._packed)


def _survived(part: Part, deaths: int) -> int:
    if deaths >= _ATTEMPTS:
        clients = ", ".join(map(str, part.clients))
        raise UserError(
            f"{_ATTEMPTS} actors ended over clients {clients}; if memory ran out, lower local.workers or "
            "local.batch_size."
        )
    return deaths


class _Actor:
    """The run again, for its program and its trainer."""

    def __init__(self, settings: dict[str, Any], packed: Packed) -> None:
        die_of_sigterm()
        logging.getLogger("flsel").setLevel(logging.WARNING)
        self._settings, self._packed = settings, packed
        self._built: Built | None = None
        self._call = 0

    def ask(self, call: int, part: Part, shared: tuple[Params, Any]) -> Params | Exception:
        """Answer a part; errors are told, since a traceback of Ray's would hide them."""
        try:
            if self._built is None:
                self._built = build(parse_settings(self._settings), unpack(self._packed))
            program = self._built.program
            starts = {name: value.to(program.task.device) for name, value in shared[0].items()}
            state, self._call = (None if call == self._call else shared[1]), call
            trainer = self._built.server.federation.trainer
            return {
                name: value.cpu() for name, value in answer(trainer, program, part, starts, state).items()
            }
        except Exception as error:
            return relayed(error)
