"""What a round costs: models, numbers and bytes sent, passes over data, local trainings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import final

from flsel.stack import Params, model_bytes


@dataclass(frozen=True)
class Cost:
    """Counts, all >= 0, that are added to a ledger; the columns ``ledger/*`` of ``metrics.csv``.

    Attributes:
        models_down: Models sent to clients.
        models_up: Models, or as much, sent to the server.
        scalars_up: Single numbers sent to the server.
        passes: Passes over one client's data, without training.
        trainings: Local trainings of one client.
        shadow_trainings: Those of them that are not aggregated.
        server_passes: Passes over the server's holdout.
        bytes_down: Bytes of all models sent to clients.
        bytes_up: Bytes of all models sent to the server.
        dropped_updates: Updates that were not finite.
    """

    models_down: int = 0
    models_up: int = 0
    scalars_up: int = 0
    passes: int = 0
    trainings: int = 0
    shadow_trainings: int = 0
    server_passes: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    dropped_updates: int = 0

    def __post_init__(self) -> None:
        negative = [name for name, count in asdict(self).items() if count < 0]
        if negative:
            raise ValueError(f"a cost must not be negative: {', '.join(negative)}")

    def __add__(self, other: Cost) -> Cost:
        ours, theirs = asdict(self), asdict(other)
        return Cost(**{name: count + theirs[name] for name, count in ours.items()})


def models_down(count: int, params: Params) -> Cost:
    """Return the cost of ``count`` models like ``params`` sent to clients."""
    return Cost(models_down=count, bytes_down=count * model_bytes(params))


def models_up(count: int, params: Params) -> Cost:
    """Return the cost of ``count`` models or gradients like ``params`` sent to the server."""
    return Cost(models_up=count, bytes_up=count * model_bytes(params))


def trainings(clients: int, params: Params, *, down: int, up: int) -> Cost:
    """Return the cost of local trainings: ``down`` model-sized messages to each client and ``up`` back."""
    return models_down(clients * down, params) + models_up(clients * up, params) + Cost(trainings=clients)


@final
class Ledger(Mapping[str, int]):
    """The sum of costs, by the names of :class:`Cost`; without those that are zero.

    Args:
        counts: Costs so far, such as another ledger.
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._total = Cost(**dict(counts or {}))

    @property
    def total(self) -> Cost:
        """The sum as a cost."""
        return self._total

    def charge(self, cost: Cost) -> None:
        """Add a cost; the only way to change a ledger."""
        self._total += cost

    def __getitem__(self, name: str) -> int:
        count: int = asdict(self._total)[name]
        return count

    def __iter__(self) -> Iterator[str]:
        return (name for name, count in asdict(self._total).items() if count)

    def __len__(self) -> int:
        return sum(1 for _ in self)
