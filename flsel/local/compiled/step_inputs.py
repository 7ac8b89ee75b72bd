"""Run compiled steps; what changes from step to step is passed by the caller, or read from device tables."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

_LOG = logging.getLogger("flsel")
# Steps that are taken before the recording, which must find every kernel and library loaded.
_WARM = 3

Gather = Callable[[Tensor], object]
Run = Callable[..., object]


class StepRunner(ABC):
    """Runs steps, each with its row of some tables.

    Args:
        gather: Brings the inputs at given positions to where the step reads them.
        run: Takes one step.
    """

    def __init__(self, gather: Gather, run: Run) -> None:
        self._gather, self._run = gather, run

    @abstractmethod
    def load(self, numbers: list[list[float]], places: Tensor, terms: list[Tensor]) -> None:
        """Get ready for S steps.

        Args:
            numbers: What the optimizer multiplies with in each.
            places: Positions of their examples, int64 ``[S, n * size]``.
            terms: What does not depend on the models, each ``[S, ...]``.
        """

    @abstractmethod
    def advance(self, count: int) -> None:
        """Take the next steps."""


class HostRunner(StepRunner):
    """Passes every step the values that it reads, which is the least work on a CPU."""

    def load(self, numbers: list[list[float]], places: Tensor, terms: list[Tensor]) -> None:
        """Get ready for S steps (see :class:`StepRunner`)."""
        rows = zip(*(term.unbind(0) for term in terms), strict=True) if terms else iter([()] * len(numbers))
        self._next: Iterator[tuple[list[float], Tensor, tuple[Tensor, ...]]]
        self._next = zip(numbers, places.unbind(0), rows, strict=True)

    def advance(self, count: int) -> None:
        """Take the next steps."""
        gather, run = self._gather, self._run
        for numbers, place, terms in islice(self._next, count):
            gather(place)
            run(*numbers, *terms)


class TableRunner(StepRunner):
    """Lets every step read its rows of tables on the device; a counter there has the number of the row.

    No step asks the host for anything, nor depends on where the host stands: on a GPU the work of one is
    recorded as a CUDA graph and replayed. Elsewhere the same work is done call by call.

    Args:
        gather: As for :class:`StepRunner`.
        run: As for :class:`StepRunner`; it reads :attr:`numbers` and the terms in fixed memory.
        numbers: Where the step reads what the optimizer multiplies with, ``[k]``.
        terms: Where it reads what does not depend on the models.
        record: Record the work of a step; only on a GPU, and only if it does nothing but launch kernels.
    """

    def __init__(self, gather: Gather, run: Run, numbers: Tensor, terms: list[Tensor], record: bool) -> None:
        super().__init__(gather, run)
        self._numbers, self._terms = numbers, terms
        self._counter = torch.zeros(1, dtype=torch.int64, device=numbers.device)
        self._tables: list[Tensor] = []
        self._record, self._warm = record, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def load(self, numbers: list[list[float]], places: Tensor, terms: list[Tensor]) -> None:
        """Get ready for S steps (see :class:`StepRunner`)."""
        factors = torch.tensor(numbers, dtype=self._numbers.dtype).to(self._numbers.device)
        tables = [factors, places, *terms]
        if not self._tables or len(self._tables[0]) < len(numbers):
            self._tables = [torch.empty_like(table) for table in tables]
            self._place = places.new_empty((1, *places.shape[1:]))
            self._graph, self._warm = None, 0
        for mine, table in zip(self._tables, tables, strict=True):
            mine[: len(table)].copy_(table)
        self._counter.zero_()

    def advance(self, count: int) -> None:
        """Take the next steps."""
        for _ in range(count):
            if self._record and self._graph is None and self._warm >= _WARM:
                self._graph = self._recorded()
            if self._graph is None:
                self._aside()
            else:
                self._graph.replay()

    def _step(self) -> None:
        read = [self._numbers[None], self._place, *(term[None] for term in self._terms)]
        for table, row in zip(self._tables, read, strict=True):
            torch.index_select(table, 0, self._counter, out=row)
        self._gather(self._place[0])
        self._run()
        self._counter.add_(1)

    def _aside(self) -> None:
        """Take a step call by call; before a recording on a stream of its own, as CUDA asks for."""
        if not self._record:
            self._step()
            return
        self._warm += 1
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream().wait_stream(stream)

    def _recorded(self) -> torch.cuda.CUDAGraph | None:
        """Record a step, which does not take it; None if that is not possible."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step()
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            _LOG.warning("local.backend compiled: a step is not recorded as a CUDA graph (%s)", said)
            self._record = False
            return None
        return graph
