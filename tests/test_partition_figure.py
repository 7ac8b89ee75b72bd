from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from flsel.partition import Dirichlet
from flsel.report.partition import partition_figure
from flsel.rng import generator


def counts_of(clients: int, labels: int) -> np.ndarray:
    y = np.repeat(np.arange(labels), max(clients // labels, 20))
    shards = Dirichlet(0.5)(y, clients, generator(0, "partition"))
    return np.stack([np.bincount(y[shard], minlength=labels) for shard in shards])


@pytest.mark.parametrize(("clients", "labels"), [(1, 2), (10, 10), (100, 100), (1000, 10), (5000, 2)])
def test_figure_shows_sizes_and_mixes_of_every_client(clients: int, labels: int) -> None:
    counts = counts_of(clients, labels)
    figure = partition_figure(counts, "a title")
    file = BytesIO()
    figure.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")

    mixes, sizes = figure.axes[0], figure.axes[1]
    assert figure.get_suptitle() == "a title"
    assert mixes.get_xlim() == sizes.get_xlim() == (-0.5, clients - 0.5)
    assert f"max {counts.sum(axis=1).max():,}" in sizes.get_title(loc="right")
    columns = min(clients, 2000)
    image = np.ma.filled(mixes.images[0].get_array(), 0.0)
    bars = sizes.patches[0].get_data().values
    assert image.shape == (labels, columns)
    assert len(bars) == columns
    if clients <= columns:
        np.testing.assert_array_equal(bars, counts.sum(axis=1))
        np.testing.assert_allclose(image, (counts / counts.sum(axis=1, keepdims=True)).T)


def test_clients_without_samples_are_drawn_as_empty_columns() -> None:
    figure = partition_figure(np.array([[0, 0], [3, 1]]), "t")
    figure.savefig(BytesIO(), format="png")
    image = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(image), [[True, False], [True, False]])
    partition_figure(np.zeros((3, 2), dtype=np.int64), "t").savefig(BytesIO(), format="png")
