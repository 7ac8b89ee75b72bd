"""One claim of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["resolved", "open", "exploratory"]


@dataclass(frozen=True)
class Verdict:
    """One claim.

    Attributes:
        kind: ``resolved`` if the claim is significant or decided, corrected for all comparisons of its
            family; ``exploratory`` if the data can carry no claim; else ``open``.
        text: The sentence.
        label: One or two words of it, such as "Significant".
    """

    kind: Kind
    text: str
    label: str
