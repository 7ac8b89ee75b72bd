"""One chart of the page as a Vega-Lite specification, and the encodings that all charts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flsel.report.style import GREY_LINE, Style

Spec = dict[str, Any]
# The script puts the chosen cost and measure, and what the rows say they are, in the place of these.
COST, MEASURE, FORMAT, WHAT, SHARE = "$cost", "$measure", "$format", "$what", "$share"
MOST_IN_PANEL = 8
"""More variants than a reader tells apart in one panel are drawn in several, the baseline in each."""
JOINS: Spec = {"strokeJoin": "round"}
"""Corners of lines: a mitre would point far beyond the value of a spike."""
RULE = {"type": "rule", "strokeDash": [4, 3], "color": GREY_LINE}


@dataclass(frozen=True)
class Chart:
    """One figure of the page.

    Attributes:
        name: Its name in the page, and that of its rows.
        title: Heading.
        about: How to read it, one or two sentences.
        spec: Vega-Lite specification without data.
        one: Whether it shows one variant at a time.
    """

    name: str
    title: str
    about: str
    spec: Spec
    one: bool = False


@dataclass(frozen=True)
class Encodings:
    """How every chart marks variants.

    Attributes:
        looks: The look of each variant.
        legend: Whether a chart has a legend of its own; the page has one for all.
    """

    looks: Mapping[str, Style]
    legend: bool = False

    @property
    def colour(self) -> Spec:
        """Colour by variant."""
        return self._scaled([look.colour for look in self.looks.values()])

    @property
    def shape(self) -> Spec:
        """Marker by variant."""
        return self._scaled([look.shape for look in self.looks.values()])

    @property
    def dash(self) -> Spec:
        """Strokes of a line by variant."""
        return self._scaled([list(look.dash) or [1, 0] for look in self.looks.values()])

    @property
    def rows(self) -> Spec:
        """A line for each variant, from the top."""
        axis = {"labelLimit": 140, "title": None, "ticks": False, "domain": False}
        return {"field": "variant", "type": "nominal", "axis": axis, "sort": list(self.looks)}

    def _scaled(self, values: list[Any]) -> Spec:
        scale = {"domain": list(self.looks), "range": values}
        legend: Spec = {} if self.legend else {"legend": None}
        return {"field": "variant", "type": "nominal", "title": None, "scale": scale, **legend}


def quantitative(field: str, title: str, **more: Any) -> Spec:
    """Encode a number; the title has its unit."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def tips(*pairs: tuple[str, str]) -> list[Spec]:
    """Say the variant, and numbers by field and words, where the pointer is."""
    found = [{"field": "variant", "type": "nominal", "title": "variant"}]
    return [*found, *(quantitative(field, title, format=".4~g") for field, title in pairs)]
