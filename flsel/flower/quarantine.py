"""Nodes that fail repeatedly are left out for a while."""

from __future__ import annotations

from collections.abc import Collection

_LONGEST = 16  # Rounds.


class Quarantine:
    """Leave out nodes that failed at least twice in a row: for one round, then two, four, up to sixteen.

    A node whose process died often stays connected without answering, and every message to it costs a whole
    timeout. One answer ends the series.
    """

    def __init__(self) -> None:
        self._failures: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def failed(self, node: int, round: int) -> int:
        """Note that a node gave no answer in a round, and return for how many rounds it is left out."""
        self._failures[node] = self._failures.get(node, 0) + 1
        out = min(2 ** (self._failures[node] - 2), _LONGEST) if self._failures[node] > 1 else 0
        self._until[node] = round + 1 + out
        return out

    def answered(self, node: int) -> None:
        """Note that a node answered."""
        self._failures.pop(node, None)
        self._until.pop(node, None)

    def free(self, node: int, round: int) -> bool:
        """Tell whether a node may be asked in a round."""
        return self._failures.get(node, 0) < 2 or round >= self._until[node]

    def strangers(self, nodes: Collection[int], known: Collection[int], round: int) -> list[int]:
        """Return the nodes that are not known and may be asked in a round."""
        return [node for node in nodes if node not in known and self.free(node, round)]
