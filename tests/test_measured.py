"""What docs/results says is what the committed results hold."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import atlas  # noqa: E402

RESULTS = ROOT / "docs/results"
# 60, 0.05, +1.2, -0.4; not the digits of a word, a version or a link.
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?![\w.]*\w)")


def numbers(text: str) -> list[str]:
    return NUMBER.findall(re.sub(r"\]\([^)]*\)", "]", text))


def test_the_atlas_page_shows_the_tables_of_the_committed_file():
    page = atlas.PAGE.read_text()
    assert f"<!-- tables -->\n\n{atlas.tables(atlas.read())}\n\n<!-- end -->" in page


def test_every_number_of_the_advice_is_in_a_table():
    advice, _, tables = atlas.PAGE.read_text().partition("<!-- tables -->")
    advice = advice.partition("## Advice")[2].partition("\n## ")[0]
    held = set(numbers(tables))
    quoted = re.findall(r"\[([^\]]*)\]\(#", advice)
    assert len(quoted) >= 8
    missing = [number for text in quoted for number in numbers(text) if number not in held]
    assert not missing


@pytest.mark.parametrize(
    "link", re.findall(r"\[([^\]]*)\]\((\S+?\.md)", (RESULTS / "replications.md").read_text())
)
def test_every_number_of_a_replication_is_on_its_page(link):
    text, page = link
    held = set(numbers((RESULTS / page).read_text()))
    assert [number for number in numbers(text) if number not in held] == []


def test_the_tables_tell_a_changed_measurement(tmp_path):
    text = atlas.DATA.read_text().splitlines()
    cells = text[2].split(",")
    cells[4] = str(float(cells[4]) / 2)
    changed = tmp_path / "changed.csv"
    changed.write_text("\n".join([*text[:2], ",".join(cells), *text[3:]]) + "\n")
    assert atlas.tables(atlas.read(changed)) != atlas.tables(atlas.read())
