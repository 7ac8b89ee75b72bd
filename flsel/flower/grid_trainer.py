"""A trainer that asks the nodes of a federation instead of training itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

import flsel
from flsel.config import RunConfig
from flsel.config.describe import describe, fingerprint
from flsel.errors import UserError
from flsel.flower.node import clients_of
from flsel.flower.wire import Channel, LostError, Reply, Request, Value, to_arrays, to_params
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.params import Params

_LOG = logging.getLogger("flsel")


@final
class GridTrainer(LocalTrainer):
    """Send visits, losses and gradients to nodes, and stack what comes back.

    A node that does not answer in time, raises, or answers with something else than models of the run's
    shapes, leaves rows of NaN. The federation drops and counts these paths, as it does with every update
    that is not finite.

    Args:
        channel: Carries the requests.
        config: The run's settings; every node must have the same.
        clients: Number of clients (N).
        timeout: Seconds that a node has for an answer.

    Raises:
        UserError: If the nodes do not hold every client once, have other settings, or the objective or the
            optimizers keep something about each client.
    """

    def __init__(self, channel: Channel, config: RunConfig, clients: int, *, timeout: float = 600.0) -> None:
        check_deployable(config)
        self._channel, self._timeout = channel, timeout
        self._said = {"fingerprint": fingerprint(describe(config)), "version": flsel.__version__}
        self.seconds: dict[int, float] = {}
        self._told: set[int] = set()
        self._homes = self._hello(clients)

    @property
    def homes(self) -> Mapping[int, int]:
        """The node of each client."""
        return self._homes

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            LostError: If no node answered.
        """
        return self._ask("visits", visits, visits[0].start)

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' losses (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return self._ask("losses", visits, {"loss": torch.zeros((), dtype=torch.float64)})["loss"]

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the clients' gradients (see :class:`flsel.local.trainer.LocalTrainer`)."""
        live = {name: value.detach() for name, value in visits[0].program.trainable().items()}
        return self._ask("gradients", visits, live)

    def _hello(self, clients: int) -> dict[int, int]:
        """Ask every node who it is, and return the node of each client."""
        requests = [Request(node, "hello", values=self._said) for node in self._channel.nodes()]
        replies = self._channel.exchange(requests, self._timeout) if requests else []
        homes: dict[int, int] = {}
        for request, reply in zip(requests, replies, strict=True):
            if reply.error:
                raise UserError(f"node {request.node} cannot take part: {reply.error}")
            part, parts = int(str(reply.values["partition"])), int(str(reply.values["partitions"]))
            for client in clients_of(part, parts, clients):
                if client in homes:
                    raise UserError(f"nodes {homes[client]} and {request.node} both have client {client}.")
                homes[client] = request.node
        missing = [client for client in range(clients) if client not in homes]
        if missing:
            raise UserError(
                f"every client needs a node: {len(missing)} of {clients} have none, client {missing[0]} "
                f"first. {len(requests)} nodes are connected."
            )
        return homes

    def _ask(self, action: str, visits: Sequence[Visit], like: Params) -> Params:
        """Ask the nodes, and return their answers in the order of the visits; rows of NaN where none came."""
        groups: dict[int, list[int]] = {}
        for row, visit in enumerate(visits):
            groups.setdefault(self._homes[visit.client], []).append(row)
        requests = [
            self._request(node, action, [visits[row] for row in rows]) for node, rows in groups.items()
        ]
        replies = self._channel.exchange(requests, self._timeout)
        found = {n: v.new_full((len(visits), *v.shape), math.nan) for n, v in like.items()}
        lost = 0
        for (node, rows), reply in zip(groups.items(), replies, strict=True):
            stack = self._accepted(node, reply, like, len(rows))
            if stack is None:
                lost += 1
                continue
            self.seconds[node] = reply.seconds
            for name, value in stack.items():
                found[name][rows] = value
        if lost == len(groups):
            raise LostError(
                f"round {visits[0].round} failed: none of {len(groups)} nodes answered within "
                f"{self._timeout:g} s; see the warnings above, and go on with --resume."
            )
        return found

    def _request(self, node: int, action: str, visits: Sequence[Visit]) -> Request:
        distinct = list({id(visit.start): visit.start for visit in visits}.values())
        number = {id(start): position for position, start in enumerate(distinct)}
        values: dict[str, Value] = {
            **self._said,
            "clients": [visit.client for visit in visits],
            "rounds": [visit.round for visit in visits],
            "starts": [number[id(visit.start)] for visit in visits],
        }
        models = {f"start{position}": to_arrays(start) for position, start in enumerate(distinct)}
        return Request(node, action, models, values)

    def _accepted(self, node: int, reply: Reply, like: Params, rows: int) -> Params | None:
        """Return a node's answer; None, with one warning a node, if it is lost or not what was asked for."""
        said = reply.error
        if not said:
            try:
                return to_params(reply.models.get("answer", {}), like, rows)
            except UserError as error:
                said = str(error)
        if node not in self._told:
            _LOG.warning("node %s gave no answer, and its clients' updates are dropped: %s", node, said)
            self._told.add(node)
        return None


def check_deployable(config: RunConfig) -> None:
    """Refuse settings that keep something about each client: nodes remember nothing between messages.

    Raises:
        UserError: Naming the setting.
    """
    if config.local.keep_optimizer:
        raise UserError("local.keep_optimizer must be false in a deployment: nodes keep no optimizer.")
    names = ("FedAvg", "FedProx")
    name = type(config.objective).__name__
    if name not in names:
        raise UserError(
            f"objective must be {' or '.join(names)} in a deployment, got {name}, whose state stays at "
            "the server."
        )
    if config.callbacks:
        raise UserError("callbacks must be empty in a deployment: the nodes would not see what they change.")
