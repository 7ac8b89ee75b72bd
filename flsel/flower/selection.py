"""Rounds of a selector over clients that are reached by messages; free of any framework."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.engine.closing import Closing, Returned
from flsel.engine.opening import Moment, charge_trainings, make_view, reported, select
from flsel.errors import UserError
from flsel.flower.aggregation import ServerStep, averaged, check_head, output_layer, steps_of
from flsel.flower.decoder import Malformed, number, read
from flsel.flower.members import Members
from flsel.flower.model_arrays import converted
from flsel.flower.remote_answers import RemoteClients, asked_of_clients, check_needs
from flsel.flower.remote_model import Model, single
from flsel.flower.round_parts import Open, RoundSummary, Rules, Training
from flsel.flower.wire import Channel, Reply, Value
from flsel.metrics import Cost, Ledger
from flsel.params import Params, finite_rows, repeated, row, rows, whole
from flsel.rng import generator
from flsel.selector import IDLE, Need, Plan, Selector

_LOG = logging.getLogger("flsel")
_OWN = {"own-loss": Need.OWN_LOSS, "squared-loss": Need.SQUARED_LOSS}
# What a training may tell of itself; its other metrics are only averaged.
_TOLD = {"own-loss": number(missing=True), "squared-loss": number(0, missing=True), "steps": number(0, 1e9)}


class Selection:
    """Open rounds, take the answers of their clients, and close them.

    Args:
        selector: Who trains, and how much each update counts.
        members: The clients.
        rules: What the federation is told once.
    """

    def __init__(self, selector: Selector, members: Members, rules: Rules) -> None:
        selector.check_clients_per_round(rules.clients_per_round)
        self.selector, self.members, self.rules = selector, members, rules
        self.name = type(selector).__name__
        check_needs(selector.needs, self.name, rules.holdout, members)
        members.asked = asked_of_clients(selector.needs)
        self.round = 0
        self.ledger = Ledger()
        self.counts = whole([])
        self._took = torch.empty(0, dtype=torch.float64)
        self._elapsed = 0.0
        self._step: ServerStep | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._boundary: dict[str, Any] = {}
        self._open: Open | None = None
        self._told = {**_TOLD, rules.weighted_by: number(0, 1e12)}
        self._usable, self._said_converted = False, False
        self._malformed: dict[int, str] = {}

    @property
    def chained(self) -> bool:
        """Whether a plan of several hops is on its way."""
        return self._open is not None

    @property
    def completed(self) -> int:
        """Communication rounds that are over, without those of a plan that is on its way."""
        return int(self._boundary["round"]) if self.chained else self.round

    def open(
        self, channel: Channel, arrays: Mapping[str, np.ndarray], rounds: int, config: Mapping[str, Value]
    ) -> list[Training]:
        """Decide which clients train.

        Args:
            channel: Reaches the clients.
            arrays: The global model.
            rounds: Communication rounds of the whole run.
            config: Settings of a training.

        Returns:
            The trainings of the first hop.

        Raises:
            UserError: If the clients cannot take part, or the selector's plan breaks the contract.
        """
        began, model = time.monotonic(), Model.of(arrays)
        available = self.members.gather(channel, self.round, config)
        layer = output_layer(model.params, self.rules.output_layer)
        classes = self.rules.num_classes or (0 if layer is None else len(model.params[layer[0]]))
        if classes < 1:
            raise UserError("num_classes must be given, since no array of the model is a matrix.")
        check_head(self.selector, model.params, layer, classes)
        self._begin(classes, model)
        self._boundary = copy.deepcopy(self._state())
        who = RemoteClients(
            channel, self.members, model, classes, self.rules.timeout, self.rules.holdout, config, self._took
        )
        moment = Moment(
            round=self.round,
            rounds=rounds,
            clients_per_round=self.rules.clients_per_round,
            available=lambda round: available,  # those of later hops are not known
            rng=generator(self.rules.seed, "select", self.round),
            clock=self._elapsed,
        )
        view = make_view(who, model.params, self.selector.needs, moment)
        plan = select(view, self.selector)
        at = {name: value.clone() for name, value in repeated(model.params, len(plan)).items()}
        self._open = Open(view, who, Closing(layer), plan, at, began, seconds=[0.0] * len(plan))
        return self.trainings()

    def trainings(self) -> list[Training]:
        """Return the trainings of the hop that is next; a repeated client of the first hop trains once."""
        open = self._now()
        groups: dict[tuple[int, int], list[int]] = {}
        going = set(finite_rows(open.at).tolist())
        for k, path in enumerate(open.plan.paths):
            if path[open.hop] != IDLE and k in going:
                groups.setdefault((path[open.hop], k if open.hop else 0), []).append(k)
        open.trainings = [
            Training(client, tuple(paths), open.who.model.sent(row(open.at, paths[0])))
            for (client, _), paths in groups.items()
        ]
        charge_trainings(open.view, open.who, len(open.trainings), firsts=0)  # see _own_losses
        return open.trainings

    def returned(self, replies: Sequence[Reply]) -> RoundSummary | None:
        """Take the answers of a hop's trainings, in their order.

        Returns:
            What the round did; None if a plan of several hops goes on.
        """
        open = self._now()
        for trained, reply in zip(open.trainings, replies, strict=True):
            self._place(trained, reply)
        open.hop += 1
        self.round += 1
        if open.hop < open.plan.hops:
            return None
        self._open = None
        return self._close(open)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that survives a round, as it was before a plan that is on its way."""
        return self._boundary if self.chained else copy.deepcopy(self._state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, when the next round opens."""
        self._loaded, self.round = copy.deepcopy(dict(state)), int(state["round"])
        self.members.load_state_dict(state["members"])
        self._open = None

    def _now(self) -> Open:
        if self._open is None:
            raise UserError("aggregate_train must follow configure_train, and no round is open.")
        return self._open

    def _begin(self, classes: int, model: Model) -> None:
        """Allocate what is kept, before the first round, or restore it."""
        if self._step is None:
            check_needs(self.selector.needs, self.name, self.rules.holdout, self.members)
            clients = len(self.members.sizes)
            self.counts = torch.zeros(clients, dtype=torch.int64)
            self._took = torch.full((clients,), math.nan, dtype=torch.float64)
            self.selector.reset(self.members.sizes.clone(), classes)
            self._step = ServerStep(self.rules.optimizer, model.params)
        if self._loaded is not None:
            state, self._loaded = self._loaded, None
            self.selector.load_state_dict(state["selector"])
            self.counts, self._took = state["counts"], state["durations"]
            self._usable = True
            self.ledger, self._elapsed = Ledger(state["ledger"]), float(state["seconds"])
            self._step.load_state_dict(state["optimizer"])

    def _state(self) -> dict[str, Any]:
        if self._loaded is not None:
            return dict(self._loaded)
        return {
            "round": self.round,
            "members": self.members.state_dict(),
            "selector": self.selector.state_dict(),
            "optimizer": {} if self._step is None else self._step.state_dict(),
            "counts": self.counts,
            "durations": self._took,
            "ledger": dict(self.ledger),
            "seconds": self._elapsed,
        }

    def _place(self, training: Training, reply: Reply) -> None:
        """Put an end model in its paths; NaN where there is none."""
        open, client, error, malformed = self._now(), training.client, reply.error, reply.malformed
        end, told = dict[str, Tensor](), dict[str, Any]()
        if not error:
            try:
                arrays, told = single(reply.models), read(reply.values, self._told)
                end = open.who.model.received(arrays)
                self._say_converted(converted(arrays, end), end)
            except Malformed as refused:
                error, malformed = str(refused), True
        open.malformed |= {client: error} if malformed else {}
        self.members.heard(client, self.round, error)
        where = torch.tensor(training.paths)
        for name, value in open.at.items():
            value[where] = math.nan if error else end[name]
        if error:
            open.lost[client] = max(reply.seconds, self.rules.timeout)
            return
        self._took[client] = reply.seconds
        self.members.told_size(client, told.get(self.rules.weighted_by))
        for k in training.paths:
            first = all(other == IDLE for other in open.plan.paths[k][: open.hop])
            open.firsts |= {k: told} if first else {}
            open.lasts[k] = {**reply.values, **told}
            open.seconds[k] += reply.seconds

    def _close(self, open: Open) -> RoundSummary:
        """Weigh what came back, let the selector learn, and aggregate."""
        view, plan, model = open.view, open.plan, open.who.model
        deltas = open.closing.updates(open.at, model.params, plan, [view.round] * len(plan))
        kept = finite_rows(deltas).tolist()
        own = self._own_losses(open, kept)
        kept = [k for k in kept if k in own]
        gone = [plan.visits[k][-1] for k in range(len(plan)) if k not in set(kept)]
        weights, arrays = torch.zeros(0, dtype=torch.float64), None
        if kept:
            self._usable = True
            deltas = rows(deltas, whole(kept))
            _, weights = open.closing.weigh(self.selector, view, deltas, self._came_back(open, own))
            delta = open.closing.aggregate(deltas, weights, [], view.round)
            assert self._step is not None  # see _begin
            arrays = model.sent(self._step(model.params, delta, weights))
        elif not self._usable:
            self._refuse_malformed(open, {client for client in gone if client not in open.lost})
        clients = whole([client for visits in plan.visits for client in visits])
        self.counts.index_add_(0, clients, torch.ones_like(clients))
        view.ledger.charge(Cost(dropped_updates=len(gone)))
        self.ledger.charge(view.ledger)
        seconds = time.monotonic() - open.began
        self._elapsed += seconds
        chosen: dict[int, float] = {}
        for k, weight in zip(kept, weights.tolist(), strict=True):
            chosen[plan.visits[k][-1]] = chosen.get(plan.visits[k][-1], 0.0) + weight
        return RoundSummary(
            arrays=arrays,
            clients=chosen,
            lost=sorted(open.lost),
            dropped=sorted(set(gone) - open.lost.keys()),
            metrics=averaged([open.lasts[k] for k in kept], weights),
            ledger=view.ledger,
            seconds=seconds,
        )

    def _refuse_malformed(self, open: Open, answered: set[int]) -> None:
        """End a run whose clients' models were never like the one that they were sent.

        Raises:
            UserError: If that is all that clients returned so far, and more than one client.
        """
        self._malformed |= open.malformed
        if not answered and open.malformed and len(self._malformed) >= min(2, len(self.members.sizes)):
            client, why = next(iter(open.malformed.items()))
            raise UserError(
                f"round {self.round - 1}: no client returned a model like the one that was sent. Client "
                f"{self.members.names[client]}: {why}"
            )

    def _say_converted(self, found: str, model: Params) -> None:
        if found and not self._said_converted:
            self._said_converted = True
            own = str(next(iter(model.values())).dtype).removeprefix("torch.")
            _LOG.warning("clients return models of %s, which are converted to the model's %s", found, own)

    def _came_back(self, open: Open, own: Mapping[int, Sequence[float]]) -> Returned:
        """Return what comes with the updates of some paths, whose clients' losses are given."""
        kept, sizes = list(own), self.members.sizes.tolist()
        plan = Plan(tuple(open.plan.paths[k] for k in kept))
        losses, squared = torch.tensor([own[k] for k in kept], dtype=torch.float64).reshape(-1, 2).T
        seconds = torch.tensor([open.seconds[k] for k in kept], dtype=torch.float64)
        arrived = {client for visits in plan.visits for client in visits}
        work = {
            "sizes": whole([sum(sizes[client] for client in visits) for visits in plan.visits]),
            "steps": whole([steps_of(open.lasts[k]) * len(open.plan.visits[k]) for k in kept]),
        }
        return Returned(
            plan,
            work,
            {Need.OWN_LOSS: losses, Need.SQUARED_LOSS: squared, Need.DURATIONS: seconds},
            late={client: open.lost[client] for client in sorted(open.lost) if client not in arrived},
            asked=whole([visits[0] for visits in open.plan.visits]),
        )

    def _own_losses(self, open: Open, kept: list[int]) -> dict[int, tuple[float, float]]:
        """Return the global model's loss and squared loss at each path's first client, where needed.

        They are asked for where the training did not tell them. A path without them is left out, unless the
        client has no examples.
        """
        wanted = [name for name, need in _OWN.items() if self.selector.needs & need]
        if not wanted:
            return dict.fromkeys(kept, (math.nan, math.nan))
        first = {k: open.plan.visits[k][0] for k in kept}
        told: dict[int, list[Any]] = {
            first[k]: [open.firsts[k].get(name, math.nan) for name in _OWN] for k in kept
        }
        silent = sorted({first[k] for k in kept if not all(name in open.firsts[k] for name in wanted)})
        open.view.ledger.charge(reported(self.selector.needs), len(told) - len(silent))
        if silent:
            losses = open.view.answers.losses(silent, None).tolist()
            told |= {c: [loss, open.who.squared[c]] for c, loss in zip(silent, losses, strict=True)}
        empty = {client for client in told if not self.members.sizes[client]}
        return {
            k: (told[client][0], told[client][1])
            for k, client in first.items()
            if client in empty or not any(math.isnan(told[client][list(_OWN).index(name)]) for name in wanted)
        }
