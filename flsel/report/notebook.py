"""Show results in a notebook: a headline, a table and a small picture, in plain HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from flsel.report.style import BLUE, GREY_LINE

_WIDTH, _HEIGHT, _MARGIN = 360, 120, 34


def fragment(headline: str, table: str = "", picture: str = "", footer: str = "") -> str:
    """Return what a notebook shows of a result.

    Args:
        headline: One or two sentences; text.
        table: HTML of :func:`table`.
        picture: An SVG element.
        footer: A last line; text.
    """
    parts = [f"<p><strong>{escape(headline)}</strong></p>", table, picture]
    parts += [f"<p><small>{escape(footer)}</small></p>"] if footer else []
    return f'<div style="max-width: 60em">{"".join(parts)}</div>'


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; floats are shown with four digits, None as ``-``."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def curve(
    x: Sequence[float], y: Sequence[float], *, across: str, up: str, points: Sequence[float] = ()
) -> str:
    """Draw a line as an SVG element.

    Args:
        x: Ascending, at least two.
        y: As many; finite.
        across: What ``x`` is.
        up: What ``y`` is.
        points: As many as ``x`` where given: drawn as dots.
    """
    values = [*y, *points]
    low, high = min(values), max(values)
    spread, wide = (high - low) or 1.0, (x[-1] - x[0]) or 1.0

    def place(at: float, value: float) -> tuple[float, float]:
        left = _MARGIN + (at - x[0]) / wide * (_WIDTH - 2 * _MARGIN)
        return left, _HEIGHT - _MARGIN + 12 - (value - low) / spread * (_HEIGHT - _MARGIN - 4)

    line = " ".join("{:.1f},{:.1f}".format(*place(at, value)) for at, value in zip(x, y, strict=True))
    places = [place(at, value) for at, value in zip(x, points, strict=bool(points))]
    dots = "".join(
        f'<circle cx="{across_:.1f}" cy="{up_:.1f}" r="2" fill="{GREY_LINE}"/>' for across_, up_ in places
    )
    text = 'font-size="10" font-family="sans-serif" fill="currentColor"'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT + 14}" role="img" aria-label="{escape(up)}">'
        f'{dots}<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>'
        f'<text x="0" y="12" {text}>{high:.3g}</text><text x="0" y="{_HEIGHT - _MARGIN + 15}" {text}>'
        f'{low:.3g}</text><text x="{_MARGIN}" y="{_HEIGHT}" {text}>'
        f"{escape(up)} over {escape(across)} {x[0]:g} to {x[-1]:g}</text></svg>"
    )


def _cell(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)
