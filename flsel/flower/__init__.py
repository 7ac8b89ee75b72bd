"""Runs over a real Flower federation: the server asks nodes, and the nodes train on their own shards.

:class:`SelectorStrategy` and :func:`answer` are for a Flower app of one's own; ``flsel deploy`` runs a config
over nodes. :mod:`flsel.flower.adapter` alone imports flwr. The extra ``flsel[flower]`` installs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flsel._lazy import lazily

if TYPE_CHECKING:
    from flsel.flower.client import answer
    from flsel.flower.strategy import SelectorStrategy

__getattr__ = lazily(__name__, {"SelectorStrategy": "flsel.flower.strategy", "answer": "flsel.flower.client"})

__all__ = ["SelectorStrategy", "answer"]
