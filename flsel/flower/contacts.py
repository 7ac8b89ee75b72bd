"""Which nodes a server met, and which of them it leaves out for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from flsel.errors import UserError
from flsel.flower.wire import Channel, LostError, Reply, Request, Value

_LOG = logging.getLogger("flsel")
_LONGEST = 16  # Rounds.
_LEAST_PATIENCE = 10.0  # Seconds: Flower carries no message faster.
POLL_SECONDS = 1.0


class Contacts:
    """Greet nodes, and leave out those that failed at least twice in a row.

    A node is left out for one round, then two, four, up to sixteen. A node whose process died often stays
    connected without answering, and every message to it costs a whole timeout. One answer ends the series.
    """

    def __init__(self) -> None:
        self._greeted: set[int] = set()
        self._failures: dict[int, int] = {}
        self._until: dict[int, int] = {}
        self._later: list[tuple[int, Reply]] = []
        self._refused: dict[int, str] = {}

    def meet(
        self,
        channel: Channel,
        said: Mapping[str, Value],
        timeout: float,
        wait: float,
        admit: Callable[[int, Reply, set[int]], str],
        complete: Callable[[Mapping[int, str]], bool],
    ) -> dict[int, str]:
        """Greet nodes, again and again, until all are there or the wait is over.

        Args:
            channel: Reaches the nodes.
            said: What the greeting says.
            timeout: Most seconds that a node has for its answer.
            wait: Seconds to wait; one greeting is sent in any case.
            admit: Takes a node, its answer and the connected nodes, and returns why the node cannot take
                part, or nothing.
            complete: Takes why connected nodes could not be admitted, and tells whether nobody else is waited
                for.

        Returns:
            Why connected nodes could not be admitted.

        Raises:
            UserError: If a node says that it cannot take part, which waiting does not change.
        """
        end, wrong = time.monotonic() + wait, dict[int, str]()
        while True:
            connected = set(channel.nodes())
            new = sorted(connected - self._greeted)
            left = end - time.monotonic()
            # Half of the time that is left: a node that died answers nothing, and may be back by then.
            patience = min(timeout, max(left / 2, _LEAST_PATIENCE)) if wait else timeout
            replies = channel.exchange([_greeting(node, said) for node in new], patience)
            for node, reply in zip(new, replies, strict=True):
                if reply.values.get("error"):
                    raise UserError(f"node {node} cannot take part: {reply.error}")
                why = admit(node, reply, connected)
                if not why:
                    self._greeted.add(node)
                elif wait and wrong.get(node) != why:
                    _LOG.warning("node %s cannot take part yet, and is greeted again: %s", node, why)
                wrong[node] = why
            wrong = {node: why for node, why in wrong.items() if why and node in connected}
            if complete(wrong) or time.monotonic() >= end:
                return wrong
            time.sleep(POLL_SECONDS)

    def greet(
        self, channel: Channel, said: Mapping[str, Value], timeout: float, round: int
    ) -> list[tuple[int, Reply]]:
        """Greet the nodes that were not met yet; a node that does not answer is greeted again later.

        Returns:
            Nodes and their answers, those that were put off among them.
        """
        connected = channel.nodes()
        new = [node for node in connected if node not in self._greeted and self.free(node, round)]
        requests = [_greeting(node, said) for node in new]
        replies = channel.exchange(requests, timeout) if new else []
        for node, reply in zip(new, replies, strict=True):
            if reply.values or is_plain(reply):
                self._greeted.add(node)
            else:
                self.failed(node, round)
        later, self._later = [(node, reply) for node, reply in self._later if node in connected], []
        return later + list(zip(new, replies, strict=True))

    def taken(self, node: int, holder: int, reply: Reply, connected: set[int]) -> bool:
        """Tell whether another connected node already is the client that a node says to be.

        A node that restarted has a new id, and its old one stays connected for a while: :meth:`greet` returns
        its answer again.
        """
        if holder == node or holder not in connected:
            return False
        self._later.append((node, reply))
        return True

    def refuse(self, node: int, why: str) -> None:
        """Warn, once, that a node does not take part."""
        if self._refused.get(node) != why:
            self._refused[node] = why
            _LOG.warning("node %s does not take part: %s", node, why)

    def reachable(
        self, connected: Callable[[], Mapping[int, int]], clients: int, round: int, wait: float, lost: str
    ) -> Tensor:
        """Wait for a connected client, and tell which clients can be asked in a round, bool ``[N]``.

        Args:
            connected: Returns the node of each client that is connected now.
            clients: Number of clients (N).
            round: Communication round.
            wait: Seconds to wait.
            lost: What the error says.

        Raises:
            LostError: If no client is connected within ``wait``.
        """
        end = time.monotonic() + wait
        while not (homes := connected()):
            if time.monotonic() >= end:
                raise LostError(f"round {round} failed: {lost}")
            time.sleep(POLL_SECONDS)
        free = [client for client, node in homes.items() if self.free(node, round)]
        found = torch.zeros(clients, dtype=torch.bool)
        # If all connected nodes failed before, they are asked again.
        found[free or list(homes)] = True
        return found

    def failed(self, node: int, round: int) -> int:
        """Note that a node gave no answer in a round, and return for how many rounds it is left out."""
        self._failures[node] = self._failures.get(node, 0) + 1
        out = min(2 ** (self._failures[node] - 2), _LONGEST) if self._failures[node] > 1 else 0
        self._until[node] = round + 1 + out
        return out

    def heard(self, node: int, round: int, error: str) -> str:
        """Note whether a node answered, and return what a warning says of a failure.

        Args:
            node: The node.
            round: Communication round.
            error: Why there is no answer; empty if there is one.
        """
        if not error:
            self._failures.pop(node, None)
            self._until.pop(node, None)
            return ""
        out = self.failed(node, round)
        return error + (f"; it is left out for {out} round{'s' if out > 1 else ''}" if out else "")

    def free(self, node: int, round: int) -> bool:
        """Tell whether a node may be asked in a round."""
        return self._failures.get(node, 0) < 2 or round >= self._until[node]


def is_plain(reply: Reply) -> bool:
    """Tell whether a greeting was refused by a Flower app that knows nothing of flsel."""
    return "'flsel_hello'" in reply.error


def _greeting(node: int, said: Mapping[str, Value]) -> Request:
    """Return a question for a node's clients; its arrays, one number, are for mods, which expect a model."""
    return Request(node, "hello", {"arrays": {"greeting": np.zeros(1, np.float32)}}, said)
