"""Choose among clients' metrics those that Flower's average takes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flsel.errors import short
from flsel.flower.adapter import Message, reply
from flsel.flower.decoder import Malformed, finite_numbers, number, read, told

_LOG = logging.getLogger("flsel")
Shape = frozenset[tuple[str, int]]


def well_formed(replies: Mapping[str, Message], weight: str) -> list[Message]:
    """Return the answers whose metrics can be averaged; a warning tells why another one is left out.

    Args:
        replies: Answers by the clients' names.
        weight: The metric by which they are weighed.
    """
    shapes, weights = dict[str, Shape](), dict[str, float]()
    for name, message in replies.items():
        found = reply(message, 0.0, 0.0)
        try:
            if found.error:
                raise Malformed(found.error)
            metrics = _metrics(message)
            weights[name] = read(metrics, {weight: number(0, 1e12)}, [weight])[weight]
            shapes[name] = frozenset((n, len(v) if isinstance(v, list) else -1) for n, v in metrics.items())
        except Malformed as error:
            _LOG.warning("metrics of client %s are left out: %s", name, error)
    most = Counter(shapes.values()).most_common(1)
    for name, shape in shapes.items():
        if shape != most[0][0]:
            _LOG.warning(
                "metrics of client %s are left out: they are others than those of most clients", name
            )
    return [replies[name] for name, shape in shapes.items() if shape == most[0][0] and weights[name]]


def _metrics(message: Message) -> dict[str, Any]:
    """Return the metrics of an evaluation.

    Raises:
        Malformed: If Flower's average does not take it.
    """
    records = list(message.content.metric_records.values())
    if len(records) != 1:
        raise Malformed(f"an evaluation must hold one MetricRecord, got {len(records)}.")
    values = dict(records[0])
    for name, value in values.items():
        numbers = dict(enumerate(value)) if isinstance(value, list) else {0: value}
        if len(finite_numbers(numbers)) != len(numbers):
            raise Malformed(f"{short(name, 100)} of an evaluation must be finite, got {told(value)}.")
    return values
