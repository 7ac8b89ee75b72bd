"""The picture of ``results.md``: how long a round takes beside the plain loop, a bar for each simulator.

python benchmarks/peers/figure.py          # after results.md has changed; compare.py --write does it too
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS, PICTURE = HERE / "results.md", HERE / "peers.svg"
# Pixels; a phone shows three quarters of them, so that letters of 16 stay readable.
WIDTH, LINE, LABELS, BARS = 460, 27, 148, 240
OURS, OTHERS, BASE = "#1f5fa8", "#a9b4c0", "#5b6570"
Bar = tuple[str, float]


def read(text: str) -> dict[str, list[Bar]]:
    """Find each table's sides and their wall times over the plain loop's, by the heading above."""
    found: dict[str, list[Bar]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif cells := re.match(r"\| ([^|]+) \| [^|]* ms \([^|]*\) \| ([0-9.]+) \(", line):
            found.setdefault(heading, []).append((cells[1], float(cells[2])))
    return found


def picture(panels: dict[str, list[Bar]]) -> str:
    """Draw one panel below another as SVG."""
    most = max(value for bars in panels.values() for _, value in bars)
    top, parts = 28, [_text(8, 20, "Seconds a round, the plain PyTorch loop's = 1", size=16, weight=600)]
    for heading, bars in panels.items():
        top += 22
        parts.append(_text(8, top, heading.partition(", ")[0], size=16, colour=BASE))
        first, top = top + 8, top + 8
        values = []
        for name, value in bars:
            colour = OURS if name.startswith("flsel") else OTHERS
            long = value / most * BARS
            parts.append(
                _text(LABELS - 6, top + 19, name, anchor="end", weight=600 if colour == OURS else 400)
            )
            parts.append(
                f'<rect x="{LABELS}" y="{top + 4}" width="{long:.1f}" height="{LINE - 8}" fill="{colour}"/>'
            )
            values.append(_text(LABELS + long + 6, top + 19, f"{value:.2f}"))
            top += LINE
        one = LABELS + BARS / most
        ends = f'x1="{one:.1f}" x2="{one:.1f}" y1="{first}" y2="{top}"'
        parts.append(f'<line {ends} stroke="{BASE}" stroke-dasharray="3 3"/>')
        parts += values  # above the line, which would cross them
        top += 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    )
    style = 'font-family="Helvetica, Arial, sans-serif"'
    return "\n".join(
        [f"{head} {style}>", f'<rect width="{WIDTH}" height="{top}" fill="white"/>', *parts, "</svg>\n"]
    )


def draw() -> None:
    """Draw the committed tables."""
    PICTURE.write_text(picture(read(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


def _text(
    x: float,
    y: float,
    said: str,
    size: int = 15,
    colour: str = "#1b1f24",
    anchor: str = "start",
    weight: int = 400,
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    place += ' stroke="white" stroke-width="4" paint-order="stroke"'
    return f'<text {place} font-size="{size}" font-weight="{weight}" fill="{colour}">{escape(said)}</text>'


if __name__ == "__main__":
    draw()
