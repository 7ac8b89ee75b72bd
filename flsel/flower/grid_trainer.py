"""A trainer that asks the nodes of a federation instead of training itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

import flsel
from flsel.config import RunConfig
from flsel.config.fingerprint import fingerprint
from flsel.data.population import Population
from flsel.data.trees import mapped
from flsel.errors import UserError
from flsel.flower.contacts import Contacts
from flsel.flower.decoder import Malformed, counts, read, whole_number
from flsel.flower.members import label_table
from flsel.flower.model_arrays import to_arrays, to_params
from flsel.flower.node import clients_of
from flsel.flower.wire import Asked, Channel, LostError, Reply, Request, Value
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.params import Params, finite_rows

_LOG = logging.getLogger("flsel")
_NO_NODE = "it must run the app that flsel deploy wrote, but its hello names no partition"
# The server makes a row for each example that a node says to have.
_HELLO = {
    "partition": whole_number(0, 10**7),
    "partitions": whole_number(0, 10**7),
    "labels": counts(10**6, 10**8),
}


@final
class GridTrainer(LocalTrainer):
    """Send visits, losses and gradients to nodes, and stack what comes back.

    A node that does not answer in time, raises, or answers with something else than models of the run's
    shapes, leaves rows of NaN. The federation drops and counts these paths, as it does with every update
    that is not finite. Clients whose node is not connected are not available, and neither are those of a node
    that fails repeatedly, for a while.

    Args:
        channel: Carries the requests.
        config: The run's settings; every node must have the same.
        clients: Number of clients (N).
        timeout: Seconds that a node has for an answer, and that a round waits for any node.
        wait: Seconds to wait for the nodes of all clients; each is greeted once in any case.
        own_data: Every node is one client, with data of its own.

    Attributes:
        asked: Every request so far that was about clients; the reader may empty it.
        homes: The node of each client.

    Raises:
        UserError: If the nodes do not hold every client once, have other settings, or the objective or the
            optimizers keep something about each client.
    """

    def __init__(
        self,
        channel: Channel,
        config: RunConfig,
        clients: int,
        *,
        timeout: float = 600.0,
        wait: float = 0.0,
        own_data: bool = False,
    ) -> None:
        check_deployable(config, own_data=own_data)
        self._channel, self._timeout, self._own_data = channel, timeout, own_data
        self._said: dict[str, Value] = {
            "fingerprint": fingerprint(config.to_dict()),
            "version": flsel.__version__,
        }
        self._clients = clients
        self._contacts = Contacts()
        self._counts: dict[int, list[int]] = {}
        self.asked: list[Asked] = []
        self.homes = self._meet(wait)

    def population(self, known: Population) -> Population:
        """Return the clients' data, where nodes have their own: label counts, and examples that are none."""
        if not self._own_data:
            return known
        counts = label_table([self._counts[c] for c in range(self._clients)], known.num_classes)
        sizes = counts.sum(dim=1).tolist()
        y = torch.repeat_interleave(torch.arange(known.num_classes).repeat(len(sizes)), counts.flatten())
        # One example stands for all: nodes train on theirs, and the server measures on its own.
        x = mapped(lambda values: values[:1].expand(len(y), *values.shape[1:]), known.x)
        shards = torch.split(torch.arange(len(y)), sizes)
        return replace(known, x=x, y=y, groups=None, shards=shards, true_models=None)

    def reachable(self, round: int) -> Tensor:
        """Tell which clients can be asked in a round, bool ``[N]``: those of connected nodes.

        Raises:
            LostError: If no node is connected for as long as is waited.
        """
        lost = f"no node is connected for {self._timeout:g} s; go on with --resume."
        return self._contacts.reachable(
            lambda: self._refresh(round), self._clients, round, self._timeout, lost
        )

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        If no node that was asked answers, the round passes.

        Raises:
            LostError: If no connected node answered.
        """
        found, answered = self._ask("visits", visits, visits[0].start)
        self.unanswered = answered == 0
        if self.unanswered and {self.homes[v.client] for v in visits}.issuperset(self._channel.nodes()):
            raise LostError(
                f"round {visits[0].round} failed: no node that was asked answered within "
                f"{self._timeout:g} s; see the warnings above, and go on with --resume."
            )
        return found

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' losses (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return self._answers("losses", visits, {"loss": torch.zeros((), dtype=torch.float64)})["loss"]

    def squared_losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' squared losses (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return self._answers("squared", visits, {"loss": torch.zeros((), dtype=torch.float64)})["loss"]

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the clients' gradients (see :class:`flsel.local.trainer.LocalTrainer`)."""
        live = {name: value.detach() for name, value in visits[0].program.trainable().items()}
        return self._answers("gradients", visits, live)

    def _meet(self, wait: float) -> dict[int, int]:
        """Ask every node for its clients, and return the node of each client."""
        homes: dict[int, int] = {}
        places: set[tuple[int, int]] = set()

        def admit(node: int, reply: Reply, connected: set[int]) -> str:
            try:
                part, parts, counts = self._place(reply)
            except Malformed as error:
                return str(error)
            clients = clients_of(part, parts, self._clients)
            for client in clients:
                if homes.get(client, node) != node and homes[client] in connected:
                    return f"nodes {homes[client]} and {node} both have client {client}"
            homes.update(dict.fromkeys(clients, node))
            self._counts |= dict.fromkeys(clients, counts)
            places.add((part, parts))
            return ""

        def complete(wrong: Mapping[int, str]) -> bool:
            return len(homes) == self._clients and not wrong

        wrong = self._contacts.meet(self._channel, self._said, self._timeout, wait, admit, complete)
        if wrong:
            node, why = min(wrong.items())
            raise UserError(f"node {node} cannot take part: {why}.")
        missing = [client for client in range(self._clients) if client not in homes]
        if missing:
            absent = {part for _, parts in places for part in range(parts)} - {part for part, _ in places}
            known = f" of partition-id {', '.join(map(str, sorted(absent)[:10]))}" if absent else ""
            raise UserError(
                f"every client needs a node: {len(missing)} of {self._clients} have none, client "
                f"{missing[0]} first. {len(places)} nodes came within {wait:g} s; those{known} are missing."
            )
        return homes

    def _refresh(self, round: int) -> dict[int, int]:
        """Return connected clients' nodes; a node that came back under another id has its clients again."""
        connected = set(self._channel.nodes())
        for node, reply in self._contacts.greet(self._channel, self._said, self._timeout, round):
            why = self._rejoin(node, reply, connected)
            if why:
                self._contacts.refuse(node, why)
        connected &= set(self._channel.nodes())
        return {client: node for client, node in self.homes.items() if node in connected}

    def _rejoin(self, node: int, reply: Reply, connected: set[int]) -> str:
        """Take a node as that of clients that came back, or say why it is none."""
        try:
            part, parts, counts = self._place(reply)
        except Malformed as error:
            return str(error)
        clients = clients_of(part, parts, self._clients)
        for client in clients:
            if self._contacts.taken(node, self.homes[client], reply, connected):
                return f"it says that it has client {client}, which node {self.homes[client]} has"
            if self._own_data and counts != self._counts[client]:
                return "its labels are others than before"
        self.homes |= dict.fromkeys(clients, node)
        return ""

    def _place(self, reply: Reply) -> tuple[int, int, list[int]]:
        """Return the number of a node, the number of all nodes, and its label counts, from its hello.

        Raises:
            Malformed: If it is no hello of a node of this run.
        """
        if reply.error:
            raise Malformed(reply.error)
        if not {"partition", "partitions"} <= reply.values.keys():
            raise Malformed(_NO_NODE)
        said = read(reply.values, _HELLO, ["labels"] if self._own_data else [])
        part, parts = said["partition"], said["partitions"]
        if part >= parts:
            raise Malformed(f"{_NO_NODE} of its {parts}")
        if self._own_data and parts != self._clients:
            raise Malformed(
                "num-partitions must be the number of clients where nodes have their own data, got "
                f"{parts} of {self._clients}"
            )
        return part, parts, said.get("labels", [])

    def _answers(self, action: str, visits: Sequence[Visit], like: Params) -> Params:
        """Ask the nodes a selector's question; an answer that is not finite is none."""
        found, _ = self._ask(action, visits, like)
        lost = torch.ones(len(visits), dtype=torch.bool).index_fill(0, finite_rows(found), False)
        for value in found.values():
            value[lost] = math.nan
        return found

    def _ask(self, action: str, visits: Sequence[Visit], like: Params) -> tuple[Params, int]:
        """Ask the nodes.

        Returns:
            Their answers in the order of the visits, rows of NaN where none came, and how many came.
        """
        groups: dict[int, list[int]] = {}
        for row, visit in enumerate(visits):
            groups.setdefault(self.homes[visit.client], []).append(row)
        requests = [
            self._request(node, action, [visits[row] for row in rows]) for node, rows in groups.items()
        ]
        replies = self._channel.exchange(requests, self._timeout)
        found = {n: v.new_full((len(visits), *v.shape), math.nan) for n, v in like.items()}
        answered = 0
        for rows, reply in zip(groups.values(), replies, strict=True):
            stack, error = _read(reply, like, len(rows))
            self._heard(action, [visits[row] for row in rows], reply.seconds, error)
            answered += not error
            for name, value in stack.items():
                found[name][rows] = value
        return found, answered

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

    def _heard(self, action: str, visits: Sequence[Visit], seconds: float, error: str) -> None:
        """Note whether a node answered; a failure is a warning."""
        round, node = visits[0].round, self.homes[visits[0].client]
        self.asked.append(Asked(round, node, action, [visit.client for visit in visits], seconds, error))
        why = self._contacts.heard(node, round, error)
        if why:
            _LOG.warning(
                "node %s gave no answer in round %d, and what its clients did is lost: %s", node, round, why
            )


def _read(reply: Reply, like: Params, rows: int) -> tuple[Params, str]:
    """Return a node's answer, or why there is none."""
    if reply.error:
        return {}, reply.error
    try:
        return to_params(reply.models.get("answer", {}), like, rows), ""
    except Malformed as error:
        return {}, str(error)


def check_deployable(config: RunConfig, *, own_data: bool = False) -> None:
    """Refuse settings that keep something about each client: nodes remember nothing between messages.

    Args:
        config: The settings.
        own_data: Every node is one client, with data of its own, which the server has not.

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
    if config.asynchronous.concurrency is not None:
        raise UserError(
            "asynchronous.concurrency must be null in a deployment: updates arrive in simulated time."
        )
    if config.local.personal:
        raise UserError("local.personal must be empty in a deployment: nodes keep nothing between messages.")
    if config.updates:
        raise UserError(
            "updates must be empty in a deployment, where nodes send their models whole: a mod of the Flower "
            "app changes them."
        )
    if config.aggregate.robust:
        raise UserError(
            f"aggregate must be Mean in a deployment, got {type(config.aggregate).__name__}: what joins the "
            "nodes' models there is the weighted mean."
        )
    if config.callbacks:
        raise UserError("callbacks must be empty in a deployment: the nodes would not see what they change.")
    if own_data and config.evaluation.per_client:
        raise UserError("evaluation.per_client must be false where nodes have their own data.")
