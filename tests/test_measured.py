"""What docs/results says is what the committed results hold."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import atlas  # noqa: E402
import atlas_time  # noqa: E402
import branches  # noqa: E402
import claims  # noqa: E402
import pages  # noqa: E402
import replay  # noqa: E402
import signals  # noqa: E402

RESULTS = ROOT / "docs/results"
# 60, 0.05, +1.2, -0.4; not the digits of a word, a version or a link.
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?![\w.]*\w)")
ATLASES = [pytest.param(source, id=source.stem) for source in atlas.PAGES]
MEASURED = [name for name in claims.CLAIMS if claims.data(name).exists()]


def numbers(text: str) -> list[str]:
    return NUMBER.findall(re.sub(r"\]\([^)]*\)", "]", text))


def quoted(text: str) -> list[str]:
    """Return the texts of links to a place on the same page."""
    return re.findall(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(#", text)


@pytest.mark.parametrize("source", ATLASES)
def test_an_atlas_page_shows_the_tables_of_the_committed_file(source):
    assert atlas.written(source) == source.page.read_text()


@pytest.mark.parametrize("source", ATLASES)
def test_every_number_of_the_advice_is_in_a_table(source):
    text, _, tables = source.page.read_text().partition("<!-- tables -->")
    advice = text.partition("## Advice")[2].partition("\n## ")[0]
    held = set(numbers(tables.partition("<!-- end -->")[0]))
    assert len(quoted(advice)) >= 8
    assert [number for text in quoted(advice) for number in numbers(text) if number not in held] == []


@pytest.mark.parametrize("name", MEASURED)
def test_a_page_shows_the_table_of_a_comparisons_committed_file(name):
    text = (RESULTS / claims.CLAIMS[name].page).read_text()
    assert claims.written(text, name) == text


@pytest.mark.parametrize("script", [branches, signals])
def test_the_page_shows_what_was_measured_inside_of_hics(script):
    text = (RESULTS / "replications.md").read_text()
    assert script.written(text) == text


def test_the_page_shows_the_atlas_in_simulated_seconds():
    assert atlas_time.written() == atlas_time.PAGE.read_text()


def test_the_page_shows_the_comparisons_as_they_are_replayed():
    assert replay.written() == replay.PAGE.read_text()


def test_a_replay_compares_words_and_counts_the_baselines_runs():
    better, same = np.full(12, 5.0) + np.arange(12) % 2, np.tile([0.1, -0.1], 6)
    family = replay.Family("here", {"a": better, "b": same})
    words, runs = family.decided(1.0)
    assert words == {"a": "better", "b": "equivalent"}
    assert runs == 6 + 6 + 6
    assert family.fixed(12) == ({"a": "better", "b": "open"}, 36)
    assert replay.agreement(words, family.fixed(12)[0]) == (2, 0, 0, 0)
    assert replay.agreement({"a": "open", "b": "worse"}, {"a": "better", "b": "better"}) == (0, 1, 0, 1)


def test_estimates_are_correlated_once_all_clients_have_one(tmp_path):
    labels = "\n".join(f"{10 - k},{k}" for k in (0, 1, 2, 3, 5))  # the later, the more balanced
    (tmp_path / "labels.csv").write_text(labels)
    estimates = [[math.nan, 4, 3, 2, 1], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]
    lines = [{"round": 3 + k, "clients": [*range(5)], "values": v} for k, v in enumerate(estimates)]
    (tmp_path / "diagnostics.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    plans = [
        {"round": 3, "plan": [[0], [1]]},
        {"round": 4, "plan": [[4], [3]]},
        {"round": 5, "plan": [[4, 0]]},
    ]
    (tmp_path / "rounds.jsonl").write_text("\n".join(json.dumps(line) for line in plans))
    assert signals.measure(tmp_path) == pytest.approx((1.0, -1.0, 0.5))


@pytest.mark.parametrize(
    "page", ["hics-temperature.md", "replications.md", "atlas-time.md", "how-many-runs.md"]
)
def test_every_number_of_a_reading_is_in_a_table(page):
    text = (RESULTS / page).read_text()
    held = set(numbers("\n".join(re.findall(r"<!-- table .*?<!-- end -->", text, re.DOTALL))))
    assert len(quoted(text)) >= 8
    assert [number for part in quoted(text) for number in numbers(part) if number not in held] == []


@pytest.mark.parametrize(
    "link", re.findall(r"\[([^\]]*)\]\((\S+?\.md)", (RESULTS / "replications.md").read_text())
)
def test_every_number_of_a_replication_is_on_its_page(link):
    text, page = link
    held = set(numbers((RESULTS / page).read_text()))
    assert [number for number in numbers(text) if number not in held] == []


def test_the_tables_tell_a_changed_measurement(tmp_path):
    data = atlas.ATLASES["atlas_synthetic"].data
    text = data.read_text().splitlines()
    cells = text[2].split(",")
    cells[4] = str(float(cells[4]) / 2)
    changed = tmp_path / "changed.csv"
    changed.write_text("\n".join([*text[:2], ",".join(cells), *text[3:]]) + "\n")
    assert atlas.tables(atlas.read(changed)) != atlas.tables(atlas.read(data))


def test_collected_rows_join_those_of_other_machines(tmp_path):
    path = tmp_path / "data" / "rows.csv"
    pages.update_rows(path, ["seed", "selector", "accuracy"], [(1, "PowD", 0.5), (2, "PowD", 0.6)], key=2)
    pages.update_rows(path, ["seed", "selector", "accuracy"], [(2, "PowD", 0.7), (3, "PowD", 0.8)], key=2)
    assert path.read_text() == "seed,selector,accuracy\n1,PowD,0.5\n2,PowD,0.7\n3,PowD,0.8\n"
