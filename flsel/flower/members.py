"""The clients of a federation: stable names, their nodes, and which of them can be asked now."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import flsel
from flsel.errors import UserError, short
from flsel.flower.contacts import POLL_SECONDS, Contacts
from flsel.flower.wire import Channel, Reply, Value
from flsel.params import whole

_LOG = logging.getLogger("flsel")


class Members:
    """The clients of a federation, named by their nodes.

    Flower's node ids are new at each registration, so a client goes by the name that its node says, and its
    number is the position of that name among the sorted ones. Names, sizes and label counts are fixed when
    all clients have been met; a client that comes back on a new node is the same client.

    Args:
        clients: Number of clients (N).
        labels: Whether to ask for label counts.
        timeout: Seconds that a node has for an answer.
        wait: Seconds to wait for all clients at first, and later for any of them.

    Attributes:
        names: The clients' names, by their numbers; empty before they were met.
        sizes: Training examples per client, int64 ``[N]``.
        label_counts: Label counts of each client, as far as its labels go; empty lists if not asked for.
        answers: What each client can answer, such as ``losses``.
        nodes: The node of each client that was met in this process.
    """

    def __init__(self, clients: int, *, labels: bool, timeout: float, wait: float) -> None:
        self.names: list[str] = []
        self.sizes = whole([])
        self.label_counts: list[list[int]] = []
        self.answers: dict[int, frozenset[str]] = {}
        self.nodes: dict[int, int] = {}
        self._count, self._labels, self._timeout, self._wait = clients, labels, timeout, wait
        self._contacts = Contacts()

    def gather(self, channel: Channel, round: int) -> Tensor:
        """Meet new nodes, and tell which clients can be asked in a round, bool ``[N]``; at least one can.

        Raises:
            UserError: If the clients are not met in time, are too many, or two nodes are the same client.
            LostError: If no client is connected for as long as is waited.
        """
        if not self.names:
            self._meet_all(channel, round)
        lost = f"no client is connected for {self._wait:g} s."
        return self._contacts.reachable(
            lambda: self._refresh(channel, round), len(self.names), round, self._wait, lost
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

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {"names": self.names, "sizes": self.sizes.tolist(), "labels": self.label_counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        names, sizes, labels = (state[name] for name in ("names", "sizes", "labels"))
        self.names, self.sizes, self.label_counts = names, whole(sizes), labels

    def _meet_all(self, channel: Channel, round: int) -> None:
        """Wait until every client said hello, and number them."""
        met: dict[str, tuple[int, Reply]] = {}
        end = time.monotonic() + self._wait
        while True:
            for node, reply in self._greet(channel, round):
                if reply.error:
                    hint = "" if reply.values else "; its ClientApp must call flsel.flower.answer"
                    raise UserError(f"node {node} cannot take part: {reply.error}{hint}")
                name = _text(reply.values, "client")
                if name in met:
                    raise UserError(
                        f"nodes {met[name][0]} and {node} both are client {name}: give each SuperNode a "
                        "partition-id or client-id of its own in --node-config."
                    )
                met[name] = (node, reply)
            if len(met) >= self._count or time.monotonic() >= end:
                break
            time.sleep(POLL_SECONDS)
        if len(met) != self._count:
            late = "" if len(met) > self._count else f" within {self._wait:g} s"
            raise UserError(
                f"clients must be the number of clients, got {self._count}, and {len(met)} came{late}."
            )
        self.names = sorted(met, key=_order)
        replies = [met[name][1] for name in self.names]
        self.sizes = whole([_whole(reply.values, "examples") for reply in replies])
        self.label_counts = [_counts(reply.values) if self._labels else [] for reply in replies]
        for client, name in enumerate(self.names):
            self._settle(client, *met[name])

    def _refresh(self, channel: Channel, round: int) -> dict[int, int]:
        """Greet nodes that are new: clients that came back, or strangers; return connected clients' nodes."""
        for node, reply in self._greet(channel, round):
            name = str(reply.values.get("client", ""))
            if not reply.error and name in self.names:
                self._settle(self.names.index(name), node, reply)
            else:
                why = reply.error or f"it is client {short(name, 60)}, and the clients were numbered before"
                _LOG.warning("node %s does not take part: %s", node, why)
        connected = set(channel.nodes())
        return {client: node for client, node in self.nodes.items() if node in connected}

    def _greet(self, channel: Channel, round: int) -> list[tuple[int, Reply]]:
        said: dict[str, Value] = {"version": flsel.__version__, "labels": int(self._labels)}
        return self._contacts.greet(channel, said, self._timeout, round)

    def _settle(self, client: int, node: int, reply: Reply) -> None:
        self.nodes[client] = node
        self.answers[client] = frozenset(_text(reply.values, "answers").split())


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


def _text(values: Mapping[str, Value], name: str) -> str:
    found = values.get(name)
    if not isinstance(found, str):
        raise UserError(f"{name} of a hello must be a text, got {short(found, 60)}.")
    return found


def _whole(values: Mapping[str, Value], name: str) -> int:
    found = values.get(name)
    if not isinstance(found, int) or found < 0:
        raise UserError(f"{name} of a hello must be a whole number >= 0, got {short(found, 60)}.")
    return found


def _counts(values: Mapping[str, Value]) -> list[int]:
    found = values.get("labels")
    if not isinstance(found, list) or not all(isinstance(count, int) and count >= 0 for count in found):
        raise UserError(f"labels of a hello must be whole numbers >= 0, got {short(found, 60)}.")
    return [int(count) for count in found]
