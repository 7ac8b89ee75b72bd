"""A node's side: it builds the run's program from the same settings and trains its own clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import flsel
from flsel.config import RunConfig
from flsel.config.describe import describe, fingerprint
from flsel.errors import UserError, short
from flsel.flower.wire import Models, Reply, Value, to_arrays, to_params
from flsel.local.sequential import SequentialTrainer
from flsel.local.visit import Visit
from flsel.runner.build import build


def clients_of(partition: int, partitions: int, clients: int) -> list[int]:
    """Return the clients that live on one of several nodes: those with ids p, p + P, p + 2 P and so on."""
    return list(range(partition, clients, partitions))


class Node:
    """One node of a federation.

    Args:
        config: The run's settings, equal to the server's.
        partition: Number of this node, from 0.
        partitions: Number of nodes.
    """

    def __init__(self, config: RunConfig, partition: int, partitions: int) -> None:
        self._fingerprint = fingerprint(describe(config))
        self._config, self._place = config, (partition, partitions)

    def answer(self, action: str, models: Models, values: Mapping[str, Value]) -> Reply:
        """Answer a request; what is wrong with it is in the reply's error."""
        try:
            self._check(values)
            if action == "hello":
                return Reply(values={"partition": self._place[0], "partitions": self._place[1]})
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

    def _asked(self, action: str, models: Models, values: Mapping[str, Value]) -> Reply:
        built = build(self._config)
        program = built.program
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
        if action == "losses":
            return Reply({"answer": {"loss": trainer.losses(visits).numpy()}})
        found = trainer.train(visits) if action == "visits" else trainer.gradients(visits)
        return Reply({"answer": to_arrays(found)})


def _numbers(values: Mapping[str, Value], name: str) -> Sequence[int]:
    found = values.get(name)
    if not isinstance(found, list):
        raise UserError(f"{name} of a request must be a list of whole numbers, got {short(found)}.")
    return [int(number) for number in found]
