"""A node's side: it builds the run's program from the same settings and trains its own clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch

import flsel
from flsel.config import RunConfig
from flsel.config.fingerprint import fingerprint
from flsel.data.federate import labels_of
from flsel.data.population import Population, Source
from flsel.data.sources import load_source
from flsel.errors import UserError, short
from flsel.flower.model_arrays import to_arrays, to_params
from flsel.flower.wire import Models, Reply, Value
from flsel.local.program import Program
from flsel.local.sequential import SequentialTrainer
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.params import Params
from flsel.partition import IID
from flsel.runner.build import build
from flsel.selectors import Uniform


def clients_of(partition: int, partitions: int, clients: int) -> list[int]:
    """Return the clients that live on one of several nodes: those with ids p, p + P, p + 2 P and so on."""
    return list(range(partition, clients, partitions))


class Node:
    """One node of a federation.

    Args:
        config: The run's settings, equal to the server's.
        partition: Number of this node, from 0.
        partitions: Number of nodes.
        own_data: The node is the client of its number, and what its dataset has for training is that
            client's data; else it deals the dataset as every node does, and trains its part of the clients.
    """

    def __init__(self, config: RunConfig, partition: int, partitions: int, *, own_data: bool = False) -> None:
        self._fingerprint = fingerprint(config.to_dict())
        self._config, self._place, self._own_data = config, (partition, partitions), own_data

    def answer(self, action: str, models: Models, values: Mapping[str, Value]) -> Reply:
        """Answer a request; what is wrong with it is in the reply's error."""
        try:
            self._check(values)
            if action == "hello":
                return self._hello()
            return self._asked(action, models, values)
        except UserError as error:
            return Reply(error=str(error))
        except Exception as error:  # The user's code may raise anything; the server is told in one sentence.
            return Reply(error=f"{type(error).__name__}: {short(error)}")

    def _check(self, values: Mapping[str, Value]) -> None:
        if values.get("version") != flsel.__version__:
            raise UserError(
                f"the node must have flsel {values.get('version')} like the server, got {flsel.__version__}."
            )
        if values.get("fingerprint") != self._fingerprint:
            raise UserError("the node must have the server's settings, got others: deploy the app again.")

    def _hello(self) -> Reply:
        part, parts = self._place
        said: dict[str, Value] = {"partition": part, "partitions": parts}
        if self._own_data:
            source = load_source(self._config.data, clients=1, seed=self._config.seed)
            said["labels"] = np.bincount(labels_of(source.train)).tolist()
        return Reply(values=said)

    def _asked(self, action: str, models: Models, values: Mapping[str, Value]) -> Reply:
        program = self._program()
        own = set(clients_of(*self._place, len(program.population)))
        clients, rounds, starts = (_numbers(values, name) for name in ("clients", "rounds", "starts"))
        if not own.issuperset(clients):
            raise UserError(f"the node has the clients {sorted(own)[:20]}, and was asked for {clients[:20]}.")
        like = program.state()
        sent = [to_params(models[f"start{number}"], like) for number in range(len(models))]
        visits = [
            Visit(sent[start], client, round, program)
            for client, round, start in zip(clients, rounds, starts, strict=True)
        ]
        trainer = SequentialTrainer()
        if action in ("losses", "squared"):
            found = trainer.losses(visits) if action == "losses" else trainer.squared_losses(visits)
            return Reply({"answer": {"loss": found.numpy()}})
        ends = trainer.train(visits) if action == "visits" else trainer.gradients(visits)
        return Reply({"answer": to_arrays(ends)})

    def _program(self) -> Program:
        if not self._own_data:
            return build(self._config).program
        config = self._config
        source = load_source(config.data, clients=1, seed=config.seed)
        # The rules of the server's rounds do not matter here, and its holdouts are the server's.
        alone = replace(
            config,
            clients=1,
            clients_per_round=1,
            selector=Uniform(),
            partition=IID(),
            data=replace(config.data, server=0.0, validation=0.0),
        )
        return build(alone, source, _OwnData(source, self._place[0], self._place[1])).program


@final
class _OwnData(LocalTrainer):
    """Says that all training examples of a dataset are one client's.

    Args:
        source: The dataset.
        client: The client.
        clients: Number of clients (N).
    """

    def __init__(self, source: Source, client: int, clients: int) -> None:
        self._source, self._client, self._clients = source, client, clients

    def population(self, known: Population) -> Population:
        """Return a population in which all other clients have no examples."""
        every, none = torch.arange(len(self._source.train)), torch.zeros(0, dtype=torch.int64)
        shards = tuple(every if client == self._client else none for client in range(self._clients))
        return replace(known, **vars(self._source.train), shards=shards, true_models=None)

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return SequentialTrainer().train(visits)


def _numbers(values: Mapping[str, Value], name: str) -> Sequence[int]:
    found = values.get(name)
    if not isinstance(found, list):
        raise UserError(f"{name} of a request must be a list of whole numbers, got {short(found)}.")
    return [int(number) for number in found]
