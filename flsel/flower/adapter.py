"""The one module that imports flwr, and its public names only: messages, apps and the channel over a grid."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Before flwr is imported, which reads them then. Whoever wants Flower's telemetry sets them.
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
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

from flsel.errors import short  # noqa: E402
from flsel.flower.wire import Models, Reply, Request, Value  # noqa: E402

_VALUES = "flsel"
_POLL_SECONDS = 0.1
_TYPES = {
    "hello": "query.flsel_hello",
    "losses": "query.flsel_losses",
    "gradients": "query.flsel_gradients",
    "visits": "train.flsel_visits",
}


class GridChannel:
    """Carry requests over a Flower grid.

    Every message has a time to live, since Flower tells of a node that died no earlier. Replies belong to
    requests by the id that they answer: a lost message comes back from the SuperLink, not from the node.

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
        messages = [
            Message(to_records(r.models, r.values), r.node, _TYPES[r.action], ttl=timeout) for r in requests
        ]
        started = time.monotonic()
        ids = list(self._grid.push_messages(messages))
        left, got = {name for name in ids if name}, dict[str, tuple[Message, float]]()
        while left and time.monotonic() < started + timeout:
            for message in self._grid.pull_messages(left):
                got[message.metadata.reply_to_message_id] = (message, time.monotonic() - started)
            left -= got.keys()
            if left:
                time.sleep(_POLL_SECONDS)
        # Ids are missing altogether where a message was too large to be sent.
        ids += [""] * (len(messages) - len(ids))
        return [_reply(name, got, timeout) for name in ids]


def _reply(name: str | None, got: Mapping[str, tuple[Message, float]], timeout: float) -> Reply:
    if not name:
        return Reply(error="Flower refused the message")
    if name not in got:
        return Reply(error=f"no answer within {timeout:g} s")
    message, seconds = got[name]
    if message.has_error():
        return Reply(error=f"Flower error {message.error.code}: {short(message.error.reason)}")
    models, values = from_records(message.content)
    return Reply(models, values, seconds, str(values.get("error", "")))


def to_records(models: Models, values: Mapping[str, Value]) -> RecordDict:
    """Return models and plain values as Flower's records."""
    records = RecordDict({_VALUES: ConfigRecord(dict(values))})
    for name, arrays in models.items():
        records[name] = ArrayRecord({key: Array(np.ascontiguousarray(v)) for key, v in arrays.items()})
    return records


def from_records(records: RecordDict) -> tuple[Models, Mapping[str, Value]]:
    """Return the models and the plain values of Flower's records; nothing is unpickled."""
    models = {
        name: {k: a.numpy() for k, a in record.items()} for name, record in records.array_records.items()
    }
    values: Any = dict(records.config_records.get(_VALUES, {}))
    return models, values


def client_app(answer: Callable[[str, Models, Mapping[str, Value], Mapping[str, Any]], Reply]) -> ClientApp:
    """Make a ClientApp that answers flsel's messages.

    Args:
        answer: Gets the action, the models, the values and the node's configuration.
    """
    app = ClientApp()
    for action, kind in _TYPES.items():
        category, name = kind.split(".")
        register = app.train if category == "train" else app.query

        def handle(message: Message, context: Context, action: str = action) -> Message:
            models, values = from_records(message.content)
            reply = answer(action, models, values, dict(context.node_config))
            said = {**reply.values, **({"error": reply.error} if reply.error else {})}
            return Message(to_records(reply.models, said), reply_to=message)

        register(name)(handle)
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
