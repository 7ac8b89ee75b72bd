"""Datasets that were given from Python as objects: they are read once, and named by what they hold."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from flsel.arguments import shown
from flsel.errors import UserError

if TYPE_CHECKING:
    from flsel.data.materialise import Reading
    from flsel.data.population import Examples, Source

HOME = "flsel.data.given"
"""What the names of such datasets begin with, in files too."""
_READ: WeakValueDictionary[str, Source] = WeakValueDictionary()


class GivenDataset(str):
    """The name of a dataset object, as ``config.yaml`` holds it; while it lives, the examples do.

    Attributes:
        source: What was read.
    """

    source: Source

    def __new__(cls, name: str, source: Source) -> GivenDataset:
        """Name a source; the first of several of one name is kept."""
        made = super().__new__(cls, name)
        made.source = _READ.setdefault(name, source)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return GivenDataset, (str(self), self.source)

    def __deepcopy__(self, memo: object) -> GivenDataset:
        return self


def given(
    dataset: Any, *, download: bool, init_args: Mapping[str, Any], reading: Reading | None = None
) -> GivenDataset:
    """Read a dataset object.

    Args:
        dataset: What a callable of ``data.name`` may return: see :func:`flsel.data.custom.load_custom`.
        download: Whether a LightningDataModule is to prepare its data first.
        init_args: Must be empty.
        reading: Which entries of examples are used; None takes all.

    Returns:
        Its name: the object's class, and a hash of the examples.

    Raises:
        UserError: If it is no dataset.
    """
    from flsel.data.custom import RULE, load_object
    from flsel.data.materialise import ALL, MAP_STYLE

    if init_args:
        raise UserError("data.init_args must be empty ({}) for a dataset that is given as an object.")
    kind = type(dataset[0] if isinstance(dataset, tuple | list) and dataset else dataset).__name__
    try:
        source = load_object(dataset, kind, download=download, reading=reading or ALL)
    except UserError as error:
        if not any(rule in str(error) for rule in (RULE, MAP_STYLE)):  # a dataset with something wrong
            raise
        said = str(error).removeprefix("data.name ")
        raise UserError(
            f"data.name must be a name, an import path or a dataset, got {shown(dataset)}: {said}"
        ) from error.__cause__
    name = f"{re.sub(r'[^A-Za-z0-9_]', '', kind)}_{_digest(source)[:12]}"
    return GivenDataset(f"{HOME}.{name}", replace(source, name=name))


def known(name: str) -> str:
    """Return a name; one of a dataset that lives in this process keeps it alive."""
    source = _READ.get(name)
    return name if source is None else GivenDataset(name, source)


def read_given(name: str) -> Source:
    """Return the examples of a dataset that was given as an object.

    Raises:
        UserError: If the object is not in this process.
    """
    source = _READ.get(name)
    if source is None:
        raise UserError(
            f"data.name {name.removeprefix(f'{HOME}.')} was given as an object from Python, and no file "
            "holds its examples: repeat the run from Python, or give a function that can be imported."
        )
    return source


def _digest(source: Source) -> str:
    """Hash what a dataset holds."""
    from flsel.data.trees import PAIR

    seen = [source.num_classes, source.normalize.scale.tolist(), source.normalize.shift.tolist()]
    if source.form != PAIR:
        seen.append(str(source.form))
    digest = hashlib.sha256(str(seen).encode())
    for part in (source.train, source.validation, source.test):
        digest.update(b"-" if part is None else _bytes(part))
    for owner in (source.owner, source.test_owner):
        if owner is not None:
            digest.update(owner.tobytes())
    return digest.hexdigest()


def _bytes(part: Examples) -> bytes:
    from flsel.data.trees import leaves

    inner = hashlib.sha256()
    for _, tensor in leaves((part.x, part.y, part.groups)):
        if hasattr(tensor, "read"):
            inner.update(repr(tensor).encode())
            continue
        array = tensor.contiguous().numpy()
        inner.update(f"{array.dtype} {array.shape}".encode())
        inner.update(array.data if array.size else b"")
    return inner.digest()
