"""What a round over remote clients is made of: its rules, its trainings, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flsel.engine.closing import Closing
from flsel.flower.aggregation import Layer, MakeOptimizer
from flsel.flower.remote_answers import RemoteClients
from flsel.flower.remote_model import Holdout
from flsel.metrics import Ledger
from flsel.params import Params
from flsel.selector import Plan, View


@dataclass(frozen=True)
class Rules:
    """What a federation is told once.

    Attributes:
        clients_per_round: Most paths per round (K).
        seed: Seed of the selector's draws.
        timeout: Seconds that a client has for an answer.
        num_classes: C; None takes the rows of the output layer.
        output_layer: Names of the output layer's weight and bias; None takes the last matrix.
        holdout: What the server can measure.
        optimizer: Makes the server optimizer; None adds the weighted updates.
        weighted_by: Metric of a training that has the client's number of examples.
    """

    clients_per_round: int
    seed: int
    timeout: float
    num_classes: int | None
    output_layer: Layer | None
    holdout: Holdout
    optimizer: MakeOptimizer | None
    weighted_by: str = "num-examples"


@dataclass(frozen=True)
class Training:
    """One client's training in a hop.

    Attributes:
        client: The client.
        paths: Positions in the plan of the paths whose model it trains.
        arrays: The model that it receives.
    """

    client: int
    paths: tuple[int, ...]
    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RoundSummary:
    """What a round did.

    Attributes:
        arrays: The new global model; None where no update came.
        clients: Clients whose updates were aggregated, and their weights.
        lost: Clients that gave no answer.
        dropped: Clients at the end of a path whose model was not finite.
        metrics: The clients' own metrics, averaged by the weights.
        ledger: What the round cost.
        seconds: Wall time of the round.
    """

    arrays: Mapping[str, np.ndarray] | None
    clients: dict[int, float]
    lost: list[int]
    dropped: list[int]
    metrics: dict[str, float]
    ledger: Ledger
    seconds: float


@dataclass
class Open:
    """A plan on its way."""

    view: View
    who: RemoteClients
    closing: Closing
    plan: Plan
    at: Params
    began: float
    hop: int = 0
    seconds: list[float] = field(default_factory=list)
    lost: dict[int, float] = field(default_factory=dict)
    malformed: dict[int, str] = field(default_factory=dict)
    firsts: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    lasts: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    trainings: list[Training] = field(default_factory=list)
