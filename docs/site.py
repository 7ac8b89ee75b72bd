"""MkDocs hooks: pages that live outside docs/ and notebooks join the site, and links follow them there.

The same Markdown is read in the repository and on the site. A link to a file that is no page, such as a
config, becomes its text: the site does not carry the sources.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages of the site by the file, seen from the repository's root, whose text they show.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/results.md": "benchmarks.md",
}
PICTURES = {"benchmarks/peers/peers.svg": "images/peers.svg"}
NOTEBOOKS = {
    f"docs/notebooks/{path.name}": f"notebooks/{path.stem}.md"
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
PICTURE = re.compile(r'(?<=<img src=")[^"]+')
CODE = re.compile(r"<code[ >].*?</code>", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[\w.-]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and the pictures that lie outside docs/."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for source, page in NOTEBOOKS.items():
        files.append(File.generated(config, page, content=_notebook(ROOT / source)))
    for source, picture in PICTURES.items():
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / source)))
    return files


def _notebook(path: Path) -> str:
    """Write a notebook as Markdown: its texts, and its code in blocks."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
    place = f"`docs/notebooks/{path.name}` in the repository"
    return "\n\n".join([parts[0], f"*This page is a notebook: {place}.*", *parts[1:]]) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the page's links at the site's pages."""
    uri = page.file.src_uri
    source = next((known for known, shown in ELSEWHERE.items() if shown == uri), f"docs/{uri}")
    markdown = LINK.sub(lambda link: _followed(link, source, uri), markdown)
    return PICTURE.sub(lambda found: found.group().removeprefix("docs/"), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the dashes of an option in one line: browsers break lines after a dash."""
    return CODE.sub(
        lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code.group(0)),
        html,
    )


def _followed(link: re.Match[str], source: str, uri: str) -> str:
    picture, text, target = link.groups()
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or not path:
        return link.group(0)
    wanted = os.path.normpath(os.path.join(os.path.dirname(source), path))
    if not (ROOT / wanted).exists():
        return link.group(0)  # mkdocs says which page has the broken link
    inside = wanted.startswith("docs/") and (ROOT / wanted).suffix in (".md", ".png", ".svg", ".html", ".csv")
    shown = (ELSEWHERE | NOTEBOOKS | PICTURES).get(wanted) or (
        wanted.removeprefix("docs/") if inside else None
    )
    if shown is None:
        return text
    relative = os.path.relpath(shown, os.path.dirname(uri) or ".")
    return f"{picture}[{text}]({relative}{hash_sign}{anchor})"
