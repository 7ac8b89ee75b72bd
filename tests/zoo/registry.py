"""What the zoo's parts are, and where they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

WIDTH, INPUTS, CLASSES = 8, 12, 4
IMAGE = (4, 2, 3)
"""Channels, height and width of what passes through an image part."""


class Part(NamedTuple):
    """One idiom.

    Attributes:
        kind: Its family.
        place: ``layer`` maps ``[B, WIDTH]`` to the same, ``image`` maps ``[B, *IMAGE]``, ``input`` maps
            ``[B, INPUTS]``; ``loss`` maps (module, x, y) to a scalar; ``change`` writes to a network that
            was just made.
        made: Its class or function.
    """

    kind: str
    place: str
    made: Callable[..., Any]

    @property
    def name(self) -> str:
        """Name of the class or the function."""
        return self.made.__name__


PARTS: dict[str, Part] = {}


def part(kind: str, place: str = "layer") -> Callable[[Any], Any]:
    """Add a class or a function to the zoo."""

    def added(made: Any) -> Any:
        assert made.__name__ not in PARTS
        PARTS[made.__name__] = Part(kind, place, made)
        return made

    return added


class Around(nn.Module):
    """A layer of its own whose output is what a part changes."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
