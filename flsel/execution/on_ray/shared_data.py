"""One copy of a dataset for all jobs of a machine: arrays in Ray's object store, which processes map."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flsel.data.population import Examples, Source
from flsel.execution.on_ray.shared_tensors import Array, as_array, as_tensor

Arrays = tuple[Array, Array]


@dataclass(frozen=True)
class Packed:
    """A dataset whose arrays are NumPy's, which Ray shares without a copy; tensors it would copy per process.

    Attributes:
        train: Inputs and labels.
        test: Inputs and labels, or None.
        validation: Inputs and labels, or None.
        rest: The dataset without its examples.
    """

    train: Arrays
    test: Arrays | None
    validation: Arrays | None
    rest: Source

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        parts = (part for part in (self.train, self.test, self.validation) if part is not None)
        return sum(values.nbytes for part in parts for values, _ in part)


def pack(source: Source) -> Packed:
    """Turn a dataset into arrays."""
    # Copies: a view is pickled with all of what it is a view of.
    empty = Examples(source.train.x[:0].clone(), source.train.y[:0].clone())
    return Packed(
        _arrays(source.train),
        None if source.test is None else _arrays(source.test),
        None if source.validation is None else _arrays(source.validation),
        replace(source, train=empty, test=None, validation=None),
    )


def unpack(packed: Packed) -> Source:
    """Turn arrays into a dataset; its tensors are views of them, and nothing in a run writes to them."""
    return replace(
        packed.rest,
        train=_examples(packed.train),
        test=None if packed.test is None else _examples(packed.test),
        validation=None if packed.validation is None else _examples(packed.validation),
    )


def _arrays(examples: Examples) -> Arrays:
    return as_array(examples.x), as_array(examples.y)


def _examples(arrays: Arrays) -> Examples:
    return Examples(*map(as_tensor, arrays))
