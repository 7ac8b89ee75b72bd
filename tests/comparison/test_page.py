"""The report's page in a browser: nothing missing, nothing fetched, nothing wider than the screen."""

# ruff: noqa: E501 (the script that judges the page)

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import made
import pytest

from flsel.comparison.compare import compare_runs
from flsel.comparison.compare_config import CompareConfig
from flsel.comparison.comparison import Comparison
from flsel.report.style import looks

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MEGABYTES = 6

# Collects what the console says, then judges what is seen, and tells the page around.
LISTEN = """<script>
window.said = [];
for (const kind of ["error", "warn"]) {
  const real = console[kind];
  console[kind] = (...words) => { window.said.push(words.join(" ")); real(...words); };
}
window.addEventListener("error", (event) => window.said.push(event.message));
window.addEventListener("unhandledrejection", (event) => window.said.push(String(event.reason)));
</script>"""
AUDIT = """<script>
const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = (rgb) => { const [r, g, b] = rgb.slice(0, 3).map((c) => c / 255)
  .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
const behind = (e) => { for (; e; e = e.parentElement) {
  const c = channels(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0.5) return c; }
  return [255, 255, 255]; };
const contrast = (e) => { const style = getComputedStyle(e);
  const front = light(channels(e.namespaceURI.endsWith("svg") ? style.fill : style.color)), back = light(behind(e));
  return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05); };
const look = () => {
  if (document.body.dataset.drawn !== "true") return setTimeout(look, 50);
  const texts = [...document.querySelectorAll("main *")].filter((e) => e.getClientRects().length &&
    ![..."SCRIPT STYLE OPTION".split(" ")].includes(e.tagName) &&
    [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  const faint = texts.map((e) => [contrast(e), e.textContent.trim().slice(0, 40)]).filter(([c]) => c < 4.5);
  const charts = [...document.querySelectorAll(".chart")].map((e) => [e.id,
    e.querySelectorAll("svg [class*=mark-] path, svg [class*=mark-] line, svg [class*=mark-] rect").length]);
  const unnamed = [...document.querySelectorAll("input, select")].filter((e) => !e.closest("label")).length;
  // As the Tab key goes: everything is reached, named, marked, and not behind something else.
  const stops = [...document.querySelectorAll("a[href], input, select, summary, [tabindex]")]
    .filter((e) => e.tabIndex >= 0 && e.checkVisibility());
  const named = (e) => (e.labels?.[0] ?? e).textContent.trim() || e.getAttribute("aria-label");
  const lost = stops.map((e) => { e.focus(); const style = getComputedStyle(e), box = e.getBoundingClientRect();
    const seen = document.elementFromPoint(box.left + Math.min(box.width / 2, 150), box.top + Math.min(box.height / 2, 20));
    const wrong = [document.activeElement !== e && "not reached", !named(e) && "no name",
      (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) && "not marked",
      !(e === seen || e.contains(seen)) && `behind ${seen?.outerHTML.slice(0, 80)}`];
    return wrong.some(Boolean) && [e.outerHTML.slice(0, 80), ...wrong.filter(Boolean)]; }).filter(Boolean);
  parent.postMessage(JSON.stringify({ lost, stops: stops.length, said: window.said, faint, charts, unnamed, texts: texts.length,
    wider: document.documentElement.scrollWidth - window.innerWidth }), "*");
};
look();
</script></body>"""
FRAME = """<!doctype html><body style="margin:0"><iframe src="page.html" style="width:{width}px;height:900px;border:0">
</iframe><pre id="audit"></pre><script>
addEventListener("message", (event) => {{ document.getElementById("audit").textContent = event.data; }});
</script></body>"""


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two scenarios, six selectors, three seeds; four of the selectors have something to tell."""
    folder = tmp_path_factory.mktemp("page")
    for number, alpha in enumerate((0.1, 1.0)):
        spec = {"class_path": "flsel.partition.dirichlet.Dirichlet", "init_args": {"alpha": alpha}}
        for name, end in (
            ("Uniform", 0.5), ("PowD", 0.6), ("HiCS", 0.7), ("FedCor", 0.72), ("FedPNS", 0.4), ("FedCat", 0.45),
        ):  # fmt: skip
            for seed in (1, 2, 3):
                made.run(
                    folder / f"{name}{number}{seed}", made.climb(end + seed / 100 * (len(name) - 5)),
                    selector=name, seed=seed, partition=spec, models=len(name),
                )  # fmt: skip
    found = compare_runs([str(folder / "*")], CompareConfig(target=0.55, last=5))
    return replace(found, folder=folder, commands=("flsel compare <a> & b",))


@pytest.fixture(scope="module")
def page(comparison: Comparison) -> str:
    return comparison.to_html()


def audit(folder: Path, page: str, width: int, *flags: str) -> dict[str, Any]:
    """What a browser without a network finds in the page at a width."""
    assert BROWSER is not None
    spied = page.replace("<head>", "<head>" + LISTEN, 1)
    (folder / "page.html").write_text(AUDIT.join(spied.rsplit("</body>", 1)), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width=width), encoding="utf-8")
    done = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=60000", f"--window-size={width + 100},1000", *flags, "--dump-dom",
            (folder / "frame.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="audit">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    assert found[1], "the page never finished drawing"
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


@pytest.mark.skipif(BROWSER is None, reason="needs chromium (apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("flags", [[], ["--blink-settings=preferredColorScheme=0"]], ids=["light", "dark"])
def test_a_browser_finds_nothing_wrong(tmp_path, page, comparison, width, flags):
    seen = audit(tmp_path, page, width, *flags)
    assert seen["said"] == []
    assert seen["wider"] <= 0
    assert seen["faint"] == []
    assert seen["texts"] > 100
    assert seen["unnamed"] == 0
    assert seen["lost"] == []
    assert seen["stops"] > 15
    drawn = dict(seen["charts"])
    expected = {
        "curves", "cost", "pairs", "arrivals", "survival", "ranks", "participation", "estimates",
        "beliefs", "relations", "visits", "partition", "available",
    }  # fmt: skip
    assert expected <= {name.removeprefix("chart-") for name in drawn}
    assert all(count > 0 for count in drawn.values()), drawn


def test_the_page_stands_alone(page):
    assert len(page.encode()) < MEGABYTES * 10**6
    shell = page[: page.index('<script type="application/json"')]
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", shell)
    assert "flsel compare &lt;a&gt; &amp; b" in page
    assert "<a>" not in page.split("<pre", 1)[1].split("</pre>")[0]


def test_the_page_has_verdicts_and_the_table_before_the_charts(page, comparison):
    places = [page.index('class="verdicts"'), page.index("<table>"), page.index('id="chart-curves"')]
    assert places == sorted(places)
    for verdict in comparison.verdicts:
        assert html.escape(verdict.text) in page.replace("\u00a0", " ")
    for run in comparison.analysis.runs:
        assert f'href="{run.folder.name}/"' in page


def test_every_variant_looks_different_and_the_same_everywhere():
    names = ["Uniform", "PowD", "PowD:d=12", "FedCor", "mine.Selector", "other.Selector", "HiCS"]
    found = looks(names)
    assert len({(look.colour, look.marker) for look in found.values()}) == len(names)
    assert found["HiCS"] == looks(["HiCS"])["HiCS"]
    many = looks([f"s{n}" for n in range(40)])
    assert len({(look.colour, look.marker) for look in many.values()}) == 40
    neighbours = list(looks(["Uniform", "PowD", "FedCor", "HiCS", "DivFL", "AFL", "FedGS"]).values())
    assert len({(look.marker, look.dash) for look in neighbours}) == len(neighbours), "told apart in grey"
