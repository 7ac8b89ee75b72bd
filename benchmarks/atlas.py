"""Which selector where? The atlases' tables and pictures from their comparisons' runs.

    python benchmarks/atlas.py --collect comparisons/atlas_synthetic   # runs -> docs/results/data
    python benchmarks/atlas.py                                         # docs/results/data -> pages

The tables are made of the committed files alone; a test compares them with the pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from atlas_runs import BASE, Atlas, collect, read
from atlas_tables import agreement, cells, named, tables, together, tuning
from pages import options

RESULTS = Path(__file__).resolve().parents[1] / "docs/results"


@dataclass(frozen=True)
class Source:
    """An atlas: what its tables call it, its comparison, and its page without the ending."""

    title: str
    name: str
    stem: str

    @property
    def data(self) -> Path:
        """Where its measurements are."""
        return RESULTS / f"data/{self.name}.csv"

    @property
    def tuned(self) -> Path:
        """Where those of its tuned selectors are."""
        return RESULTS / f"data/{self.name}_tuned.csv"

    @property
    def page(self) -> Path:
        """What shows them."""
        return RESULTS / f"{self.stem}.md"

    @property
    def picture(self) -> Path:
        """The heat map."""
        return RESULTS / f"images/{self.stem.replace('-', '_')}.png"


_SOURCES = (
    Source("Synthetic(0.5, 0.5)", "atlas_synthetic", "atlas"),
    Source("Fashion-MNIST", "atlas_fashion", "atlas-fashion"),
    Source("MNIST", "atlas_mnist", "atlas-mnist"),
    Source("different sizes", "atlas_sizes", "atlas-sizes"),
)
_MORE = ", more selectors"
# Their selectors are others, so that they have no columns beside those. They share a page, the first one's.
_CATALOGUES = tuple(
    Source(f"{title}{_MORE}", name, "atlas-catalogue")
    for title, name in {
        "Fashion-MNIST": "catalogue_fashion",
        "MNIST": "catalogue_mnist",
        "Synthetic(0.5, 0.5)": "catalogue_synthetic",
        "different sizes": "catalogue_sizes",
    }.items()
)
ATLASES = {source.name: source for source in (*_SOURCES, *_CATALOGUES)}
PAGES = (*_SOURCES, _CATALOGUES[0])


def draw(atlas: Atlas, path: Path) -> None:
    """Draw the gains as a heat map."""
    from matplotlib.figure import Figure

    from flsel.report.style import save_figure

    gains = atlas.gains()
    others = [k for k in np.argsort(-gains.mean(axis=0)) if atlas.selectors[k] != BASE]
    shown = gains[:, others].T
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    limit = float(np.quantile(np.abs(shown), 0.95))
    image = axes.imshow(shown, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(
        range(len(atlas.scenarios)), [", ".join(s) for s in atlas.scenarios], rotation=60, ha="right"
    )
    axes.set_yticks(range(len(others)), [atlas.selectors[k] for k in others])
    axes.tick_params(labelsize=8)
    for (row, column), value in np.ndenumerate(shown):
        colour = "white" if abs(value) > 0.6 * limit else "black"
        text = f"{value:+.0f}" if round(value) else "0"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, label="points above Uniform")
    save_figure(figure, path)


def shown(source: Source) -> str:
    """Return what a page shows."""
    atlas, first = read(source.data), ATLASES["atlas_synthetic"]
    text = tables(atlas)
    if source in _CATALOGUES:
        return f"{text}\n\n{_catalogues()}"
    if source.tuned.exists():
        text += f"\n\n### Tuned selectors\n\n{tuning(read(source.data, merged=False), source.tuned)}"
    if source == first:
        atlases = [(other.title, read(other.data)) for other in _SOURCES if other.data.exists()]
        text += f"\n\n### All atlases\n\n{together(atlases)}"
    elif set(atlas.scenarios) & set(read(first.data).scenarios):
        text += f"\n\n### Compared with the other atlas\n\n{agreement(atlas, read(first.data))}"
    return text


def _catalogues() -> str:
    """Return who is named by which atlas of the catalogue, and the gains that stand on no other page."""
    read_ones = [(source.title.removesuffix(_MORE), read(source.data)) for source in _CATALOGUES]
    parts = [("All atlases of more selectors", together(read_ones))]
    parts += [(f"Named in the advice: {title}", named(atlas)) for title, atlas in read_ones]
    parts += [
        (f"Gain over Uniform in every scenario: {title}", cells(atlas)) for title, atlas in read_ones[1:]
    ]
    return "\n\n".join(f"### {title}\n\n{table}" for title, table in parts)


def written(source: Source) -> str:
    """Return an atlas's page with its tables put in."""
    before, _, rest = source.page.read_text().partition("<!-- tables -->\n")
    after = rest.partition("<!-- end -->")[2]
    return f"{before}<!-- tables -->\n\n{shown(source)}\n\n<!-- end -->{after}"


def main() -> None:
    """Collect, or write the page's tables and the picture."""
    parser = options(__doc__)
    parser.add_argument("--collect", type=Path, help="folder of the comparison")
    chosen = parser.parse_args()
    if chosen.collect:
        collect(chosen.collect, ATLASES[chosen.collect.name].data)
        return
    for source in PAGES:
        source.page.write_text(written(source))
        draw(read(source.data), source.picture)


if __name__ == "__main__":
    main()
