"""Local training, and questions about clients, spread over processes of this machine with one thread each."""

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
from typing import Any, final

import torch
import torch.multiprocessing
from torch import Tensor

from flsel.errors import UserError, relayed
from flsel.local import share
from flsel.local.block import Block, layout, take
from flsel.local.program import Program
from flsel.local.sequential import SequentialTrainer
from flsel.local.share import Part, Question, answer, blank, cut, distinct_starts
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.params import Params

# Workers that may die over the same visits before it is the visits' fault.
_ATTEMPTS = 3


@dataclass
class _Worker:
    """A process and what it is at."""

    process: Any
    pipe: Connection
    part: Part | None = None
    told: set[int] = field(default_factory=set)  # programs whose objectives it knows in their present state
    memory: dict[Question, Block] = field(default_factory=dict)  # what it has of this process


@final
class WorkersTrainer(LocalTrainer):
    """Let processes train and ask clients, each a few at a time, in memory that they share with this one.

    Which visits go together does not depend on the number of workers, and a worker that dies is replaced
    and its visits are played again: neither changes a result. Workers are forks of this process, made when a
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
        self._own = make()  # for what is not worth a message
        self._programs: list[Program] = []
        self._workers: list[_Worker] = []
        # Kept from call to call: to make it, and to hand it to a process, takes longer than a small round.
        self._memory: dict[Question, Block] = {}
        weakref.finalize(self, _stop, self._workers)

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            UserError: If a program is not on the CPU, or the same visits ended several workers.
        """
        _require_cpu(visits)
        if not share.worth("train", visits, stacks=not isinstance(self._own, SequentialTrainer)):
            return self._own.train(visits)
        return self._ask("train", visits)

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' losses (see :class:`flsel.local.trainer.LocalTrainer`)."""
        if not share.worth("losses", visits, stacks=False):
            return self._own.losses(visits)
        return self._ask("losses", visits)["loss"]

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the clients' gradients (see :class:`flsel.local.trainer.LocalTrainer`)."""
        if not share.worth("gradients", visits, stacks=False):
            return self._own.gradients(visits)
        return self._ask("gradients", visits)

    def one_by_one(self, program: Program) -> bool:
        """Tell whether it leaves a program to sequential."""
        return self._own.one_by_one(program)

    def forget(self, program: Program) -> None:
        """Drop what was made of a program (see :class:`flsel.local.trainer.LocalTrainer`)."""
        self._own.forget(program)
        _stop(self._workers)  # their forks have the program as it was

    def _ask(self, question: Question, visits: Sequence[Visit]) -> Params:
        self._meet(visits)
        distinct = distinct_starts(visits)
        memory = self._share(question, distinct, blank(question, visits))
        try:
            self._play(cut(question, visits, self._programs, self._together), memory)
        except BaseException:
            # Ctrl-C too: what is still at work must not answer a later call.
            _stop(self._workers)
            raise
        return {name: value.clone() for name, value in memory.answers.items()}

    def _share(self, question: Question, starts: list[Params], answers: Params) -> Block:
        """Put starts where workers see them, beside room for answers."""
        memory, layouts = self._memory.get(question), (layout(starts[0], len(starts)), layout(answers))
        if memory is None or memory.layouts != layouts:
            memory = self._memory[question] = Block(*layouts)
        for row, start in enumerate(starts):
            for name, value in start.items():
                memory.starts[name][row] = value.detach()
        return memory

    def _meet(self, visits: Sequence[Visit]) -> None:
        """Have workers that know all programs; their objectives' states are sent with the next part."""
        programs = list({id(visit.program): visit.program for visit in visits}.values())
        _require_cpu(visits)
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

    def _play(self, parts: list[Part], memory: Block) -> None:
        """Hand parts out until all are done."""
        waiting, deaths = deque(parts), dict.fromkeys(range(len(parts)), 0)
        number = {id(part): i for i, part in enumerate(parts)}
        done = 0
        while done < len(parts):
            for place, worker in enumerate(self._workers):
                if worker.part is None and waiting:
                    worker.part = waiting.popleft()
                    if not self._send(worker, memory):
                        self._replace(place, waiting, deaths, number)
            busy = {w.pipe: i for i, w in enumerate(self._workers) if w.part is not None}
            # Without anybody at work, since those who were asked had died, there is nothing to wait for.
            for pipe in multiprocessing.connection.wait(list(busy)) if busy else ():
                place = busy[pipe]  # type: ignore[index]
                try:
                    failure = self._workers[place].pipe.recv()
                except (EOFError, ConnectionResetError):
                    self._replace(place, waiting, deaths, number)
                    continue
                self._workers[place].part = None
                if failure is not None:
                    raise failure
                done += 1

    def _send(self, worker: _Worker, memory: Block) -> bool:
        """Hand a part out; tell whether the worker is there to take it."""
        assert worker.part is not None
        index, question = worker.part.program, worker.part.question
        objective = self._programs[index].objective
        state = None if index in worker.told else objective.state_dict()
        known = worker.memory.get(question) is memory
        try:
            worker.pipe.send((worker.part, state, None if known else memory.layouts))
            if not known:
                memory.hand(worker.pipe, worker.process.pid)
        except (BrokenPipeError, ConnectionResetError):
            return False
        worker.told.add(index)
        worker.memory[question] = memory
        return True

    def _replace(
        self, place: int, waiting: deque[Part], deaths: dict[int, int], number: dict[int, int]
    ) -> None:
        """Take a new worker for one that died, and put its part first in the queue."""
        dead = self._workers[place]
        part = dead.part
        assert part is not None
        dead.process.join()
        dead.pipe.close()
        deaths[number[id(part)]] += 1
        if deaths[number[id(part)]] >= _ATTEMPTS:
            clients = ", ".join(map(str, part.clients))
            code = dead.process.exitcode
            del self._workers[place]
            raise UserError(
                f"{_ATTEMPTS} workers ended (the last with code {code}) over clients "
                f"{clients}; if memory ran out, lower local.workers or local.batch_size."
            )
        waiting.appendleft(part)
        del self._workers[place]
        self._workers.insert(place, self._fork())


def _require_cpu(visits: Sequence[Visit]) -> None:
    for visit in visits:
        if visit.program.task.device.type != "cpu":
            raise UserError(
                f"local.workers must be 1 on {visit.program.task.device.type}, which is not shared."
            )


def _stop(workers: list[_Worker]) -> None:
    """End workers; the list is empty afterwards."""
    for worker in workers:
        worker.pipe.close()
        if worker.part is not None:
            worker.process.kill()
    for worker in workers:
        worker.process.join()
    workers.clear()


def _serve(
    pipe: Connection, foreign: list[Connection], make: Callable[[], LocalTrainer], programs: list[Program]
) -> None:
    """Answer what comes until nothing comes any more."""
    # Ctrl-C reaches every process of a terminal; what it means is decided in the first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in foreign:
        other.close()
    torch.set_num_threads(1)
    trainer = make()
    memories: dict[Question, Block] = {}
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            part, state, layouts = pipe.recv()
            if layouts is not None:
                memories[part.question] = take(pipe, layouts)
            pipe.send(_answer(trainer, programs[part.program], part, state, memories[part.question]))
    os._exit(0)


def _answer(
    trainer: LocalTrainer, program: Program, part: Part, state: Any, memory: Block
) -> Exception | None:
    """Answer a part into its rows; return what went wrong."""
    try:
        for name, value in answer(trainer, program, part, memory.starts, state).items():
            memory.answers[name][part.rows] = value
    except Exception as error:  # told where the run can report it; a worker's own traceback would be lost
        return relayed(error)
    return None
