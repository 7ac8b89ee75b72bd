"""Partitions that flwr-datasets makes; where it is absent, a sentence says so (the rest: make test-tasks)."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from flsel.errors import UserError
from flsel.partition import FromFlower
from flsel.rng import generator

pytestmark = pytest.mark.filterwarnings("ignore")  # of flwr-datasets and pyarrow
LABELS = np.random.default_rng(0).integers(0, 5, 600)


def dealt(name: str, clients: int = 10, seed: int = 1, **arguments: object) -> list[np.ndarray]:
    pytest.importorskip("flwr_datasets")
    return FromFlower(name, arguments)(LABELS, clients, generator(seed, "partition"))


def test_absent_it_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(UserError, match=r'needs the package flwr-datasets .*: pip install "flsel\[flower-'):
        FromFlower()(LABELS, 10, generator(1, "partition"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("IidPartitioner", {}),
        ("LinearPartitioner", {}),
        ("DirichletPartitioner", {"alpha": 0.3}),
        ("PathologicalPartitioner", {"num_classes_per_partition": 2}),
        ("ShardPartitioner", {"num_shards_per_partition": 2}),
    ],
)
def test_every_example_is_dealt_once_by_the_seed(name, arguments):
    shards = dealt(name, **arguments)
    assert np.sort(np.concatenate(shards)).tolist() == [*range(600)]
    for one, other in zip(shards, dealt(name, **arguments), strict=True):
        assert np.array_equal(one, other)
    if name == "PathologicalPartitioner":
        assert all(len(np.unique(LABELS[shard])) == 2 for shard in shards)
    if name == "DirichletPartitioner":
        other = dealt(name, seed=2, **arguments)
        assert [len(shard) for shard in shards] != [len(shard) for shard in other]


def test_labels_are_read_if_the_partitioner_reads_a_column():
    pytest.importorskip("flwr_datasets")
    assert FromFlower("DirichletPartitioner").reads_labels
    assert not FromFlower("IidPartitioner").reads_labels


@pytest.mark.parametrize(
    ("name", "clients", "arguments", "sentence"),
    [
        (
            "DirichletPartitoner",
            10,
            {},
            "flwr_datasets.partitioner, got .*; did you mean DirichletPartitioner?",
        ),
        ("DirichletPartitioner", 10, {}, "cannot deal the examples: .* 'alpha'"),
        ("IidPartitioner", 10, {"alpha": 1}, "cannot deal the examples: .* 'alpha'"),
        ("SizePartitioner", 10, {"partition_sizes": [300, 300]}, "makes 2 clients: clients must be as many"),
        ("VerticalEvenPartitioner", 10, {}, "cannot deal the examples: Column 'index' doesn't exist"),
    ],
)
def test_what_does_not_fit_is_one_sentence(name, clients, arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        dealt(name, clients, **arguments)
