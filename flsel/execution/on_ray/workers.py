"""Local training, and questions about clients, spread over actors of Ray: ``local.workers``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from flsel.config.groups import LocalConfig
from flsel.errors import UserError, say_once
from flsel.execution.on_ray.cluster import started
from flsel.execution.on_ray.program_copy import copied, size_of
from flsel.execution.on_ray.shared_tensors import as_arrays
from flsel.execution.on_ray.visit_parts import (
    Part,
    Question,
    blank,
    cut_visits,
    distinct_starts,
    programs_of,
    worth,
)
from flsel.execution.on_ray.worker import Sent, Worker
from flsel.execution.on_ray.worker_call import Call
from flsel.local.program import Program
from flsel.local.sequential import SequentialTrainer
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.params import Params

_LOG = logging.getLogger("flsel")


@contextmanager
def workers(address: str | None = None) -> Iterator[Workers]:
    """Have processes for the runs of a block, which end with it.

    Args:
        address: Of a Ray cluster, ``auto`` or host:port, to which this connects at once. None takes Ray of
            this process, or starts it on this machine once there is something to spread.

    Raises:
        UserError: If no cluster answers.
    """
    with ExitStack() as stack:
        pool = Workers(stack, address)
        try:
            yield pool
        finally:
            pool.close()


@final
class Workers:
    """The processes that train clients, shared by the runs of this process.

    Args:
        stack: Where Ray is left again.
        address: As for :func:`workers`.

    Attributes:
        ready: Actors that answer.
        starting: Actors that do not yet, by what Ray returns once they do.
    """

    def __init__(self, stack: ExitStack, address: str | None = None) -> None:
        self.ready: list[Any] = []
        self.starting: dict[Any, Any] = {}
        self._stack = stack
        self._connected = self._remote = address is not None
        self._own = False
        self._gpus = self._last_number = 0
        self._sent: WeakKeyDictionary[Program, Sent] = WeakKeyDictionary()
        self._warnings = set[str]()
        if address is not None:
            stack.enter_context(started(address, 0))

    def trainer(self, make: Callable[[], LocalTrainer], local: LocalConfig) -> LocalTrainer:
        """Return a trainer that divides the visits of a run among ``local.workers`` processes.

        Args:
            make: Makes the trainer that each of them uses.
            local: The settings of local training.
        """
        return WorkersTrainer(self, make, self.next_number(), local)

    def have(self, count: int, program: Program, shared_bytes: int) -> None:
        """Have so many actors, on a GPU each if the program is on one.

        Raises:
            UserError: If there is no room for them.
        """
        import ray

        gpus = _gpus(program)
        if not self._connected:
            self._own = not ray.is_initialized()
            self._stack.enter_context(started(None, shared_bytes, count))
            self._connected = True
        if gpus != self._gpus:
            self.stop()
            self._gpus = gpus
        self._check_room(count)
        for _ in range(count - len(self.ready) - len(self.starting)):
            self.start()

    def start(self) -> None:
        """Start another actor."""
        import ray

        # Ray counts CPUs to share them. A Ray of our own serves this run only: any number of workers fits.
        made: Any = ray.remote(num_cpus=0 if self._own else 1, num_gpus=self._gpus)(Worker)
        actor = made.remote(_LOG.getEffectiveLevel(), sys.path)
        self.starting[actor.ping.remote()] = actor

    def stop(self) -> None:
        """End the actors; others are started when they are needed."""
        import ray

        for actor in (*self.ready, *self.starting.values()):
            ray.kill(actor)
        self.ready.clear()
        self.starting.clear()

    def close(self) -> None:
        """End the actors, and leave Ray."""
        if self._connected:
            self.stop()
        self._sent.clear()
        self._stack.close()
        self._connected = False

    def next_number(self) -> int:
        """Return a number that nothing else has."""
        self._last_number += 1
        return self._last_number

    def sent(self, program: Program) -> Sent:
        """Return where actors find a program as it was when it was met, or changed, last."""
        import ray

        if program not in self._sent:
            self._sent[program] = Sent(self.next_number(), ray.put(copied(program)))
        return self._sent[program]

    def forget(self, program: Program) -> None:
        """Send a program again, which was changed."""
        self._sent.pop(program, None)

    @property
    def known(self) -> frozenset[int]:
        """Numbers of the programs that may still be asked for."""
        return frozenset(sent.number for sent in self._sent.values())

    def say(self, said: Sequence[tuple[int, str, bool]]) -> None:
        """Log once what several workers may have logged (see :class:`Answer`)."""
        for level, text, once in said:
            if once:
                say_once(text, level)
            elif text not in self._warnings:
                self._warnings.add(text)
                _LOG.log(level, "%s", text)

    def say_waiting(self) -> None:
        """Say what no worker has been started for."""
        what = "a CPU and a GPU" if self._gpus else "a CPU"
        text = f"local.workers: Ray has started none yet, since each waits for {what} that nothing else uses"
        self.say([(logging.WARNING, text, False)])

    def _check_room(self, count: int) -> None:
        import ray

        has = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cpus, gpus = has.get("CPU", 0), has.get("GPU", 0)
        if (count > cpus and not self._own) or self._gpus * count > gpus:
            where = "the cluster" if self._remote else "Ray on this machine"
            raise UserError(
                f"local.workers {count} asks for more than {where} has: {cpus:g} CPUs, {gpus:g} GPUs."
            )


@final
class WorkersTrainer(LocalTrainer):
    """Let processes train and ask clients, a few visits at a time.

    Which visits go together does not depend on the number of workers, and a worker that dies is replaced
    and its visits are trained again: neither changes a result.

    Args:
        workers: The processes.
        make: Makes the trainer that each of them uses.
        number: Of that trainer, for the processes.
        local: The settings of local training.
    """

    def __init__(
        self, workers: Workers, make: Callable[[], LocalTrainer], number: int, local: LocalConfig
    ) -> None:
        self._workers = workers
        self._make, self._number = make, number
        self._count, self._together = local.workers, local.chunk
        self._alone = make()  # for what is not worth a message

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            UserError: If the same visits ended several workers, or a program cannot be sent to them.
        """
        if not worth("train", visits, stacks=not isinstance(self._alone, SequentialTrainer)):
            return self._alone.train(visits)
        return self._ask("train", visits)

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' losses (see :class:`flsel.local.trainer.LocalTrainer`)."""
        if not worth("losses", visits, stacks=False):
            return self._alone.losses(visits)
        return self._ask("losses", visits)["loss"]

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the clients' gradients (see :class:`flsel.local.trainer.LocalTrainer`)."""
        if not worth("gradients", visits, stacks=False):
            return self._alone.gradients(visits)
        return self._ask("gradients", visits)

    def forget(self, program: Program) -> None:
        """Drop what was made of a program (see :class:`flsel.local.trainer.LocalTrainer`)."""
        self._alone.forget(program)
        self._workers.forget(program)

    def _ask(self, question: Question, visits: Sequence[Visit]) -> Params:
        try:
            return self._answers(question, visits)
        except KeyboardInterrupt:
            # What is at work must not hold up the end; after an error it is let finish.
            self._workers.stop()
            raise

    def _answers(self, question: Question, visits: Sequence[Visit]) -> Params:
        """Hand parts out until all are answered."""
        import ray

        starts, answers = distinct_starts(visits), blank(question, visits)
        stacked = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}
        programs = programs_of(visits)
        data = sum(size_of(program.population) for program in programs)
        models = sum(value.nbytes for value in (*stacked.values(), *answers.values()))
        self._workers.have(self._count, programs[0], data + 2 * models)
        sent = [self._workers.sent(program) for program in programs]
        states = [(p.objective.state_dict(), p.agreement.state_dict()) for p in programs]
        shared, call = ray.put((as_arrays(stacked), states)), self._workers.next_number()
        trainer, known = (self._number, self._make), self._workers.known

        def ask(actor: Any, part: Part) -> Any:
            return actor.ask.remote(trainer, sent[part.program], known, part, call, shared)

        parts = cut_visits(question, visits, self._together)
        for part, values in Call(self._workers, self._count, ask).run(parts):
            for name, value in values.items():
                answers[name][part.rows] = value.to(answers[name].device)
        return answers


def _gpus(program: Program) -> int:
    """Return how many GPUs a worker takes.

    Raises:
        UserError: If it is on a device that Ray does not hand out.
    """
    device = program.task.device
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"local.workers must be 1 on {device.type}, which is not shared.")
    if device.index:
        raise UserError(f"device must be 0 with local.workers above 1, got {device.index}: each has a GPU.")
    return int(device.type == "cuda")
