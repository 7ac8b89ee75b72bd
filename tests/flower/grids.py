"""Flower's messages without processes: a grid that calls ClientApps directly; imports flwr."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[Message, Message], Message | None]


class LocalGrid(Grid):
    """Calls a ClientApp for each message; a message may be refused, answered late, wrongly or never.

    Attributes:
        apps: The ClientApp and the configuration of each node.
        refused: Nodes whose messages Flower refuses.
        dead: Nodes whose messages come back from the SuperLink.
        silent: Nodes that never answer.
        fault: Changes a reply, or loses it.
        sent: Every message, in order.
    """

    def __init__(self, apps: Mapping[int, tuple[ClientApp, Mapping[str, Any]]]) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.apps = dict(apps)
        self.refused, self.dead, self.silent = set[int](), set[int](), set[int]()
        self.fault: Fault | None = None
        self.sent = list[Message]()
        self._waiting: dict[str, Message] = {}

    @property
    def run(self) -> Any: ...
    def set_run(self, run: Any) -> None: ...
    def create_message(self, *given: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        """As Flower's own: refused messages are left out, and replies come in another order."""
        ids = [name for name in self.push_messages(list(messages)) if name]
        return list(self.pull_messages(ids))[::-1]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)[::-1]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._waiting[name] for name in message_ids if name in self._waiting]

    def _push(self, message: Message) -> Any:
        name, node = f"m{len(self.sent)}", message.metadata.dst_node_id
        self.sent.append(message)
        message.metadata.__dict__["_message_id"] = name
        if node in self.refused or node not in self.apps:
            return None
        if node in self.dead:
            self._waiting[name] = Message(Error(3, "Message Unavailable"), reply_to=message)
        elif node not in self.silent:
            app, config = self.apps[node]
            try:
                reply: Message | None = app(message, Context(1, node, dict(config), RecordDict(), {}))
            except Exception as error:  # as the SuperNode does
                reply = Message(Error(2, f"{type(error)}:<{error!r}>"), reply_to=message)
            assert reply is not None
            if self.fault is not None:
                reply = self.fault(message, reply)
            if reply is not None:
                self._waiting[name] = reply
        return name

    def asked(self, kind: str) -> list[int]:
        """Nodes that got messages of a type, in order."""
        return [m.metadata.dst_node_id for m in self.sent if m.metadata.message_type == kind]
