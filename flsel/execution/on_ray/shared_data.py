"""One copy of a dataset for all jobs of a machine: arrays in Ray's object store, which processes map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flsel.data.population import Examples, Source
from flsel.data.trees import rebuilt, tensors
from flsel.execution.on_ray.shared_tensors import Array, as_array, as_tensor

_PARTS = ("train", "test", "validation")


@dataclass(frozen=True)
class Packed:
    """A dataset whose arrays are NumPy's, which Ray shares without a copy; tensors it would copy per process.

    Attributes:
        arrays: Inputs, targets and groups of each part.
        rest: The dataset without its examples.
    """

    arrays: dict[str, list[Array]]
    rest: Source

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        return sum(values.nbytes for part in self.arrays.values() for values, _ in part)


def pack(source: Source) -> Packed:
    """Turn a dataset into arrays."""
    parts = {name: part for name in _PARTS if (part := getattr(source, name)) is not None}
    arrays = {name: [as_array(t) for t in tensors((p.x, p.y, p.groups))] for name, p in parts.items()}
    # Copies: a view is pickled with all of what it is a view of.
    empty: dict[str, Any] = {
        name: part.changed(lambda values: values[:0].clone()) for name, part in parts.items()
    }
    return Packed(arrays, replace(source, **empty))


def unpack(packed: Packed) -> Source:
    """Turn arrays into a dataset; its tensors are views of them, and nothing in a run writes to them."""

    def filled(name: str) -> Examples:
        empty: Examples = getattr(packed.rest, name)
        tree = (empty.x, empty.y, empty.groups)
        return Examples(*rebuilt(tree, [as_tensor(array) for array in packed.arrays[name]]))

    parts: dict[str, Any] = {name: filled(name) for name in packed.arrays}
    return replace(packed.rest, **parts)
