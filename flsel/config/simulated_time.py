"""Settings of simulated time: what a round waits for, and rounds that aggregate updates as they arrive."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import torch
from torch import Tensor

from flsel.arguments import Range, check_settings, shown
from flsel.errors import UserError


@dataclass(frozen=True)
class TimeConfig:
    """What a round waits for on simulated devices. These settings need ``devices``.

    Attributes:
        over_selection: Factor on the number of clients that are asked. The first ``clients_per_round`` to
            finish are aggregated. Only for plans of one hop.
        deadline: Simulated seconds after which a hop ends, or null. If no client finishes in time, the round
            waits for the first one.
        late: What a path that misses the deadline contributes: ``drop``, nothing; ``rest``, the model that it
            had before the late client; ``partial``, the steps that the client has done by the deadline. The
            client then stops early enough to send its model. Only for plans of one hop.
        relay: Whether a model goes from client to client without waiting for the other paths after each hop.
            It matters only for plans of several hops (FedCat).
        overhead: Simulated seconds of each communication round in addition to its clients.
        backward: Duration of a backward pass, in forward passes. Training on an example takes one of each.
        server_pass: Simulated seconds of a pass over the server's holdout.
        stop_after_seconds: Simulated seconds after which the run ends, or null.

    Raises:
        UserError: If a value is out of range.
    """

    over_selection: Annotated[float, Range(1, 100)] = 1.0
    deadline: Annotated[float | None, Range(above=0)] = None
    late: Literal["drop", "rest", "partial"] = "drop"
    relay: bool = False
    overhead: Annotated[float, Range(0)] = 0.0
    backward: Annotated[float, Range(0)] = 2.0
    server_pass: Annotated[float, Range(0)] = 0.0
    stop_after_seconds: Annotated[float | None, Range(above=0)] = None

    def __post_init__(self) -> None:
        check_settings(self, "time.")
        if self.late != "drop" and self.deadline is None:
            raise UserError(
                f"time.late must be drop without time.deadline, got {self.late}: set the deadline that late "
                "paths miss."
            )

    def asked(self, wanted: int, clients: int) -> int:
        """Return how many clients are asked for so many updates, out of so many clients."""
        return min(clients, max(wanted, math.floor(self.over_selection * wanted + 1e-9)))

    def require_devices(self) -> None:
        """Refuse settings that say nothing without devices.

        Raises:
            UserError: Naming the first.
        """
        names = [field.name for field in fields(self)]
        _require_defaults(
            self,
            names,
            "time.{} must be {} without devices, got {}: set devices, for example --devices LogNormal.",
        )


@dataclass(frozen=True)
class AsyncConfig:
    """Whether and how the server aggregates updates as they arrive, on simulated devices.

    A round is then a step of the server. The server takes a step when enough updates have arrived.

    Attributes:
        concurrency: Clients that train at any time (C), at least the buffer; null means synchronous rounds,
            and then the other settings of this group must not be set.
        buffer: Updates that the server waits for before each step (K); null takes ``clients_per_round``.
        refill: When free slots get clients: at each ``arrival``, or all of them after each ``step`` of the
            server.
        staleness: Weight s of an update that starts t server steps earlier: ``constant`` 1, ``polynomial``
            (1 + t)^-``exponent``, or ``hinge``: 1 up to ``knee``, then 1 / (``slope`` (t - ``knee``) + 1).
        exponent: Exponent of ``polynomial`` (a).
        slope: Slope of ``hinge`` (a).
        knee: Staleness up to which ``hinge`` weighs 1 (b).
        bound: Largest staleness of an update that is aggregated; null aggregates all.
        division: How the selector's weights times s are scaled: ``buffer`` keeps them, so that stale updates
            make the step smaller; ``weights`` scales them up to their sum without s, so that the step keeps
            its size.
        mixing: ``updates`` adds the clients' updates (FedBuff); ``models`` moves towards their models
            (FedAsync, whose mixing rate is the server optimizer's learning rate).

    Raises:
        UserError: If a value is out of range, or set though ``concurrency`` is null.
    """

    concurrency: Annotated[int | None, Range(1)] = None
    buffer: Annotated[int | None, Range(1)] = None
    refill: Literal["arrival", "step"] = "arrival"
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    exponent: Annotated[float, Range(0)] = 0.5
    slope: Annotated[float, Range(0)] = 10.0
    knee: Annotated[int, Range(0)] = 4
    bound: Annotated[int | None, Range(0)] = None
    division: Literal["buffer", "weights"] = "buffer"
    mixing: Literal["updates", "models"] = "updates"

    def __post_init__(self) -> None:
        check_settings(self, "asynchronous.")
        if self.concurrency is None:
            names = [field.name for field in fields(self)]
            _require_defaults(
                self, names, "asynchronous.{} must be {} without asynchronous.concurrency, got {}."
            )

    def updates(self, clients_per_round: int) -> int:
        """Return how many updates the server waits for before each step."""
        return clients_per_round if self.buffer is None else self.buffer

    def check_fits(self, clients_per_round: int, clients: int | None, time: TimeConfig) -> None:
        """Refuse a buffer that never fills, more flights than clients, and rules of synchronous rounds.

        Raises:
            UserError: Naming the setting.
        """
        if self.concurrency is None:
            return
        buffer = self.updates(clients_per_round)
        if buffer > self.concurrency:
            name = "clients_per_round" if self.buffer is None else "asynchronous.buffer"
            raise UserError(
                f"{name} must be at most asynchronous.concurrency, got {shown(buffer)} of "
                f"{shown(self.concurrency)}: set asynchronous.buffer to the updates per server step."
            )
        if clients is not None and self.concurrency > clients:
            raise UserError(
                "asynchronous.concurrency must be at most the number of clients, got "
                f"{shown(self.concurrency)} of {shown(clients)}: a client trains one model at a time."
            )
        _require_defaults(
            time,
            ("over_selection", "deadline", "late", "relay"),
            "time.{} must be {} with asynchronous.concurrency, got {}: it is a rule of synchronous rounds.",
        )

    def weight(self, staleness: Tensor) -> Tensor:
        """Return the staleness weights s, float64 ``[K]`` in [0, 1].

        Args:
            staleness: Server steps since each update's start, int64 ``[K]``.
        """
        late = staleness.double()
        if self.staleness == "polynomial":
            return (1 + late) ** -self.exponent
        if self.staleness == "hinge":
            return 1 / (self.slope * (late - self.knee).clamp(min=0) + 1)
        return torch.ones_like(late)


def _require_defaults(settings: TimeConfig | AsyncConfig, names: Collection[str], said: str) -> None:
    """Refuse the first of some settings that is not at its default: ``said`` of name, default and value."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in names and value != field.default:
            raise UserError(said.format(field.name, shown(field.default), shown(value)))
