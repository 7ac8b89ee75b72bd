"""An open round, whose training is decided, and what became of a closed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flsel.engine.arrival import Arrival
from flsel.engine.clock import RoundTime
from flsel.local.program import Program
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, from_one, from_rows
from flsel.metrics import CLIENT_LOG, Ledger
from flsel.params import Params, repeated, replaced, rows
from flsel.selector import IDLE, Plan, Selector, View


@dataclass(frozen=True, eq=False)
class RoundJob:
    """What a round's training is about; nothing in it changes.

    :func:`train` runs it. Other code may ask for the :meth:`visits` of a hop, train them
    and puts the end models in their :meth:`place`, hop by hop.

    Attributes:
        view: What the selector saw; its cost holds the training that is planned.
        plan: Who trains, checked; without what comes too late on simulated devices.
        selector: Who planned.
        program: The client's side of the federation.
        seconds: Wall time that it took to plan.
        arrival: What becomes of the plan on simulated devices; None without devices.
        asked: First clients of all planned paths, in time or not.
    """

    view: View
    plan: Plan
    selector: Selector
    program: Program
    seconds: float
    arrival: Arrival | None = None
    asked: tuple[int, ...] = ()

    def visits(self, hop: int, at: Params | None = None) -> list[Visit]:
        """Say what has to be trained in a hop.

        Args:
            hop: In ``0..plan.hops - 1``.
            at: Where the paths are, each tensor ``[K, ...]``; None stands for the global model, from which
                the first hop starts. A repeated client then trains once, since it arrives at one end.

        Returns:
            Visits for :meth:`place`; none where all paths rest.
        """
        clients, round = self._clients(hop), self.view.round + hop
        if at is None:
            distinct = list(dict.fromkeys(clients.values()))
            return from_one(self.view.params, distinct, round, self.program, self.most)
        models = {name: value for name, value in at.items() if not name.startswith(CLIENT_LOG)}
        starts = rows(models, torch.tensor(list(clients), dtype=torch.int64))
        return from_rows(starts, list(clients.values()), round, self.program)

    @property
    def most(self) -> Mapping[int, int]:
        """Local steps of the clients that do a part of their work."""
        return {} if self.arrival is None else self.arrival.most

    def steps(self, plan: Plan) -> list[list[int]]:
        """Return the local steps of the trainings along each path of a plan."""
        steps, round, most = self.program.steps, self.view.round, self.most
        return [
            [steps(c, round + hop, most.get(c)) for hop, c in enumerate(path) if c != IDLE]
            for path in plan.paths
        ]

    @property
    def trainings(self) -> int:
        """Trainings of all hops."""
        return sum(map(self.trainings_in, range(self.plan.hops)))

    def trainings_in(self, hop: int) -> int:
        """Count the trainings of a hop."""
        clients = self._clients(hop).values()
        return len(clients) if hop else len(set(clients))

    def first(self, path: int) -> Visit:
        """Return the first training of a path."""
        hop, client = next((hop, c) for hop, c in enumerate(self.plan.paths[path]) if c != IDLE)
        return Visit(
            self.program.of_client(self.view.params, client), client, self.view.round + hop, self.program
        )

    def place(self, hop: int, ends: Params | None, at: Params | None = None) -> Params:
        """Return where the paths are after a hop, each tensor ``[K, ...]``.

        Args:
            hop: As for :meth:`visits`.
            ends: End models of these visits; None if there were none.
            at: As for :meth:`visits`.
        """
        clients = self._clients(hop)
        if ends is not None and at is None:
            distinct = {client: row for row, client in enumerate(dict.fromkeys(clients.values()))}
            if len(distinct) < len(clients):
                where = torch.tensor([distinct[client] for client in clients.values()])
                ends = {name: end[where.to(end.device)] for name, end in ends.items()}
        if ends is not None and len(clients) == len(self.plan):
            return ends
        before = repeated(self.view.params, len(self.plan)) if at is None else at
        if at is None and ends is not None:  # what clients log comes besides
            logs = {n: v for n, v in ends.items() if n.startswith(CLIENT_LOG)}
            before |= {n: v.new_full((len(self.plan),), torch.nan) for n, v in logs.items()}
        return before if ends is None else replaced(before, list(clients), ends)

    def _clients(self, hop: int) -> dict[int, int]:
        """Return the client of every path that does not rest."""
        return {k: path[hop] for k, path in enumerate(self.plan.paths) if path[hop] != IDLE}


class OpenRound(Protocol):
    """An open round that can be trained: a :class:`RoundJob`, or a step of an asynchronous run."""

    @property
    def view(self) -> View:
        """What the selector saw."""

    @property
    def plan(self) -> Plan:
        """Whose models the round ends with."""

    @property
    def seconds(self) -> float:
        """Wall time that it took to plan."""

    def visits(self, hop: int, at: Params | None = None) -> list[Visit]:
        """Say what has to be trained in a hop."""

    def place(self, hop: int, ends: Params | None, at: Params | None = None) -> Params:
        """Return where the paths are after a hop, each tensor ``[K, ...]``."""


@dataclass(frozen=True)
class RoundOutcome:
    """What a round did.

    Attributes:
        delta: Sum of weights times updates, to be added to the global model.
        plan: Who trained, dropped paths included.
        weights: Weight of each path, float64 ``[K]``; zero for dropped ones.
        dropped: Clients at the end of a path whose model was not finite.
        available: Number of clients that were available.
        ledger: What the round cost.
        seconds: Wall time of each phase.
        time: Simulated seconds; None without devices.
        staleness: Steps of the server since the start of each path; None in a synchronous run.
    """

    delta: Params
    plan: Plan
    weights: Tensor
    dropped: tuple[int, ...]
    available: int
    ledger: Ledger
    seconds: dict[str, float]
    time: RoundTime | None = None
    staleness: tuple[int, ...] | None = None


def passed(
    job: OpenRound, ledger: Ledger, time: RoundTime | None, dropped: Sequence[int] = ()
) -> RoundOutcome:
    """Return what becomes of a round in which nobody trains: the model stays as it is.

    Args:
        job: The open round, whose plan has no paths.
        ledger: What it cost.
        time: The simulated seconds that pass; None without devices.
        dropped: Clients whose models were not finite.
    """
    return RoundOutcome(
        delta={name: torch.zeros_like(value) for name, value in job.view.params.items()},
        plan=Plan.star(dropped),
        weights=torch.zeros(len(dropped), dtype=torch.float64),
        dropped=tuple(dropped),
        available=int(job.view.available.sum()),
        ledger=ledger,
        seconds={"select": job.seconds, "aggregate": 0.0},
        time=time,
    )


def train(jobs: Sequence[OpenRound], trainer: LocalTrainer) -> list[Params]:
    """Carry the models of open rounds along their paths, those of all jobs together.

    Args:
        jobs: Rounds of one or several federations, whose models have the same names and shapes.
        trainer: Trains one hop of all of them in a call.

    Returns:
        For each job the ends of its paths, each tensor ``[K, ...]``; nothing for a plan without paths.
    """
    at: list[Params | None] = [None] * len(jobs)
    for hop in range(max(job.plan.hops for job in jobs)):  # none where nobody is available
        going = [i for i, job in enumerate(jobs) if hop < job.plan.hops]
        asked = {i: jobs[i].visits(hop, at[i]) for i in going}
        visits = [visit for part in asked.values() for visit in part]
        ends = trainer.train(visits) if visits else {}
        first = 0
        for i, part in asked.items():
            own = {name: end[first : first + len(part)] for name, end in ends.items()} if part else None
            at[i] = jobs[i].place(hop, own, at[i])
            first += len(part)
    return [stack or {} for stack in at]
