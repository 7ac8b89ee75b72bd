from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flsel.data.data_config import DataConfig, SyntheticConfig
from flsel.data.federate import Role, federate, hold_out, natural_shards
from flsel.data.population import Examples, Normalize, Source
from flsel.data.sources import load_source
from flsel.errors import UserError

REAL = Path(__file__).resolve().parents[2] / "../shared/data"


def numbered(size, owner=None, test=None, validation=None):
    """Make a source whose inputs are the positions of the examples."""
    x = torch.arange(size, dtype=torch.float32)[:, None]
    train = Examples(x, torch.arange(size) % 3)
    return Source(train, test, 3, owner, Normalize(), "numbered", validation)


def deal_to(clients):
    return lambda labels, rng: np.array_split(rng.permutation(len(labels)), clients)


def positions(data):
    """Return the examples of the clients, the server, validation and test, by their positions."""
    parts = [shard.tolist() for shard in data.population.shards]
    held = [data.server, data.validation, data.test]
    return parts, [[] if part is None else part.x[:, 0].int().tolist() for part in held]


shares = st.sampled_from([0.0, 0.05, 0.1, 0.3])


@settings(max_examples=60)
@given(
    size=st.integers(60, 300),
    clients=st.integers(1, 12),
    server=shares,
    validation=shares,
    seed=st.integers(0, 9),
)
def test_every_example_is_in_exactly_one_place(size, clients, server, validation, seed):
    config = DataConfig(server=server, validation=validation)
    data = federate(numbered(size), config, deal=deal_to(clients), seed=seed)
    dealt, held = positions(data)
    assert sorted(chain(*dealt, *held)) == list(range(size))
    assert [len(part) for part in held] == [
        int(np.floor(share * size + 0.5)) for share in (server, validation, 0.1)
    ]
    assert (data.server is None) == (server == 0)
    assert (data.validation is None) == (validation == 0)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=4, max_size=25),
    seed=st.integers(0, 9),
    share=st.floats(0.1, 0.3),
)
def test_natural_clients_keep_their_share_and_one_example(sizes, seed, share):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    roles = hold_out(owner, {Role.TEST: share, Role.SERVER: 0.1}, np.random.default_rng(seed))
    counts = np.array([[(roles[owner == k] == role).sum() for role in Role] for k in range(len(sizes))])
    assert counts.sum() == sum(sizes)
    assert (counts[:, Role.TRAIN] >= 1).all()
    assert (counts[:, Role.VALIDATION] == 0).all()
    assert (counts[:, Role.TEST] <= np.floor(share * np.array(sizes)) + 1).all()
    roomy = np.array(sizes) >= 5
    assert (counts[roomy, Role.TEST] >= np.floor(share * np.array(sizes))[roomy]).all()


def test_shares_of_small_clients_add_up():
    roles = hold_out(np.repeat(np.arange(100), 10), {Role.SERVER: 0.05}, np.random.default_rng(0))
    assert (roles == Role.SERVER).sum() == 50


def test_owners_need_not_be_in_order():
    owner = np.random.default_rng(0).permutation(np.repeat(np.arange(20), 15))
    data = federate(numbered(300, owner), DataConfig(), deal=None, seed=0)
    for k, shard in enumerate(data.population.shards):
        assert set(owner[shard.numpy()]) == {k}
    dealt, held = positions(data)
    assert sorted(chain(*dealt, *held)) == list(range(300))


def test_the_holdout_is_random():
    data = federate(numbered(1000), DataConfig(), deal=deal_to(4), seed=0)
    test = positions(data)[1][2]
    assert test != list(range(100))
    assert 350 < np.mean(test) < 650


def test_seed_decides_and_partitions_share_their_holdouts():
    first = positions(federate(numbered(200), DataConfig(), deal=deal_to(4), seed=1))
    assert first == positions(federate(numbered(200), DataConfig(), deal=deal_to(4), seed=1))
    assert first[1] == positions(federate(numbered(200), DataConfig(), deal=deal_to(9), seed=1))[1]
    other = positions(federate(numbered(200), DataConfig(), deal=deal_to(4), seed=2))
    assert other[0] != first[0]
    assert other[1] != first[1]


def test_labels_and_generator_reach_the_partition():
    source, seen = numbered(50), {}

    def deal(labels, rng):
        seen["labels"], seen["draw"] = labels, rng.random()
        return [np.flatnonzero(labels == c) for c in range(3)]

    data = federate(source, DataConfig(), deal=deal, seed=5)
    assert seen["labels"].dtype == np.int64
    for c, shard in enumerate(data.population.shards):
        assert set(source.train.y[shard].tolist()) == {c}
    again = {}
    federate(
        source,
        DataConfig(),
        deal=lambda labels, rng: again.update(draw=rng.random()) or [np.arange(3)],
        seed=5,
    )
    assert again["draw"] == seen["draw"]


def test_examples_may_stay_undealt():
    data = federate(
        numbered(50), DataConfig(), deal=lambda labels, rng: [np.arange(5), np.array([7])], seed=0
    )
    assert data.population.sizes.tolist() == [5, 1]


def test_sets_that_the_dataset_brings_are_used():
    brought = Examples(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))
    source = numbered(100, test=brought, validation=brought)
    data = federate(source, DataConfig(server=0), deal=deal_to(3), seed=0)
    assert data.test is brought
    assert data.validation is brought
    assert data.population.sizes.sum() == 100
    assert federate(source, DataConfig(validation=0), deal=deal_to(3), seed=0).validation is None


def test_training_inputs_are_not_copied():
    source = numbered(100)
    data = federate(source, DataConfig(), deal=deal_to(3), seed=0)
    assert data.population.x.data_ptr() == source.train.x.data_ptr()
    assert data.test.x.data_ptr() != source.train.x.data_ptr()


def test_some_natural_clients_are_drawn_by_the_seed():
    owner = np.repeat(np.arange(10), 20)
    data = federate(numbered(200, owner), DataConfig(), deal=None, seed=0, clients=4)
    dealt, held = positions(data)
    assert len(dealt) == 4
    drawn = sorted({place // 20 for place in chain(*dealt, *held)})
    assert len(drawn) == 4
    assert drawn != [0, 1, 2, 3]
    assert [sorted({place // 20 for place in shard}) for shard in dealt] == [[owner] for owner in drawn]
    other = federate(numbered(200, owner), DataConfig(), deal=None, seed=1, clients=4)
    assert {place // 20 for place in chain(*positions(other)[0])} != set(drawn)


def test_natural_shards():
    shards = natural_shards(np.array([2, 0, 2, 0, 2]), 4)
    assert [shard.tolist() for shard in shards] == [[1, 3], [], [0, 2, 4], []]


@pytest.mark.parametrize(
    ("deal", "message"),
    [
        (
            lambda y, rng: [np.arange(3), np.arange(0), np.arange(0)],
            r"client 1 has no examples after the partition \(2 of 3 clients are empty\); .* without gaps\.",
        ),
        (lambda y, rng: [], "client 0 has no examples"),
        (lambda y, rng: [np.arange(3), np.arange(2, 5)], "deals example 2 to clients 2 times"),
        (lambda y, rng: [np.array([0, len(y)])], "must deal positions in 0..79"),
        (lambda y, rng: [np.array([-1])], "must deal positions in 0..79"),
        (lambda y, rng: [np.array([0.5])], "must deal positions in 0..79"),
    ],
)
def test_partitions_that_do_not_work(deal, message):
    config = DataConfig(server=0, validation=0.1, test=0.1)
    with pytest.raises(UserError, match=message):
        federate(numbered(100), config, deal=deal, seed=0)


@pytest.mark.parametrize(
    ("source", "config", "clients", "message"),
    [
        (numbered(100), {}, None, "partition must not be natural: numbered has no natural clients"),
        (
            numbered(9, np.arange(9) // 3),
            {},
            4,
            r"clients must be in 1..3, .* got 4",
        ),
        (numbered(9, np.array([0, 0, 0, 2, 2, 2, 3, 3, 3])), {"server": 0}, None, "client 1 has no examples"),
        (
            numbered(100, np.arange(100) // 9),
            {"test": 0},
            None,
            "data.test must be above 0",
        ),
        (
            numbered(8, np.arange(8) // 4),
            {},
            None,
            "data.server = 0.05 of the 8 .* leaves none",
        ),
        (numbered(5, np.arange(5)), {}, None, "data.test = 0.1 of the 5 training examples"),
    ],
)
def test_sources_that_do_not_work(source, config, clients, message):
    with pytest.raises(UserError, match=message):
        federate(source, DataConfig(**config), deal=None, seed=0, clients=clients)


def test_many_clients():
    config = DataConfig(synthetic=SyntheticConfig(size_mean=0, size_std=0.5, size_min=4, dimension=2))
    source = load_source(config, clients=20_000, seed=0)
    data = federate(source, config, deal=None, seed=0)
    assert len(data.population) == 20_000
    assert data.population.sizes.min() >= 1
    total = data.population.sizes.sum() + len(data.server) + len(data.validation) + len(data.test)
    assert total == len(source.train)
    assert data.population.label_counts().sum() == data.population.sizes.sum()
