"""Local training spread over processes of this machine, each with one thread."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, final

import torch
import torch.multiprocessing
from torch import nn

from flsel.errors import UserError
from flsel.local.program import Program
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.stack import Params

# Visits that go to a worker at a time: where models are stacked, a few together cost less than one by one.
_TOGETHER = 4
# Workers that may die over the same visits before it is the visits' fault.
_ATTEMPTS = 3


class Task(NamedTuple):
    """Some visits of a call.

    Attributes:
        rows: Their rows in the stack of end models.
        starts: For each of them the row of its start in the stack of starts.
        clients: Their clients.
        rounds: Their rounds.
        program: Index of their program.
    """

    rows: list[int]
    starts: list[int]
    clients: list[int]
    rounds: list[int]
    program: int


@dataclass
class _Worker:
    """A process and what it is at."""

    process: Any
    pipe: Connection
    task: Task | None = None
    told: set[int] = field(default_factory=set)  # programs whose objectives it knows in their present state


@final
class WorkersTrainer(LocalTrainer):
    """Let processes train clients, each a few at a time, in memory that they share with this one.

    Which visits train together does not depend on the number of workers, and a worker that dies is replaced
    and its visits are trained again: neither changes a result. Workers are forks of this process, made when a
    program is met for the first time, so that they hold the clients' data without a copy.

    Args:
        make: Makes the trainer that each worker uses.
        count: Number of workers, >= 1.
        together: Most visits that a worker trains at a time; None chooses.

    Raises:
        UserError: If this system cannot fork a process.
    """

    def __init__(self, make: Callable[[], LocalTrainer], count: int, together: int | None = None) -> None:
        if "fork" not in torch.multiprocessing.get_all_start_methods():
            raise UserError("local.workers must be 1 on this system, which cannot fork a process.")
        self._make, self._count, self._together = make, count, together
        self._programs: list[Program] = []
        self._workers: list[_Worker] = []
        weakref.finalize(self, _stop, self._workers)

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            UserError: If a program is not on the CPU, or training the same visits ended several workers.
        """
        self._meet(visits)
        distinct = list({id(visit.start): visit.start for visit in visits}.values())
        where = {id(start): row for row, start in enumerate(distinct)}
        starts = {name: torch.stack([start[name] for start in distinct]) for name in distinct[0]}
        ends = {n: value.new_empty((len(visits), *value.shape[1:])) for n, value in starts.items()}
        for stack in (starts, ends):
            for value in stack.values():
                value.share_memory_()  # type: ignore[no-untyped-call]
        try:
            self._play(self._tasks(visits, where), starts, ends)
        except BaseException:
            # Ctrl-C too: what is still being trained must not answer a later call.
            _stop(self._workers)
            raise
        # The caller may keep the stack for long; shared memory is scarce in some containers.
        return {name: value.clone() for name, value in ends.items()}

    def _tasks(self, visits: Sequence[Visit], where: dict[int, int]) -> list[Task]:
        """Cut a call into tasks, in a way that does not depend on the number of workers."""
        groups: dict[tuple[int, int], list[int]] = {}
        for row, visit in enumerate(visits):
            groups.setdefault((self._index(visit.program), visit.round), []).append(row)
        tasks = []
        for (program, round), rows in groups.items():
            width = self._together or (1 if _alone(self._programs[program]) else _TOGETHER)
            for first in range(0, len(rows), width):
                part = rows[first : first + width]
                own = [where[id(visits[row].start)] for row in part]
                clients = [visits[row].client for row in part]
                tasks.append(Task(part, own, clients, [round] * len(part), program))
        # Most examples first, so that no long task is left for the end.
        return sorted(tasks, key=self._examples, reverse=True)

    def _examples(self, task: Task) -> int:
        shards = self._programs[task.program].population.shards
        return sum(len(shards[client]) for client in task.clients)

    def _index(self, program: Program) -> int:
        return next(i for i, known in enumerate(self._programs) if known is program)

    def _meet(self, visits: Sequence[Visit]) -> None:
        """Have workers that know all programs; their objectives' states are sent with the next task."""
        programs = list({id(visit.program): visit.program for visit in visits}.values())
        for program in programs:
            if program.task.device.type != "cpu":
                raise UserError(
                    f"local.workers must be 1 on {program.task.device.type}, which is not shared."
                )
        if any(all(known is not program for known in self._programs) for program in programs):
            _stop(self._workers)
            self._programs = [*self._programs, *(p for p in programs if p not in self._programs)]
        while len(self._workers) < self._count:
            self._workers.append(self._fork())
        for worker in self._workers:
            worker.told.clear()

    def _fork(self) -> _Worker:
        context = torch.multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        # A process that keeps another's end of a pipe open would not let it see that this one has gone.
        foreign = [ours, *(worker.pipe for worker in self._workers)]
        process = context.Process(
            target=_serve,
            args=(theirs, foreign, self._make, self._programs),
            daemon=True,
            name="flsel-worker",
        )
        with warnings.catch_warnings():
            # Python warns of forks beside threads; a worker uses none of torch's, having one.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _play(self, tasks: list[Task], starts: Params, ends: Params) -> None:
        """Hand tasks out until all are done."""
        waiting, deaths = deque(tasks), dict.fromkeys(range(len(tasks)), 0)
        number = {id(task): i for i, task in enumerate(tasks)}
        done = 0
        while done < len(tasks):
            for place, worker in enumerate(self._workers):
                if worker.task is None and waiting:
                    worker.task = waiting.popleft()
                    if not self._send(worker, starts, ends):
                        self._replace(place, waiting, deaths, number)
            busy = {w.pipe: i for i, w in enumerate(self._workers) if w.task is not None}
            # Without anybody at work, since those who were asked had died, there is nothing to wait for.
            for pipe in multiprocessing.connection.wait(list(busy)) if busy else ():
                place = busy[pipe]  # type: ignore[index]
                try:
                    failure = self._workers[place].pipe.recv()
                except (EOFError, ConnectionResetError):
                    self._replace(place, waiting, deaths, number)
                    continue
                self._workers[place].task = None
                if failure is not None:
                    raise failure
                done += 1

    def _send(self, worker: _Worker, starts: Params, ends: Params) -> bool:
        """Hand a task out; tell whether the worker is there to take it."""
        assert worker.task is not None
        index = worker.task.program
        objective = self._programs[index].objective
        state = None if index in worker.told else objective.state_dict()
        try:
            worker.pipe.send((worker.task, state, starts, ends))
        except (BrokenPipeError, ConnectionResetError):
            return False
        worker.told.add(index)
        return True

    def _replace(
        self, place: int, waiting: deque[Task], deaths: dict[int, int], number: dict[int, int]
    ) -> None:
        """Take a new worker for one that died, and put its task first in the queue."""
        dead = self._workers[place]
        task = dead.task
        assert task is not None
        dead.process.join()
        dead.pipe.close()
        deaths[number[id(task)]] += 1
        if deaths[number[id(task)]] >= _ATTEMPTS:
            clients = ", ".join(map(str, task.clients))
            code = dead.process.exitcode
            del self._workers[place]
            raise UserError(
                f"{_ATTEMPTS} workers ended (the last with code {code}) while they trained clients "
                f"{clients}; if memory ran out, lower local.workers or local.batch_size."
            )
        waiting.appendleft(task)
        del self._workers[place]
        self._workers.insert(place, self._fork())


def _alone(program: Program) -> bool:
    """Tell whether a program's clients gain nothing from training together."""
    return any(isinstance(module, nn.modules.conv._ConvNd) for module in program.task.modules())


def _stop(workers: list[_Worker]) -> None:
    """End workers; the list is empty afterwards."""
    for worker in workers:
        worker.pipe.close()
        if worker.task is not None:
            worker.process.kill()
    for worker in workers:
        worker.process.join()
    workers.clear()


def _serve(
    pipe: Connection, foreign: list[Connection], make: Callable[[], LocalTrainer], programs: list[Program]
) -> None:
    """Train what comes until nothing comes any more."""
    # Ctrl-C reaches every process of a terminal; what it means is decided in the first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in foreign:
        other.close()
    torch.set_num_threads(1)
    trainer = make()
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            task, state, starts, ends = pipe.recv()
            pipe.send(_train(trainer, programs[task.program], task, state, starts, ends))
    os._exit(0)


def _train(
    trainer: LocalTrainer, program: Program, task: Task, state: Any, starts: Params, ends: Params
) -> Exception | None:
    """Train a task's visits and write their models into ``ends``; return what went wrong."""
    try:
        if state is not None:
            program.objective.load_state_dict(state)
        models = {row: {name: value[row] for name, value in starts.items()} for row in set(task.starts)}
        visits = [
            Visit(models[start], client, round, program)
            for start, client, round in zip(task.starts, task.clients, task.rounds, strict=True)
        ]
        for name, value in trainer.train(visits).items():
            ends[name][task.rows] = value
    except UserError as error:
        return error
    except Exception as error:  # Told where the run can report it; a worker's own traceback would be lost.
        return RuntimeError(f"{type(error).__name__} in a worker of local.workers: {error}")
    return None
