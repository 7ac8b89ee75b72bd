"""The clients of a federation: stable names, their nodes, and which of them can be asked now."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flsel.errors import UserError
from flsel.flower.contacts import Contacts, is_plain
from flsel.flower.decoder import Malformed, counts, read, text, whole_number
from flsel.flower.wire import PROTOCOL, Channel, Reply, Value
from flsel.params import whole

_LOG = logging.getLogger("flsel")
_MOST_EXAMPLES = 10**12
_HELLO = {
    "client": text(100),
    "examples": whole_number(0, _MOST_EXAMPLES),
    "answers": text(200, least=0),
    "labels": counts(10**6, _MOST_EXAMPLES),
}


class Members:
    """The clients of a federation, named by their nodes.

    Flower's node ids are new at each registration, so a client goes by the name that its node says, and its
    number is the position of that name among the sorted ones of those that came before the first round.
    Clients that come later get the numbers after them. Sizes and label counts are fixed when a client has
    been met; a client that comes back on a new node is the same client.

    Args:
        clients: Most clients (N).
        least: Clients that must have come before the first round.
        labels: Whether to ask for label counts.
        timeout: Seconds that a node has for an answer.
        wait: Seconds to wait for the clients at first, and later for any of them.

    Attributes:
        names: The names of the clients that were met, by their numbers.
        sizes: Training examples per client, int64 ``[N]``.
        unknown: Clients whose sizes are not known before they train: the mean of the others, or one.
        label_counts: Label counts of each client, as far as its labels go; empty lists if not asked for.
        answers: What each client can answer, such as ``losses``.
        nodes: The node of each client that was met in this process.
        asked: What every client must be able to answer.
    """

    def __init__(
        self, clients: int, *, labels: bool, timeout: float, wait: float, least: int | None = None
    ) -> None:
        self.names: list[str] = []
        self.sizes = whole([])
        self.unknown: set[int] = set()
        self.label_counts: list[list[int]] = []
        self.answers: dict[int, frozenset[str]] = {}
        self.nodes: dict[int, int] = {}
        self.asked: frozenset[str] = frozenset()
        self._least = clients if least is None else least
        self._count, self._labels, self._timeout, self._wait = clients, labels, timeout, wait
        self._said: dict[str, Value] = {}
        self._contacts = Contacts()

    def gather(self, channel: Channel, round: int, config: Mapping[str, Value] | None = None) -> Tensor:
        """Meet new nodes, and tell which clients can be asked in a round, bool ``[N]``; at least one can.

        Args:
            channel: Reaches the clients.
            round: Communication round.
            config: Settings that the app's own trainings get, which questions get as well.

        Raises:
            UserError: If the clients are not met in time, are too many, or two nodes are the same client.
            LostError: If no client is connected for as long as is waited.
        """
        self._said = hello(round, config or {}, labels=self._labels)
        if not self.names:
            self._meet_all(channel)
        lost = f"no client is connected for {self._wait:g} s."
        return self._contacts.reachable(
            lambda: self._refresh(channel, round), self._count, round, self._wait, lost
        )

    def heard(self, client: int, round: int, error: str) -> None:
        """Note whether a client answered.

        Args:
            client: The client.
            round: Communication round.
            error: Why there is no answer; empty if there is one.
        """
        why = self._contacts.heard(self.nodes[client], round, error)
        if why:
            _LOG.warning("client %s gave no answer in round %d: %s", self.names[client], round, why)

    def told_size(self, client: int, examples: float | None) -> None:
        """Take a client's number of examples from its training, if it is not known otherwise."""
        if client in self.unknown and examples is not None and round(examples) >= 1:
            self.sizes[client] = round(examples)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        sizes, unknown = self.sizes.tolist(), sorted(self.unknown)
        return {"names": self.names, "sizes": sizes, "labels": self.label_counts, "unknown": unknown}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        names, sizes, labels = (state[name] for name in ("names", "sizes", "labels"))
        self.names, self.sizes, self.label_counts = names, whole(sizes), labels
        self.unknown = set(state["unknown"])

    def _meet_all(self, channel: Channel) -> None:
        """Wait until every client said hello, and number them."""
        met: dict[str, tuple[int, dict[str, Any]]] = {}
        twice: set[int] = set()

        def admit(node: int, reply: Reply, connected: set[int]) -> str:
            try:
                said = self._read(node, reply)
            except Malformed as error:
                return str(error)
            other = met.get(said["client"], (node,))[0]
            if other != node and other in connected:
                twice.add(node)
                return (
                    f"nodes {other} and {node} both are client {said['client']}: give each SuperNode a "
                    "partition-id or client-id of its own in --node-config"
                )
            met[said["client"]] = (node, said)
            return ""

        def complete(wrong: Mapping[int, str]) -> bool:
            return len(met) >= self._least and not twice & wrong.keys()

        wrong = self._contacts.meet(channel, self._said, self._timeout, self._wait, admit, complete)
        for node in sorted(twice & wrong.keys()):
            raise UserError(f"{wrong[node]}.")
        if not self._least <= len(met) <= self._count:
            raise UserError(self._missing(sorted(met, key=_order), wrong))
        self.names = sorted(met, key=_order)
        known = [said["examples"] for _, said in met.values() if "examples" in said]
        self.sizes = whole([max(sum(known) // max(len(known), 1), 1)] * self._count)
        self.unknown = set(range(self._count))
        self.label_counts = [[] for _ in range(self._count)]
        for client, name in enumerate(self.names):
            self._settle(client, *met[name])

    def _missing(self, met: Sequence[str], wrong: Mapping[int, str]) -> str:
        """Say which clients did not come, as far as that is known."""
        absent = [name for name in map(str, range(self._count)) if name not in met]
        numbered = bool(met) and all(name.isdecimal() and int(name) < self._count for name in met)
        late = "" if len(met) > self._count else f" within {self._wait:g} s"
        who = f": {_listed(absent)} missing" if numbered and absent else f": {_listed(met)}" if met else ""
        came = f"{len(met)} came{late}{who}"
        if not wrong and self._least < self._count:
            return f"min_clients must be at most as many clients as come, got {self._least}, and {came}."
        if not wrong:
            return f"clients must be the number of clients, got {self._count}, and {came}."
        node, why = min(wrong.items())
        others = f" and {len(wrong) - 1} others" if len(wrong) > 1 else ""
        hint = "; its ClientApp must call flsel.flower.answer" if "'flsel_hello'" in why else ""
        return f"node {node}{others} cannot take part: {why}{hint}. Of {self._count} clients {came}."

    def _refresh(self, channel: Channel, round: int) -> dict[int, int]:
        """Greet nodes that are new: clients that came back, or strangers; return connected clients' nodes."""
        connected = set(channel.nodes())
        for node, reply in self._contacts.greet(channel, self._said, self._timeout, round):
            why = self._rejoin(node, reply, connected)
            if why:
                self._contacts.refuse(node, why)
        connected &= set(channel.nodes())
        return {client: node for client, node in self.nodes.items() if node in connected}

    def _rejoin(self, node: int, reply: Reply, connected: set[int]) -> str:
        """Take a node as that of a client that came back, or say why it is none."""
        try:
            said = self._read(node, reply)
        except Malformed as error:
            return str(error)
        silent = sorted(self.asked - set(said["answers"].split()))
        if silent:
            return f"it does not answer for its {silent[0]}"
        if said["client"] not in self.names:
            if len(self.names) == self._count:
                return f"it is client {said['client']}, and {self._count} clients came before"
            self.names.append(said["client"])
        client = self.names.index(said["client"])
        if self._contacts.taken(node, self.nodes.get(client, node), reply, connected):
            return f"it says that it is client {said['client']}, which node {self.nodes[client]} is"
        self._settle(client, node, said)
        return ""

    def _read(self, node: int, reply: Reply) -> dict[str, Any]:
        """Return what a hello says; a plain Flower client, which says nothing, goes by its node's id.

        Raises:
            Malformed: If it is none, or label counts are asked for and the client says none.
        """
        if is_plain(reply) and not self._labels:
            return {"client": str(node), "answers": ""}
        if reply.error:
            raise Malformed(reply.error)
        required = ("client", "examples", "answers", "labels")[: 4 if self._labels else 3]
        said = read(reply.values, _HELLO, required)
        if self._labels and sum(said["labels"]) != said["examples"]:
            raise Malformed(
                f"labels of an answer must be counts of its {said['examples']} examples, got "
                f"{sum(said['labels'])}."
            )
        return said

    def _settle(self, client: int, node: int, said: Mapping[str, Any]) -> None:
        """Note the node of a client, and what its first hello says."""
        if client in self.unknown and "examples" in said:
            self.unknown.remove(client)
            self.sizes[client] = said["examples"]
            self.label_counts[client] = said.get("labels", [])
        self.nodes[client] = node
        self.answers[client] = frozenset(said["answers"].split())


def hello(round: int, config: Mapping[str, Value], *, labels: bool) -> dict[str, Value]:
    """Return what a greeting says."""
    own: dict[str, Value] = {"protocol": PROTOCOL, "labels": int(labels)}
    return {**config, "server-round": round + 1, **own}


def label_table(counts: Sequence[Sequence[int]], classes: int) -> Tensor:
    """Return label counts as a table, int64 ``[N, C]``.

    Args:
        counts: Each client's, as far as its labels go.
        classes: C.

    Raises:
        UserError: If a client has labels beyond C.
    """
    most = max(map(len, counts), default=0)
    if most > classes:
        raise UserError(
            f"num_classes must be above every label, got {classes}, and a client has label {most - 1}."
        )
    return torch.tensor([[*row, *[0] * (classes - len(row))] for row in counts], dtype=torch.int64)


def _order(name: str) -> tuple[bool, int, str]:
    """Order numbers by value, before other names."""
    number = name.isdecimal()
    return not number, int(name) if number else 0, name


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
