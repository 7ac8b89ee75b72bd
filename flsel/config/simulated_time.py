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
    """What a round waits for on simulated devices; without ``devices`` nothing here may be set.

    Attributes:
        over_selection: Factor on the clients that are asked; the first clients to finish, as many as
            ``clients_per_round`` says, are aggregated. Only for plans of one hop.
        deadline: Simulated seconds after which a hop is closed, or null. Where no client is in time, the
            round waits for the first one.
        late: How a path that misses a deadline counts: ``drop``, not at all; ``rest``, with the model that it
            had before the late client.
        relay: A model goes from client to client; otherwise all paths wait for each other after each hop.
            Plans of one hop, which all selectors but FedCat make, are the same with it.
        overhead: Simulated seconds that each communication round takes besides its clients.
        backward: Duration of a backward pass in forward passes; training on an example takes both.
        server_pass: Simulated seconds of a pass over the server's holdout.
        stop_after_seconds: Simulated seconds after which the run ends, or null.

    Raises:
        UserError: If a value is out of range.
    """

    over_selection: Annotated[float, Range(1, 100)] = 1.0
    deadline: Annotated[float | None, Range(above=0)] = None
    late: Literal["drop", "rest"] = "drop"
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

    A round is then a step of the server, which takes place whenever enough updates have arrived.

    Attributes:
        concurrency: Clients that train at any time (C), at least the buffer; null trains in synchronous
            rounds, and nothing else here may be set.
        buffer: Updates that the server waits for before each step (K); null takes ``clients_per_round``.
        refill: When a free slot gets a client: at each ``arrival``, or all free slots after each ``step`` of
            the server.
        staleness: Weight s of an update that is t steps late: ``constant`` 1, ``polynomial``
            (1 + t)^-``exponent``, or ``hinge``: 1 up to ``knee``, then 1 / (``slope`` (t - ``knee``) + 1).
        exponent: Exponent of ``polynomial`` (a).
        slope: Slope of ``hinge`` (a).
        knee: Staleness up to which ``hinge`` weighs 1 (b).
        bound: Largest staleness of an update that is aggregated; null aggregates all.
        division: How the selector's weights times s are scaled: ``buffer`` leaves them, so that stale updates
            make a smaller step; ``weights`` scales them up to their sum without s, so that it is not smaller.
        mixing: ``updates`` adds what clients changed (FedBuff); ``models`` moves towards their models
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
