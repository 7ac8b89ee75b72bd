"""The files of a Flower app that runs a config."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import yaml

import flsel
from flsel.config import RunConfig
from flsel.data.sources import load_source
from flsel.errors import UserError, users_code
from flsel.files import write_atomic
from flsel.flower.grid_trainer import check_deployable
from flsel.partition import IID
from flsel.runner.build import build, check_selector

_LOG = logging.getLogger("flsel")

_PROJECT = """\
# A Flower app made by flsel deploy. Start it with: flwr run . CONNECTION
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "flsel-app"
version = "1.0.0"
description = "A run of flsel over the nodes of a Flower federation"
license = "Apache-2.0"
dependencies = ["flsel[flower]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "flsel"

[tool.flwr.app.components]
serverapp = "flsel_app.server:app"
clientapp = "flsel_app.client:app"

[tool.flwr.app.config]
nodes = {nodes}
wait = {wait}
timeout = {timeout}
resume = ""
"""
_SERVER = '''\
"""The server of this federation: it runs the rounds."""

from functools import partial
from pathlib import Path

from flsel.flower.adapter import server_app
from flsel.flower.apps import serve

app = server_app(partial(serve, Path(__file__).with_name("config.yaml"), own_data={own_data}))
'''
_CLIENT = '''\
"""A node of this federation: it trains its own clients."""

from functools import partial
from pathlib import Path

from flsel.flower.adapter import client_app
from flsel.flower.apps import answer

app = client_app(partial(answer, Path(__file__).with_name("config.yaml"), own_data={own_data}))
'''


def _check_start(config: RunConfig, nodes: int) -> None:
    """Refuse what the run would refuse when it starts, if its data can be read here.

    Raises:
        UserError: If something in the settings does not fit, or there are more nodes than clients.
    """
    try:
        source = load_source(config.data, clients=config.clients, seed=config.seed)
    except UserError as error:
        _LOG.warning("settings that depend on the data are checked when the run starts: %s", error)
        return
    local = replace(config.local, backend="sequential", workers=1)
    clients = len(build(replace(config, accelerator="cpu", device=0, local=local), source).data.population)
    if nodes > clients:
        raise UserError(f"nodes must be at most the number of clients ({clients}), got {nodes}.")


def write_app(
    config: RunConfig, folder: Path, *, nodes: int, timeout: float, wait: float, own_data: bool = False
) -> None:
    """Write a Flower app that runs a config.

    Args:
        config: The settings; ``output.dir`` is written as an absolute path.
        folder: A folder that does not exist, or is empty.
        nodes: Nodes to wait for.
        timeout: Seconds that a node has for an answer.
        wait: Seconds to wait for the nodes.
        own_data: Each node is one client, whose data are what its own dataset has for training.

    Raises:
        UserError: If the folder has something in it, or the settings cannot be deployed.
    """
    if own_data and config.data.name == "synthetic":
        raise UserError(
            "data.name must be a dataset that each node has of its own with --own-data, got synthetic, which "
            "all nodes would generate alike."
        )
    if own_data:
        # The clients have their own data; the server's dataset is split only for its holdouts.
        config = replace(config, clients=nodes, partition=IID())
    check_deployable(config, own_data=own_data)
    with users_code("the app cannot be written"):
        check_selector(config)
    _check_start(config, nodes)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"app must be a folder that does not exist or is empty, got {folder}.")
    described = config.to_dict()
    described["output"] = described["output"] | {"dir": str(Path(config.output.dir).absolute())}
    package = folder / "flsel_app"
    package.mkdir(parents=True)
    project = _PROJECT.format(
        version=flsel.__version__, nodes=nodes, wait=json.dumps(wait), timeout=json.dumps(timeout)
    )
    for path, text in (
        (package / "__init__.py", '"""A run of flsel as a Flower app."""\n'),
        (package / "server.py", _SERVER.format(own_data=own_data)),
        (package / "client.py", _CLIENT.format(own_data=own_data)),
        (package / "config.yaml", yaml.safe_dump(described, sort_keys=False)),
        (folder / "pyproject.toml", project),
    ):
        write_atomic(path, text)
