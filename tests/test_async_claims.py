"""The rule of the asynchronous claims, and that the page shows what the committed file says."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import async_claims as claims


def test_the_page_shows_the_measurements() -> None:
    text = claims.PAGE.read_text(encoding="utf-8")
    assert claims.written(text) == text


@pytest.mark.parametrize(
    ("low", "high", "seeds", "factor", "up_to", "expected"),
    [
        (3.4, 4.0, 3, 3.3, False, "confirmed"),
        (3.2, 4.0, 3, 3.3, False, "in direction"),
        (3.4, 4.0, 3, 3.3, True, "in direction"),
        (0.9, 4.0, 3, 3.3, False, "open"),
        (3.4, 4.0, 2, 3.3, False, "open"),
        (math.nan, math.nan, 1, 3.3, False, "open"),
        (0.5, 0.9, 3, 3.3, False, "contradicted"),
        (0.5, 0.9, 3, 3.3, True, "open"),
    ],
)
def test_words(low: float, high: float, seeds: int, factor: float, up_to: bool, expected: str) -> None:
    assert claims.word(low, high, seeds, factor, up_to) == expected


def test_ratios_are_of_pairs_that_reach_the_target() -> None:
    rows = [
        {"variant": v, "seed": s, "reached": r, "trainings": t}
        for v, s, r, t in (
            ("a", "1", "1", "10"), ("a", "2", "1", "20"), ("a", "3", "1", "5"),
            ("b", "1", "1", "20"), ("b", "2", "1", "40"), ("b", "3", "0", "50"),
        )
    ]  # fmt: skip
    assert claims.ratio(rows, "a", "b", "trainings") == pytest.approx((2.0, 2.0, 2.0, 2))
