"""Compute which paths of a plan arrive, and when: a round on simulated devices, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from flsel.config.simulated_time import TimeConfig
from flsel.selector import IDLE, Plan

Take = Callable[[int, list[int], list[bool]], list[float]]
"""Returns the seconds of trainings in a hop, of clients, which may be the first of their path."""

Done = Callable[[int, float], int]
"""Returns the local steps that a client has done and sent within some seconds of its first hop."""


class ClientTraining(NamedTuple):
    """One local training that took place, in time or not.

    Attributes:
        hop: Its hop.
        client: Who trained.
        first: Whether it is the first training of a path.
        seconds: What it took the client.
        paths: Positions in the plan of the paths whose model it trained.
    """

    hop: int
    client: int
    first: bool
    seconds: float
    paths: tuple[int, ...]


class Arrival(NamedTuple):
    """What arrives of a plan.

    Attributes:
        plan: The paths that are aggregated, without what came too late.
        kept: Their positions in the plan that was made.
        seconds: Seconds of all hops together.
        durations: Seconds of the trainings along each path that is aggregated.
        late: Seconds of the trainings that came too late, by client; without clients that are aggregated.
        work: Every training that took place; None stands for one training of each path, all in time.
        most: Local steps of clients that did a part of their work.
        gone: Clients that dropped out, and sent nothing; they are among ``late``.
    """

    plan: Plan
    kept: tuple[int, ...]
    seconds: float
    durations: tuple[float, ...]
    late: dict[int, float]
    work: tuple[ClientTraining, ...] | None
    most: Mapping[int, int] = MappingProxyType({})
    gone: tuple[int, ...] = ()

    @property
    def trainings(self) -> int:
        """Trainings that took place."""
        return len(self.plan) if self.work is None else len(self.work)

    @property
    def firsts(self) -> int:
        """Clients whose training was the first of a path."""
        if self.work is None:
            return len(self.plan)
        return len({worked.client for worked in self.work if worked.first})

    @property
    def client_seconds(self) -> float:
        """Seconds of all trainings together."""
        if self.work is None:
            return math.fsum(self.durations)
        return math.fsum([worked.seconds for worked in self.work])

    def trainings_in(self, hop: int) -> int:
        """Count the trainings of a hop."""
        return len(self.plan) if self.work is None else sum(worked.hop == hop for worked in self.work)

    def wasted(self, lost: Collection[int]) -> float:
        """Return the seconds of trainings that no aggregated path holds.

        Args:
            lost: Rows of ``plan`` that are not aggregated after all.
        """
        if self.work is None:
            return math.fsum([self.durations[row] for row in lost])
        rows = {k: row for row, k in enumerate(self.kept) if row not in lost}
        return math.fsum(
            worked.seconds
            for worked in self.work
            if not any(k in rows and self.plan.paths[rows[k]][worked.hop] != IDLE for k in worked.paths)
        )


def arrive(
    plan: Plan,
    take: Take,
    rules: TimeConfig,
    *,
    wanted: int,
    done: Done | None = None,
    leaves: Mapping[int, float] = MappingProxyType({}),
) -> Arrival:
    """Let a plan's paths run on the clients' devices.

    Paths whose models arrive at the same time are ordered by client id, then by their place in the plan.

    Args:
        plan: Paths of H hops.
        take: What trainings take.
        rules: Deadline, what becomes of late paths, and whether the server stands between two hops.
        wanted: Paths that the server waits for, where all have one hop.
        done: What late clients have done; needed for partial work.
        leaves: Seconds after which clients of a plan of one hop drop out; minus infinity stands for the end
            of their training.
    """
    most = dict[int, int]()
    if rules.late == "partial" and done is not None:
        take = _stopped(take, rules.deadline or math.inf, done, most)
    if leaves and plan.hops == 1:
        return _with_drop_outs(plan, take, rules, wanted, leaves)._replace(most=most)
    arrival = _arrives(plan, take, rules, wanted)
    return arrival._replace(most=most) if most else arrival


def _arrives(plan: Plan, take: Take, rules: TimeConfig, wanted: int) -> Arrival:
    """Let a plan's paths run whose clients all stay."""
    if plan.hops == 1 and rules.deadline is None and wanted >= len(plan):
        clients = [path[0] for path in plan.paths]
        if len(set(clients)) == len(clients):
            return _all_clients(plan, clients, take)
    return (
        _by_relay(plan, take, rules) if rules.relay and plan.hops > 1 else _by_hops(plan, take, rules, wanted)
    )


def _all_clients(plan: Plan, clients: list[int], take: Take) -> Arrival:
    """Wait for clients that train once each: the usual round, which takes little to simulate."""
    took = take(0, clients, [True] * len(clients))
    return Arrival(plan, tuple(range(len(clients))), max(took), tuple(took), {}, None)


def _stopped(take: Take, deadline: float, done: Done, most: dict[int, int]) -> Take:
    """Let clients of a plan of one hop stop for the deadline; ``most`` gets the steps that they do."""

    def stopped(hop: int, clients: list[int], first: list[bool]) -> list[float]:
        took = take(hop, clients, first)
        for client, seconds in zip(clients, took, strict=True):
            if seconds > deadline and (steps := done(client, deadline)) > 0:
                most[client] = steps
        return [deadline if client in most else s for client, s in zip(clients, took, strict=True)]

    return stopped


def _with_drop_outs(
    plan: Plan, take: Take, rules: TimeConfig, wanted: int, leaves: Mapping[int, float]
) -> Arrival:
    """Let a plan of one hop run whose clients may leave: the server notices that a connection is lost."""
    worked = _trainings(plan, 0, range(len(plan)), take)
    took = {training.client: training.seconds for training in worked}
    left = {c: leaves[c] for c, seconds in took.items() if seconds > leaves.get(c, math.inf)}
    gone = {c: took[c] if seconds == -math.inf else max(seconds, 0.0) for c, seconds in left.items()}
    stay = [k for k, path in enumerate(plan.paths) if path[0] not in gone]
    if not gone:
        return _arrives(plan, lambda hop, clients, first: [took[c] for c in clients], rules, wanted)
    lost = [t._replace(seconds=gone[t.client]) for t in worked if t.client in gone]
    waited = max(gone.values()) if rules.deadline is None else min(max(gone.values()), rules.deadline)
    if not stay:
        return Arrival(Plan(()), (), waited, (), gone, tuple(lost), gone=tuple(sorted(gone)))
    there = Plan(tuple(plan.paths[k] for k in stay))
    arrival = _by_hops(there, lambda hop, clients, first: [took[c] for c in clients], rules, wanted)
    assert arrival.work is not None
    return arrival._replace(
        kept=tuple(stay[k] for k in arrival.kept),
        seconds=arrival.seconds if len(arrival.plan) >= wanted else max(arrival.seconds, waited),
        late=dict(sorted({**arrival.late, **gone}.items())),
        work=(*(t._replace(paths=tuple(stay[k] for k in t.paths)) for t in arrival.work), *lost),
        gone=tuple(sorted(gone)),
    )


def _by_hops(plan: Plan, take: Take, rules: TimeConfig, wanted: int) -> Arrival:
    """Let all paths wait for each other after each hop."""
    cut = [list(path) for path in plan.paths]
    total, going, kept = [0.0] * len(plan), set(range(len(plan))), set(range(len(plan)))
    seconds, late, work = 0.0, dict[int, float](), list[ClientTraining]()
    for hop in range(plan.hops):
        worked = _trainings(plan, hop, sorted(going), take)
        if not worked:
            continue
        work += worked
        finished, busy = list[tuple[float, int, int]](), dict[int, float]()
        for training in worked:
            # A client that trains two models in a hop trains one after the other.
            busy[training.client] = busy.get(training.client, 0.0) + training.seconds
            finished += [(busy[training.client], training.client, k) for k in training.paths]
        arrived, passed = _first(finished, wanted if plan.hops == 1 else len(plan), rules.deadline)
        seconds += passed
        for took, client, k in finished:
            total[k] += took
            if k in arrived:
                continue
            late[client] = took
            going.discard(k)
            begun = any(client != IDLE for client in cut[k][:hop])
            cut[k][hop:] = [IDLE] * (plan.hops - hop)
            if rules.late == "drop" or not begun:
                kept.discard(k)
    return _arrival(cut, sorted(kept), seconds, total, late, work)


def _by_relay(plan: Plan, take: Take, rules: TimeConfig) -> Arrival:
    """Let each path go from client to client without waiting for the others."""
    by_hop = [_trainings(plan, hop, range(len(plan)), take) for hop in range(plan.hops)]
    ends = [[0.0] * plan.hops for _ in plan.paths]
    for hop, worked in enumerate(by_hop):
        took = {k: training.seconds for training in worked for k in training.paths}
        for k in range(len(plan)):
            ends[k][hop] = (ends[k][hop - 1] if hop else 0.0) + took.get(k, 0.0)
    finished = [(ends[k][-1], plan.visits[k][-1], k) for k in range(len(plan))]
    arrived, passed = _first(finished, len(plan), rules.deadline)
    cut, kept, late = [list(path) for path in plan.paths], set(arrived), dict[int, float]()
    for k in set(range(len(plan))) - arrived:
        missed = next(hop for hop in range(plan.hops) if ends[k][hop] > passed)
        late[plan.paths[k][missed]] = ends[k][missed] - (ends[k][missed - 1] if missed else 0.0)
        cut[k][missed:] = [IDLE] * (plan.hops - missed)
        if rules.late == "rest" and any(client != IDLE for client in cut[k]):
            kept.add(k)
    # No training starts after the round is over.
    work = [
        training
        for hop, worked in enumerate(by_hop)
        for training in worked
        if any((ends[k][hop - 1] if hop else 0.0) < passed for k in training.paths)
    ]
    return _arrival(cut, sorted(kept), passed, [path[-1] for path in ends], late, work)


def _trainings(plan: Plan, hop: int, going: Sequence[int], take: Take) -> list[ClientTraining]:
    """Return the trainings of a hop; in the first one a client's training serves all its paths."""
    groups: dict[tuple[int, int], list[int]] = {}
    for k in going:
        client = plan.paths[k][hop]
        if client != IDLE:
            groups.setdefault((client, k if hop else 0), []).append(k)
    clients = [client for client, _ in groups]
    first = [not hop or all(c == IDLE for c in plan.paths[paths[0]][:hop]) for paths in groups.values()]
    seconds = take(hop, clients, first) if clients else []
    return [
        ClientTraining(hop, client, begins, took, tuple(paths))
        for client, begins, took, paths in zip(clients, first, seconds, groups.values(), strict=True)
    ]


def _first(
    finished: list[tuple[float, int, int]], wanted: int, deadline: float | None
) -> tuple[set[int], float]:
    """Return the paths that arrive, and how long the server waits.

    Args:
        finished: Seconds, client and path, for each path.
        wanted: Paths that the server waits for.
        deadline: Seconds after which it stops to wait, once a path has arrived.
    """
    ordered = sorted(finished)
    in_time = [entry for entry in ordered if deadline is None or entry[0] <= deadline]
    arrived = (in_time or [entry for entry in ordered if entry[0] == ordered[0][0]])[:wanted]
    if deadline is None or not in_time or len(arrived) in (wanted, len(ordered)):
        return {k for _, _, k in arrived}, arrived[-1][0]
    return {k for _, _, k in arrived}, deadline


def _arrival(
    cut: list[list[int]],
    kept: list[int],
    seconds: float,
    total: list[float],
    late: dict[int, float],
    work: list[ClientTraining],
) -> Arrival:
    plan = Plan(tuple(tuple(cut[k]) for k in kept))
    aggregated = {client for path in plan.visits for client in path}
    return Arrival(
        plan=plan,
        kept=tuple(kept),
        seconds=seconds,
        durations=tuple(total[k] for k in kept),
        late={client: late[client] for client in sorted(late) if client not in aggregated},
        work=tuple(work),
    )
