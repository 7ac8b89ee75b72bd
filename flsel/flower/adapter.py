"""The server's side of Flower: its grid as a channel, its strategies, and apps made of functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from flsel.errors import short
from flsel.flower.decoder import Malformed
from flsel.flower.records import (
    ANSWER,
    CONFIG,
    MODEL,
    QUIET,
    TYPES,
    ArrayRecord,
    ClientApp,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    from_array_record,
    from_records,
    handles,
    to_array_record,
    to_records,
)
from flsel.flower.wire import Models, Reply, Request, Value

# After flsel.flower.records, which silences flwr before it is imported.
from flwr.serverapp import Grid, ServerApp  # isort: skip
from flwr.serverapp.strategy import FedAvg, Result, Strategy  # isort: skip

__all__ = [
    "QUIET", "ArrayRecord", "ClientApp", "ConfigRecord", "Context", "FedAvg", "Grid", "GridChannel",
    "Message", "MetricRecord", "PatientGrid", "RecordDict", "Result", "Strategy", "client_app",
    "from_array_record", "from_records", "message", "reply", "server_app", "to_array_record", "to_records",
]  # fmt: skip

_POLL_SECONDS = 0.1
_MOST_SAID = 2000  # Characters of a node's error that are looked at.


class GridChannel:
    """Carry requests over a Flower grid.

    Args:
        grid: The grid of a ServerApp.
        names: Names of the model and of the settings in the messages of the app's own trainings.
    """

    def __init__(self, grid: Grid, names: tuple[str, str] = (MODEL, CONFIG)) -> None:
        self._grid, self._names = grid, names

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
        sent = [message(request, timeout, self._names) for request in requests]
        found = _deliver(self._grid, sent, timeout)
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
        self.unread: dict[str, Exception] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies.

        :attr:`seconds` has what each took by the message's id, and :attr:`unread` those that are no messages.
        """
        sent = list(messages)
        found = _deliver(self._grid, sent, min(self._timeout, self._timeout if timeout is None else timeout))
        self.seconds = {
            one.metadata.message_id: seconds
            for one, (_, seconds) in zip(sent, found, strict=True)
            if seconds is not None
        }
        self.unread = {
            one.metadata.message_id: got
            for one, (got, _) in zip(sent, found, strict=True)
            if isinstance(got, Exception)
        }
        return [got for got, _ in found if isinstance(got, Message)]

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


Answer: TypeAlias = Message | Exception
"""A reply, or why Flower could not read it."""


def _deliver(grid: Grid, messages: list[Message], timeout: float) -> list[tuple[Answer | None, float | None]]:
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
    left, got = {name for name in accepted if name}, dict[str, tuple[Answer, float]]()
    while left and time.monotonic() < started + timeout:
        began = time.monotonic()
        got |= {name: (found, time.monotonic() - started) for name, found in _pulled(grid, left).items()}
        left -= got.keys()
        if left:
            time.sleep(max(_POLL_SECONDS, time.monotonic() - began))
    return [got.get(name, (None, timeout)) if name else (None, None) for name in accepted]


def _pulled(grid: Grid, names: set[str]) -> dict[str, Answer]:
    """Return the replies that are there, by the ids of their messages.

    Each is fetched by itself: Flower delivers a reply once, and one that it cannot read would take along all
    those that come with it.
    """
    found: dict[str, Answer] = {}
    for name in sorted(names):
        try:
            for one in grid.pull_messages([name]):
                found[name] = one
        except Exception as error:  # Flower's decoding of what a node sent, which may be anything.
            found[name] = error
    failed = [one for one in found.values() if isinstance(one, Exception)]
    if len(failed) == len(names) > 1:
        raise failed[0]  # It is the connection, not what a node sent.
    return found


def message(request: Request, timeout: float, names: tuple[str, str] = (MODEL, CONFIG)) -> Message:
    """Make a message of a request.

    Every message has a time to live, since Flower tells of a node that died no earlier.

    Args:
        request: The request; a ``train`` becomes what Flower's own strategies send.
        timeout: Seconds to live.
        names: Names of the model and of the settings in the messages of the app's own trainings.
    """
    kind = TYPES.get(request.action, request.action)
    model, config = (MODEL, CONFIG) if request.action in TYPES else names
    models = {model if name == MODEL else name: arrays for name, arrays in request.models.items()}
    return Message(to_records(models, request.values, config), request.node, kind, ttl=timeout)


def reply(got: Answer | None, seconds: float, timeout: float) -> Reply:
    """Return what a node answered.

    Args:
        got: Its message; None if none came.
        seconds: Seconds that it took.
        timeout: Seconds that it had.
    """
    if got is None:
        return Reply(seconds=seconds, error=f"no answer within {timeout:g} s")
    try:
        if isinstance(got, Exception):
            raise got
        if got.has_error():
            reason = str(got.error.reason)[:_MOST_SAID]
            return Reply(seconds=seconds, error=f"Flower error {got.error.code}: {reason}")
        models, values = from_records(got.content)
        said = str(got.content.config_records.get(ANSWER, {}).get("error", ""))[:_MOST_SAID]
    except Malformed as error:
        return Reply(seconds=seconds, error=str(error), malformed=True)
    except Exception as error:  # Flower's types check little of what came over the network.
        why = f"{type(error).__name__}: {short(error, 100)}"
        return Reply(seconds=seconds, error=f"its answer cannot be read ({why})", malformed=True)
    return Reply(models, values, seconds, said)


def client_app(answer: Callable[[str, Models, Mapping[str, Value], Mapping[str, Any]], Reply]) -> ClientApp:
    """Make a ClientApp that answers flsel's messages.

    Args:
        answer: Gets the action, the models, the values and the node's configuration.
    """
    app = ClientApp()
    for action in TYPES:

        def handle(asked: Message, context: Context, action: str = action) -> Message:
            models, values = from_records(asked.content, CONFIG)
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
