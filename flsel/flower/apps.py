"""A run as a Flower app: the ServerApp runs the rounds, the ClientApp trains a node's clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.config import RunConfig
from flsel.data.sources import load_source
from flsel.errors import UserError
from flsel.execution.run import execute
from flsel.flower.grid_trainer import GridTrainer
from flsel.flower.node import Node
from flsel.flower.node_log import NodeLog
from flsel.flower.wire import Models, Reply, Value
from flsel.runner.build import build
from flsel.runner.saved_settings import read_config
from flsel.runner.session import Session

if TYPE_CHECKING:
    from flsel.flower.adapter import GridChannel


def answer(
    config: Path,
    action: str,
    models: Models,
    values: Mapping[str, Value],
    node: Mapping[str, Any],
    *,
    own_data: bool = False,
) -> Reply:
    """Answer a request on a node.

    Args:
        config: The run's settings.
        action: What is asked.
        models: The models that the request brings.
        values: Whom it asks about.
        node: The node's configuration: ``partition-id`` and ``num-partitions``.
        own_data: Whether the node's dataset is its client's data.
    """
    try:
        part, parts = (int(node[name]) for name in ("partition-id", "num-partitions"))
    except (KeyError, ValueError):
        return Reply(error="the node needs --node-config 'partition-id=0 num-partitions=3', say")
    try:
        return Node(RunConfig.from_file(config), part, parts, own_data=own_data).answer(
            action, models, values
        )
    except UserError as error:
        return Reply(error=str(error))


def serve(file: Path, channel: GridChannel, settings: Mapping[str, Any], *, own_data: bool = False) -> None:
    """Run all rounds over the nodes of a channel.

    Args:
        file: The run's settings.
        channel: Reaches the nodes.
        settings: The app's configuration: ``nodes``, how many to wait for; ``wait``, how many seconds;
            ``timeout``, the seconds that a node has for an answer; ``resume``, the folder of a stopped run.
        own_data: Whether each node is one client, with data of its own.

    Raises:
        UserError: If nodes are missing, or as :func:`flsel.run`.
    """
    nodes, timeout = int(settings["nodes"]), float(settings["timeout"])
    end = time.monotonic() + float(settings["wait"])
    found = channel.wait_for(nodes, float(settings["wait"]))
    if len(found) < nodes:
        raise UserError(f"{nodes} nodes must be connected, got {len(found)} within {settings['wait']} s.")

    folder = str(settings.get("resume", ""))
    config = read_config(Path(folder)) if folder else RunConfig.from_file(file)
    source = load_source(config.data, clients=config.clients, seed=config.seed)
    natural = 0 if source.owner is None else int(source.owner.max()) + 1
    trainer = GridTrainer(
        channel, config, config.clients or natural, timeout=timeout, wait=max(end - time.monotonic(), 0.0),
        own_data=own_data,
    )  # fmt: skip
    built = build(config, source, trainer, callbacks=(NodeLog(trainer),))
    execute(Session(config, Path(folder), built) if folder else Session.start(config, built))
