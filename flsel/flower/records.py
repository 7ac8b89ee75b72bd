"""Flower's messages, and what they hold as arrays and plain values; with the adapter all that imports flwr.

Nodes import this module for every message: it is light, and does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

# Before flwr is imported, which reads them. A user who wants Flower's telemetry sets them.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)

import numpy as np  # noqa: E402
from flwr.app import (  # noqa: E402
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402

from flsel.flower.decoder import Malformed, npy  # noqa: E402
from flsel.flower.wire import Models, Value  # noqa: E402

__all__ = [
    "ANSWER", "CONFIG", "MODEL", "QUIET", "TYPES", "Array", "ArrayRecord", "ClientApp", "ConfigRecord",
    "Context", "Message", "MetricRecord", "RecordDict", "from_array_record", "from_records", "handles",
    "to_array_record", "to_records",
]  # fmt: skip

ANSWER = "flsel"
"""Name of the record that holds the plain values of an answer."""
CONFIG = "config"
"""Name of the record that holds the plain values of a question, as Flower's own strategies call it."""
MODEL = "arrays"
"""Name of the record that holds the model of a question, as Flower's own strategies call it."""
TYPES = {
    "hello": "query.flsel_hello",
    "losses": "query.flsel_losses",
    "squared": "query.flsel_squared",
    "gradients": "query.flsel_gradients",
    "visits": "train.flsel_visits",
}
_NUMPY = "numpy.ndarray"


def to_records(models: Models, values: Mapping[str, Value], name: str = ANSWER) -> RecordDict:
    """Return models and plain values as Flower's records.

    Args:
        models: Models by name.
        values: Plain values.
        name: Name of the record that holds the values.
    """
    records = RecordDict({name: ConfigRecord(dict(values))})
    for key, arrays in models.items():
        records[key] = to_array_record(arrays)
    return records


def to_array_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Return arrays as Flower's record."""
    return ArrayRecord({key: Array(np.asarray(value, order="C")) for key, value in arrays.items()})


def from_array_record(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return the arrays of Flower's record: views of its bytes, which are not unpickled.

    Raises:
        Malformed: If one is no array of plain numbers.
    """
    other = next((array.stype for array in record.values() if array.stype != _NUMPY), None)
    if other is not None:
        raise Malformed(f"each array must be of Flower's type {_NUMPY}, got {other[:60]!r}.")
    return {key: npy(array.data) for key, array in record.items()}


def from_records(records: RecordDict, name: str = ANSWER) -> tuple[Models, Mapping[str, Any]]:
    """Return the models and the plain values of Flower's records, metrics among them.

    Args:
        records: The records.
        name: Name of the record that holds the plain values, which go before metrics of the same name.

    Raises:
        Malformed: If an array is none of plain numbers.
    """
    models = {key: from_array_record(record) for key, record in records.array_records.items()}
    values: dict[str, Any] = {}
    for metrics in records.metric_records.values():
        values |= metrics
    return models, values | dict(records.config_records.get(name, {}))


def handles(app: ClientApp, action: str, handle: Callable[[Message, Context], Message]) -> None:
    """Let an app answer one of flsel's questions."""
    category, name = TYPES[action].split(".")
    (app.train if category == "train" else app.query)(name)(handle)
