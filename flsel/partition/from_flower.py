"""The partitioners of flwr-datasets, an optional package."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from flsel.errors import UserError, meant, users_code
from flsel.partition.base import Partition


@final
@dataclass(frozen=True)
class FromFlower(Partition):
    """Let a partitioner of flwr-datasets deal the examples (``pip install "flsel[flower-datasets]"``).

    The number of clients, the labels and a seed drawn from the run's are filled in where the partitioner
    takes them.

    Attributes:
        partitioner: Its class, such as DirichletPartitioner.
        arguments: Its further arguments, such as ``{alpha: 0.3}``.
    """

    after_holdouts = True
    partitioner: str = "DirichletPartitioner"
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def reads_labels(self) -> bool:  # type: ignore[override]
        """Whether the partitioner reads a column, which is that of labels."""
        return "partition_by" in inspect.signature(_class_of(self.partitioner)).parameters

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Deal the examples as the partitioner does.

        Raises:
            UserError: If flwr-datasets is absent, has no such partitioner, or this one cannot deal them.
        """
        made, where = _class_of(self.partitioner), f"partition.partitioner {self.partitioner}"
        takes = inspect.signature(made).parameters
        filled = {"num_partitions": clients, "partition_by": "label", "seed": int(rng.integers(2**31))}
        given = {name: value for name, value in filled.items() if name in takes} | self.arguments
        from datasets import Dataset, disable_progress_bars

        disable_progress_bars()
        with users_code(f"{where} cannot deal the examples"):
            dealer = made(**given)
            dealer.dataset = Dataset.from_dict({"label": labels, "index": np.arange(len(labels))})
            if dealer.num_partitions != clients:
                raise UserError(f"{where} makes {dealer.num_partitions} clients: clients must be as many.")
            return [np.asarray(dealer.load_partition(k)["index"], dtype=np.int64) for k in range(clients)]


def _class_of(name: str) -> Any:
    try:
        from flwr_datasets import partitioner
    except ImportError as error:
        raise UserError(
            f"partition FromFlower needs the package flwr-datasets ({error}): "
            'pip install "flsel[flower-datasets]".'
        ) from None
    known = sorted({*partitioner.__all__} - {"Partitioner"})
    if name not in known:
        raise UserError(
            f"partition.partitioner must be a class of flwr_datasets.partitioner, got {name}"
            f"{meant(name, known)}"
        )
    return getattr(partitioner, name)
