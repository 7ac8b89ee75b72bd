"""Partitions by the data set's own indices: every place stays, whatever is held out."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from flsel.data.data_config import DataConfig
from flsel.data.population import Examples, FederatedData, Normalize, Source
from flsel.errors import UserError
from flsel.partition import FromFile, Partition
from flsel.runner.load_data import load_data

SPLIT = {"0": [0, 3, 6, 9, 12], "1": [1, 4, 7, 10, 13], "10": [2, 5, 8, 11, 14]}


def source(size: int) -> Source:
    x = torch.arange(size, dtype=torch.float32)[:, None]
    return Source(Examples(x, torch.arange(size) % 3), None, 3, None, Normalize(), "numbered")


def loaded(path: Path, size: int = 100, clients: int | None = None, **shares: float) -> FederatedData:
    return load_data(DataConfig(**shares), FromFile(str(path)), clients, seed=0, source=source(size))


def written(folder: Path, content: object) -> Path:
    path = folder / "split.json"
    path.write_text(json.dumps(content))
    return path


def shards(data: FederatedData) -> list[list[int]]:
    return [sorted(shard.tolist()) for shard in data.population.shards]


def held(data: FederatedData) -> list[int]:
    parts = (data.server, data.validation, data.test)
    return sorted(chain(*(part.x[:, 0].int().tolist() for part in parts if part is not None)))


def test_holdouts_come_from_examples_of_nobody(tmp_path):
    data = loaded(written(tmp_path, SPLIT))
    assert shards(data) == [sorted(indices) for indices in SPLIT.values()]
    assert held(data)
    assert min(held(data)) >= 15


def test_clients_give_their_share_where_all_examples_are_theirs(tmp_path):
    data = loaded(written(tmp_path, SPLIT), size=15)
    for shard, indices in zip(shards(data), SPLIT.values(), strict=True):
        assert set(shard) < set(indices)
    assert sorted(chain(*shards(data), held(data))) == list(range(15))


def test_holdouts_have_the_clients_labels(tmp_path):
    labels = np.arange(100) % 3
    of_two = {str(k): np.flatnonzero(labels == k)[:20].tolist() for k in (0, 1)}
    data = loaded(written(tmp_path, of_two), validation=0.2)
    assert shards(data) == list(of_two.values())
    assert len(data.validation) == 8
    for part in (data.validation, data.test):
        assert part.y.bincount(minlength=3).tolist() == [len(part) // 2, len(part) // 2, 0]
    all_of_two = {str(k): np.flatnonzero(labels == k).tolist() for k in (0, 1)}
    data = loaded(written(tmp_path, all_of_two), validation=0.2)  # Nobody has their labels only.
    assert set(data.validation.y.tolist()) == {0, 1}
    for shard, indices in zip(shards(data), all_of_two.values(), strict=True):
        assert set(shard) < set(indices)


class ByHand(Partition):
    """A published split as a class of one's own."""

    lists = tuple(SPLIT.values())

    def split(self, labels, clients, rng):
        assert len(labels) == 100
        return [np.array(indices) for indices in self.lists]


class Overlaps(ByHand):
    lists = ([0, 1], [1, 2], [3])


class LeavesOneOut(ByHand):
    lists = ([0, 1], [2], np.arange(0))


@pytest.mark.parametrize("holdouts", [{}, {"server": 0.3, "validation": 0.2}])
def test_split_of_a_partition_of_ones_own_deals_the_data_sets_own_indices(holdouts):
    data = load_data(DataConfig(**holdouts), ByHand(), 3, seed=0, source=source(100))
    assert shards(data) == [sorted(indices) for indices in SPLIT.values()]
    for partition, message in (
        (Overlaps(), "the partition deals example 1 to clients 2 times"),
        (LeavesOneOut(), r"client 2 has no examples after the partition \(1 of 3"),
    ):
        with pytest.raises(UserError, match=message):
            load_data(DataConfig(), partition, 3, seed=0, source=source(100))


@pytest.mark.parametrize("kind", ["lists", "owners", "owners with gaps", "npz", "npy", "pairs", "csv"])
def test_other_forms_of_the_same(kind, tmp_path):
    owner = np.full(100, -1)
    for client, indices in enumerate(SPLIT.values()):
        owner[indices] = client
    if kind == "npz":
        path = tmp_path / "split.npz"
        np.savez(path, **{name: np.array(indices) for name, indices in SPLIT.items()})
    elif kind == "npy":
        path = tmp_path / "split.npy"
        np.save(path, owner)
    elif kind == "csv":
        path = tmp_path / "split.csv"
        rows = [f"{index},{client}" for index, client in enumerate(owner) if client >= 0]
        path.write_text("\n".join(["index,client", *rows]))
    else:
        forms = {
            "lists": list(SPLIT.values()),
            "owners": owner.tolist(),
            "owners with gaps": [7 * client if client > 0 else client for client in owner.tolist()],
            "pairs": {str(index): client for index, client in enumerate(owner.tolist())},
        }
        path = written(tmp_path, forms[kind])
    assert shards(loaded(path)) == shards(loaded(written(tmp_path, SPLIT)))


def test_fewer_clients_are_drawn_and_more_are_refused(tmp_path):
    path = written(tmp_path, SPLIT)
    assert all(sorted(shard) in SPLIT.values() for shard in shards(loaded(path, clients=2)))
    with pytest.raises(UserError, match=r"clients must be in 1..3, the natural clients of numbered, got 30"):
        loaded(path, clients=30)


@pytest.mark.parametrize(("content", "message"), [
    ({"0": [1, 100]}, "client 0 must have indices of the 100 training examples, got 100"),
    ({"0": [1, -1]}, "client 0 must have indices of the 100 training examples, got -1"),
    ({"0": [1], "1": [2, 1]}, "client 1 has example 1, which is listed before"),
    ({"0": [1, 1]}, "client 0 has example 1, which is listed before"),
    ({"0": [0.5]}, r"client 0 must have a list of whole numbers, got \[0.5\]"),
    ({"0": "ab"}, "client 0 must have a list of whole numbers"),
    ([0, 1, 2], "must give the client, or -1, of each of 100 training examples, got 3 numbers"),
    ([-2] * 100, "must give the client, or -1, of each of 100 training examples"),
    ({"0": []}, "client 0 must have examples, got none"),
    ({"ann": 3}, "must give a list of indices to ann, got 3"),
    ({"test": {"0": [1]}}, "client test must have a list of whole numbers, got {'0': "),
    ([[0, [1, 2]]], r"client 0 must have a list of whole numbers, got \[0, \[1, 2\]\]"),
    ({}, "must give some client examples"),
    (7, "must hold a mapping or a list, got 7"),
    ({"0": [1], "1": []}, "client 1 must have examples, got none"),
    ([-1] * 100, "must give some client examples"),
])  # fmt: skip
def test_what_is_no_split(content, message, tmp_path):
    with pytest.raises(UserError, match=message):
        loaded(written(tmp_path, content))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="must be a JSON, npz, npy or CSV file, but there is no file"):
        loaded(tmp_path / "none.json")
    for text, message in (
        ("index\n1\n", "without client"),
        ("index,client\n1,0\n1,1\n", "client 1 has example 1, which is listed before"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(UserError, match=message):
            loaded(tmp_path / "bad.csv")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"bad.json cannot be read"):
        loaded(tmp_path / "bad.json")
    (tmp_path / "twice.json").write_text('{"a": [0], "a": [1]}')
    with pytest.raises(UserError, match=r"twice.json cannot be read: .*the key a stands twice"):
        loaded(tmp_path / "twice.json")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"objects.npz cannot be read"):
        loaded(tmp_path / "objects.npz")
