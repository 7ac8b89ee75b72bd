"""Which nodes a server met, and which of them it leaves out for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from flsel.flower.wire import Channel, LostError, Reply, Request, Value

_LONGEST = 16  # Rounds.
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

    def greet(
        self, channel: Channel, said: Mapping[str, Value], timeout: float, round: int
    ) -> list[tuple[int, Reply]]:
        """Greet the nodes that were not met yet; a node that does not answer is greeted again later."""
        new = [node for node in channel.nodes() if node not in self._greeted and self.free(node, round)]
        requests = [Request(node, "hello", values=said) for node in new]
        replies = channel.exchange(requests, timeout) if new else []
        for node, reply in zip(new, replies, strict=True):
            if reply.values:
                self._greeted.add(node)
            else:
                self.failed(node, round)
        return list(zip(new, replies, strict=True))

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
