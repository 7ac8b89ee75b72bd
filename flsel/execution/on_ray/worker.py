"""A process that trains clients for a run in another one."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from flsel.errors import relayed, say_once
from flsel.execution.on_ray.deaths import die_of_sigterm
from flsel.execution.on_ray.program_copy import made_of
from flsel.execution.on_ray.shared_tensors import Array, as_arrays, as_tensors
from flsel.execution.on_ray.visit_parts import Part, answer_part
from flsel.local.program import Program
from flsel.local.trainer import LocalTrainer

_LOG = logging.getLogger("flsel")


class Sent(NamedTuple):
    """A program that workers can have.

    Attributes:
        number: One that no other has.
        copy: Ray's reference to its :class:`flsel.execution.on_ray.program_copy.Copy`.
    """

    number: int
    copy: Any


class Answer(NamedTuple):
    """What a worker sends back.

    Attributes:
        values: The answers, one row for each visit.
        error: What went wrong, in place of answers.
        said: Level and text of what was logged, and whether a process says it once.
    """

    values: dict[str, Array]
    error: Exception | None
    said: list[tuple[int, str, bool]]


class Worker:
    """An actor of Ray's with one thread, its own copies of programs, and what trainers made of them.

    Args:
        level: From which on it sends back what is logged.
        path: Folders in which the run's process looks for modules.
    """

    def __init__(self, level: int, path: list[str]) -> None:
        die_of_sigterm()
        sys.path.extend(folder for folder in path if folder not in sys.path)
        # Ctrl-C reaches every process of a terminal; what it means is decided in the first.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        self._heard = _Heard()
        _LOG.addHandler(self._heard)
        _LOG.setLevel(level)
        self._trainers: dict[int, LocalTrainer] = {}
        self._programs: dict[int, Program] = {}
        self._call: dict[int, int] = {}

    def ping(self) -> None:
        """Answer, as soon as there is a process."""

    def ask(
        self,
        trainer: tuple[int, Callable[[], LocalTrainer]],
        sent: Sent,
        known: frozenset[int],
        part: Part,
        call: int,
        shared: tuple[dict[str, Array], list[Any]],
    ) -> Answer:
        """Answer a part.

        Args:
            trainer: Number of a trainer, and what makes it.
            sent: The part's program.
            known: Numbers of all programs that may be asked for.
            part: The visits.
            call: Number of the call.
            shared: The stack of starts, and for each program the states of its objective and self-check.
        """
        values: dict[str, Array] = {}
        error = None
        try:
            number, make = trainer
            if number not in self._trainers:
                self._trainers[number] = make()
            program = self._program(sent, known)
            if self._call.get(sent.number) != call:
                objective, agreement = shared[1][part.program]
                program.objective.load_state_dict(objective)
                program.agreement.load_state_dict(agreement)
                self._call[sent.number] = call
            device = program.task.device
            starts = {name: value.to(device) for name, value in as_tensors(shared[0]).items()}
            values = as_arrays(answer_part(self._trainers[number], program, part, starts))
        except Exception as raised:  # told where the run can report it; Ray's traceback would hide it
            error = relayed(raised)
        return Answer(values, error, self._heard.taken())

    def _program(self, sent: Sent, known: frozenset[int]) -> Program:
        import ray

        for number in self._programs.keys() - known:
            del self._programs[number]
            self._call.pop(number, None)
        if sent.number not in self._programs:
            self._programs[sent.number] = made_of(ray.get(sent.copy))
        return self._programs[sent.number]


class _Heard(logging.Handler):
    """Keeps what is logged until it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[tuple[int, str, bool]] = []

    def emit(self, record: logging.LogRecord) -> None:
        once = record.funcName == say_once.__name__
        self._records.append((record.levelno, record.getMessage(), once))

    def taken(self) -> list[tuple[int, str, bool]]:
        """Return what was logged since it was asked last."""
        records, self._records = self._records, []
        return records
