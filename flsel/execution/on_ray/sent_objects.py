"""Objects that settings only name, sent along to the processes of Ray, which could not import them.

These are classes and functions of a notebook or a script, and models and datasets that were given as objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any

from flsel.config import model_object
from flsel.data.dataset_object import GivenDataset, known
from flsel.data.population import Source
from flsel.execution.on_ray.actor import Begin, ReportingJob

_MAIN = "__main__"


@dataclass
class _Objects:
    """What is sent.

    Attributes:
        own: Classes and functions of ``__main__``, by name.
        models: As :func:`flsel.config.model_object.named_in` returns them.
        datasets: Names that hold their examples.
    """

    own: dict[str, Any] = field(default_factory=dict)
    models: dict[str, Callable[..., Any]] = field(default_factory=dict)
    datasets: list[GivenDataset] = field(default_factory=list)


def with_objects(begin: Begin, settings: Sequence[Mapping[str, Any]], *, shared_data: bool) -> Begin:
    """Have jobs begin with the objects that their settings name.

    Args:
        begin: Begins a job.
        settings: Settings of jobs as plain values, or what else names classes, such as a search space.
        shared_data: Whether the jobs get their dataset in another way.
    """
    objects = _Objects()
    for text in dict.fromkeys(_texts(settings)):
        name = text.split(".")[1] if text.startswith(f"{_MAIN}.") else ""
        if hasattr(sys.modules[_MAIN], name):
            objects.own[name] = getattr(sys.modules[_MAIN], name)
        dataset = known(text)
        if isinstance(dataset, GivenDataset) and not shared_data:
            objects.datasets.append(dataset)
    for each in settings:
        objects.models |= model_object.named_in(each)
    return begin if objects == _Objects() else partial(_begin, begin, objects)


def _begin(
    begin: Begin, sent: _Objects, number: int, settings: dict[str, Any], source: Source | None
) -> ReportingJob:
    for name, value in sent.own.items():
        _mend(value)
        setattr(sys.modules[_MAIN], name, value)
    model_object.receive(sent.models)
    return begin(number, settings, source)


def _mend(value: Any) -> None:
    """Give a dataclass back the one object that stands for no default, of which pickle makes copies."""
    for each in fields(value) if is_dataclass(value) else ():
        for part in ("default", "default_factory"):
            if isinstance(getattr(each, part), type(MISSING)):
                setattr(each, part, MISSING)


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in nested plain values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
