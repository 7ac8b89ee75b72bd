"""The one module that imports flwr, and its public names only: messages, apps and the channel over a grid."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg, Result, Strategy  # noqa: E402

from flsel.errors import short  # noqa: E402
from flsel.flower.wire import Models, Reply, Request, Value  # noqa: E402

__all__ = [
    "QUIET", "ArrayRecord", "ClientApp", "ConfigRecord", "Context", "FedAvg", "Grid", "GridChannel",
    "Message", "MetricRecord", "PatientGrid", "Result", "Strategy", "client_app", "from_array_record",
    "from_records", "handles", "message", "reply", "server_app", "to_array_record", "to_records",
]  # fmt: skip

_VALUES = "flsel"
_POLL_SECONDS = 0.1
_CONFIG = "config"  # Flower's own strategies call the settings of a training so.
_TYPES = {
    "hello": "query.flsel_hello",
    "losses": "query.flsel_losses",
    "squared": "query.flsel_squared",
    "gradients": "query.flsel_gradients",
    "visits": "train.flsel_visits",
}


class GridChannel:
    """Carry requests over a Flower grid.

    Args:
        grid: The grid of a ServerApp.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        """Return the ids of the connected nodes, ascending."""
        return sorted(self._grid.get_node_ids())

    def wait_for(self, count: int, timeout: float) -> list[int]:
        """Wait until ``count`` nodes are connected, at most ``timeout`` seconds, and return their ids."""
        end = time.monotonic() + timeout
        while len(found := self.nodes()) < count and time.monotonic() < end:
            time.sleep(1.0)
        return found

    def exchange(self, requests: Sequence[Request], timeout: float) -> list[Reply]:
        """Send requests and collect the replies (see :class:`flsel.flower.wire.Channel`)."""
        found = _deliver(self._grid, [message(request, timeout) for request in requests], timeout)
        return [
            Reply(error="Flower refused the message") if seconds is None else reply(got, seconds, timeout)
            for got, seconds in found
        ]


class PatientGrid(Grid):
    """A grid whose :meth:`send_and_receive` knows how long each reply took, and waits for no refused message.

    Args:
        grid: The grid of a ServerApp, which carries the messages.
        timeout: Most seconds to wait for replies.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid, self._timeout = grid, timeout
        self.seconds: dict[str, float] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies; :attr:`seconds` has what each took, by the message's id."""
        sent = list(messages)
        found = _deliver(self._grid, sent, min(self._timeout, self._timeout if timeout is None else timeout))
        self.seconds = {
            one.metadata.message_id: seconds
            for one, (_, seconds) in zip(sent, found, strict=True)
            if seconds is not None
        }
        return [got for got, _ in found if got is not None]

    def set_run(self, run: Any) -> None:
        """Set the run of the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the grid."""
        return self._grid.run

    def create_message(self, *given: Any, **named: Any) -> Message:
        """Make a message by the grid."""
        return self._grid.create_message(*given, **named)

    def get_node_ids(self) -> Any:
        """Return the ids of the connected nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Any:
        """Return what the grid knows about the connected nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Any:
        """Send messages by the grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Any:
        """Fetch replies by the grid."""
        return self._grid.pull_messages(message_ids)


def _deliver(
    grid: Grid, messages: list[Message], timeout: float
) -> list[tuple[Message | None, float | None]]:
    """Send messages and wait for the replies, at most ``timeout`` seconds.

    Replies belong to messages by the id that they answer: a lost message comes back from the SuperLink, not
    from the node.

    Returns:
        For each message its reply, None where there is none, and the seconds that it took; None for a message
        that was refused.
    """
    started = time.monotonic()
    accepted = list(grid.push_messages(messages)) if messages else []
    if len(accepted) != len(messages):
        # Ids are missing where messages were refused or too large: those that are there name their messages.
        accepted = [m.metadata.message_id if m.metadata.message_id in accepted else "" for m in messages]
    left, got = {name for name in accepted if name}, dict[str, tuple[Message, float]]()
    while left and time.monotonic() < started + timeout:
        for found in grid.pull_messages(left):
            got[found.metadata.reply_to_message_id] = (found, time.monotonic() - started)
        left -= got.keys()
        if left:
            time.sleep(_POLL_SECONDS)
    return [got.get(name, (None, timeout)) if name else (None, None) for name in accepted]


def message(request: Request, timeout: float) -> Message:
    """Make a message of a request.

    Every message has a time to live, since Flower tells of a node that died no earlier.

    Args:
        request: The request; a ``train`` becomes what Flower's own strategies send.
        timeout: Seconds to live.
    """
    kind, values = (
        _TYPES.get(request.action, request.action),
        _CONFIG if request.action == "train" else _VALUES,
    )
    return Message(to_records(request.models, request.values, values), request.node, kind, ttl=timeout)


def reply(got: Message | None, seconds: float, timeout: float) -> Reply:
    """Return what a node answered.

    Args:
        got: Its message; None if none came.
        seconds: Seconds that it took.
        timeout: Seconds that it had.
    """
    if got is None:
        return Reply(seconds=seconds, error=f"no answer within {timeout:g} s")
    if got.has_error():
        return Reply(seconds=seconds, error=f"Flower error {got.error.code}: {short(got.error.reason)}")
    models, values = from_records(got.content)
    return Reply(models, values, seconds, str(values.get("error", "")))


def to_records(models: Models, values: Mapping[str, Value], name: str = _VALUES) -> RecordDict:
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
    """Return the arrays of Flower's record; nothing is unpickled."""
    return {key: array.numpy() for key, array in record.items()}


def from_records(records: RecordDict) -> tuple[Models, Mapping[str, Value]]:
    """Return the models and the plain values of Flower's records, metrics among them."""
    models = {name: from_array_record(record) for name, record in records.array_records.items()}
    values: dict[str, Any] = dict(records.config_records.get(_VALUES, {}))
    for metrics in records.metric_records.values():
        values |= metrics
    return models, values


def handles(app: ClientApp, action: str, handle: Callable[[Message, Context], Message]) -> None:
    """Let an app answer one of flsel's questions."""
    category, name = _TYPES[action].split(".")
    (app.train if category == "train" else app.query)(name)(handle)


def client_app(answer: Callable[[str, Models, Mapping[str, Value], Mapping[str, Any]], Reply]) -> ClientApp:
    """Make a ClientApp that answers flsel's messages.

    Args:
        answer: Gets the action, the models, the values and the node's configuration.
    """
    app = ClientApp()
    for action in _TYPES:

        def handle(asked: Message, context: Context, action: str = action) -> Message:
            models, values = from_records(asked.content)
            found = answer(action, models, values, dict(context.node_config))
            said = {**found.values, **({"error": found.error} if found.error else {})}
            return Message(to_records(found.models, said), reply_to=asked)

        handles(app, action, handle)
    return app


def server_app(main: Callable[[GridChannel, Mapping[str, Any]], None]) -> ServerApp:
    """Make a ServerApp.

    Args:
        main: Gets the channel and the app's configuration.
    """
    app = ServerApp()

    def run(grid: Grid, context: Context) -> None:
        main(GridChannel(grid), dict(context.run_config))

    app.main()(run)
    return app
