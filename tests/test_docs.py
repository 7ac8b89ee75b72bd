"""The documentation site builds without a warning: every link and anchor in it leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                # What a page shows comes with it; only a link that is followed may leave the site.
                (self.links if tag == "a" else self.loads).append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, _Page]:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert not re.search("WARNING|ERROR", done.stderr), done.stderr
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def test_every_page_of_docs_is_in_the_site(site):
    shown = {path.stem for path in site}
    assert {path.stem for path in (ROOT / "docs").rglob("*.md")} <= shown
    assert {"index", "changelog", "contributing", "benchmarks"} <= shown


def test_links_lead_somewhere(site):
    broken = []
    for path, page in site.items():
        if path.name == "404.html":
            continue
        for link in (*page.links, *page.loads):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            other = (path.parent / target).resolve() if target else path
            found = other.exists() and (not anchor or other not in site or anchor in site[other].anchors)
            if not found:
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_pages_load_nothing_from_elsewhere(site):
    assert not [load for page in site.values() for load in page.loads if re.match(r"https?:|//", load)]


def test_the_search_works_from_disk(site):
    """Browsers load no JSON from a file: the index is a script, and what reads it comes with the site."""
    folder = min(site, key=lambda path: len(path.parts)).parent
    assert (folder / "search/search_index.js").read_text(encoding="utf-8").startswith("var __index = {")
    assert (folder / "look/iframe-worker.js").is_file()
    assert all(any(load.endswith("look/iframe-worker.js") for load in page.loads) for page in site.values())


def test_commands_wrap_on_a_phone(site):
    folder = min(site, key=lambda path: len(path.parts)).parent
    assert 'class="language-sh highlight"' in (folder / "index.html").read_text(encoding="utf-8")
    style = (folder / "look/site.css").read_text(encoding="utf-8")
    assert re.search(r"\.language-sh pre > code \{\s*white-space: pre-wrap;", style)
