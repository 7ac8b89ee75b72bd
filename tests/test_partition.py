from __future__ import annotations

import argparse

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from scipy.optimize import linprog

from flsel.data.heterogeneity import label_entropy
from flsel.errors import UserError
from flsel.partition import (
    IID,
    BySize,
    Dirichlet,
    DirichletPerClass,
    FedCorDirichlet,
    FedGenDirichlet,
    FedGSLogNormal,
    FedPNSMix,
    HicsDirichlet,
    LabelLimited,
    Natural,
    Partition,
    Shards,
)
from flsel.partition.dirichlet import _take
from flsel.partition.fedcor import least_norm_sizes
from flsel.partition.fedgs import _log_normal_sizes
from flsel.rng import generator

TEN_CLASSES = np.repeat(np.arange(10), 600)
SHUFFLED = np.random.default_rng(0).permutation(TEN_CLASSES)

# Schemes that deal every sample, with arguments that fit any small dataset.
COMPLETE = [
    IID(),
    BySize(),
    BySize(sizes=(1.0, 5.0)),
    Shards(per_client=1),
    Dirichlet(alpha=0.1),
    Dirichlet(alpha=2.0, sizes=(1.0, 2.0, 3.0)),
    DirichletPerClass(alpha=0.3, min_size=0),
    FedGSLogNormal(alpha=20.0),
]
PARTIAL = [
    HicsDirichlet(alphas=(0.5,)),
    HicsDirichlet(alphas=(0.01, 10.0)),
    FedPNSMix(iid_share=0.4, labels_per_client=1, samples=3),
    FedPNSMix(iid_share=0.5, labels_per_client=2, samples=4),
    FedGenDirichlet(alpha=1.0, min_size=0),
]
PAPERS = [
    (Shards(2), 100),
    (Shards(1), 100),
    (Dirichlet(0.1), 100),
    (DirichletPerClass(0.5), 100),
    (HicsDirichlet((0.001, 0.002, 0.005, 0.01, 0.5)), 50),
    (HicsDirichlet((0.001,) * 5), 50),
    (FedCorDirichlet(0.2), 100),
    (FedGSLogNormal(1.75), 100),
    (LabelLimited(2), 100),
    (FedPNSMix(0.3, 2, 50), 50),
    (FedGenDirichlet(0.1), 20),
]


def counts_of(shards: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[shard], minlength=labels.max() + 1) for shard in shards])


def sizes_of(shards: list[np.ndarray]) -> np.ndarray:
    return np.array([len(shard) for shard in shards])


@st.composite
def datasets(draw: st.DrawFn) -> np.ndarray:
    classes = draw(st.integers(1, 6))
    samples = draw(st.integers(24, 120))
    return np.random.default_rng(draw(st.integers(0, 99))).integers(classes, size=samples)


@pytest.mark.parametrize("partition", COMPLETE, ids=repr)
@given(labels=datasets(), clients=st.integers(1, 12), seed=st.integers(0, 999))
@settings(max_examples=25)
def test_complete_schemes_deal_every_sample_once(
    partition: Partition, labels: np.ndarray, clients: int, seed: int
) -> None:
    shards = partition(labels, clients, generator(seed, "partition"))
    assert len(shards) == clients
    assert all(shard.dtype == np.int64 and (np.diff(shard) > 0).all() for shard in shards)
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))


@pytest.mark.parametrize("partition", PARTIAL, ids=repr)
@given(seed=st.integers(0, 999))
@settings(max_examples=25)
def test_partial_schemes_deal_no_sample_twice(partition: Partition, seed: int) -> None:
    shards = partition(SHUFFLED[:300], 6, generator(seed, "partition"))
    positions = np.concatenate(shards)
    assert len(shards) == 6
    assert len(np.unique(positions)) == len(positions) <= 300
    assert positions.min() >= 0
    assert positions.max() < 300


@given(labels=datasets(), labels_per_client=st.integers(1, 6), clients=st.integers(1, 12))
@settings(max_examples=50)
def test_label_limited_deals_every_sample_once_or_says_why_not(
    labels: np.ndarray, labels_per_client: int, clients: int
) -> None:
    occurring = len(np.unique(labels))
    partition = LabelLimited(labels_per_client)
    if labels_per_client > occurring or labels_per_client * clients < occurring:
        with pytest.raises(UserError, match=r"partition\.labels_per_client must be from"):
            partition(labels, clients, generator(0, "partition"))
        return
    shards = partition(labels, clients, generator(0, "partition"))
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))
    assert (counts_of(shards, labels) > 0).sum(axis=1).max() <= labels_per_client


@pytest.mark.parametrize(("partition", "clients"), PAPERS, ids=lambda value: repr(value))
def test_papers_settings_are_reproducible_and_depend_on_order_of_labels_only(
    partition: Partition, clients: int
) -> None:
    first = partition(SHUFFLED, clients, generator(1, "partition"))
    again = partition(SHUFFLED, clients, generator(1, "partition"))
    renamed = partition(SHUFFLED * 7 + 3, clients, generator(1, "partition"))
    other = partition(SHUFFLED, clients, generator(2, "partition"))
    assert all(map(np.array_equal, first, again))
    assert all(map(np.array_equal, first, renamed))
    assert not all(map(np.array_equal, first, other))
    assert min(map(len, first)) > 0


@given(labels=datasets(), clients=st.integers(1, 12), per_client=st.integers(1, 2))
@settings(max_examples=40)
def test_balanced_schemes_are_balanced(labels: np.ndarray, clients: int, per_client: int) -> None:
    for partition, slack in [(IID(), 1), (Dirichlet(0.1), 1), (Shards(per_client), per_client)]:
        assert np.ptp(sizes_of(partition(labels, clients, generator(0, "partition")))) <= slack


def test_given_sizes_are_repeated_over_the_clients() -> None:
    for partition in (BySize(sizes=(1.0, 2.0, 3.0)), Dirichlet(1.0, sizes=(10.0, 20.0, 30.0))):
        shards = partition(TEN_CLASSES, 6, generator(0, "partition"))
        np.testing.assert_array_equal(sizes_of(shards), [500, 1000, 1500] * 2)


def test_by_size_draws_log_normal_sizes_and_leaves_the_label_mix() -> None:
    labels = np.tile(np.arange(4), 100_000)
    shards = BySize(sigma=0.5)(labels, 500, generator(0, "partition"))
    assert np.log(sizes_of(shards)).std() == pytest.approx(0.5, abs=0.05)
    assert label_entropy(counts_of(shards, labels)).min() > np.log(4) - 0.03
    assert np.ptp(sizes_of(BySize(sigma=0.0)(labels, 500, generator(0, "partition")))) == 0


@pytest.mark.parametrize("scheme", [Dirichlet, FedCorDirichlet])
def test_entropy_follows_alpha_per_client(scheme: type[Dirichlet] | type[FedCorDirichlet]) -> None:
    def entropy(alpha: float) -> np.ndarray:
        shards = scheme(alpha)(SHUFFLED, 100, generator(0, "partition"))
        return label_entropy(counts_of(shards, SHUFFLED))

    assert np.median(entropy(1e-4)) < 0.1
    assert np.median(entropy(1e-4)) < np.median(entropy(5.0)) < np.median(entropy(1e5))
    assert np.median(entropy(1e5)) > np.log(10) - 0.12  # what 60 random samples leave


def test_entropy_follows_alpha_per_class() -> None:
    def entropy(alpha: float) -> np.ndarray:
        shards = DirichletPerClass(alpha, min_size=1)(SHUFFLED, 5, generator(0, "partition"))
        return label_entropy(counts_of(shards, SHUFFLED))

    assert entropy(0.05).mean() < 1.3 < 1.8 < entropy(1.0).mean()
    assert entropy(1e6).min() > np.log(10) - 0.01


def test_drawing_all_at_once_equals_drawing_one_by_one() -> None:
    # One by one from (0.7, 0.3) with one sample of the first label: both of the second iff 0.3 * 0.3.
    rng = generator(0, "test")
    draws = [_take(np.array([0.7, 0.3]), 2, np.array([1, 2]), rng) for _ in range(10_000)]
    both_second = np.mean([taken[0] == 0 for taken in draws])
    assert both_second == pytest.approx(0.09, abs=0.012)
    assert {tuple(taken) for taken in draws} == {(1, 1), (0, 2)}


def test_a_mix_without_mass_on_what_is_left_draws_from_the_rest() -> None:
    taken = _take(np.array([1.0, 0.0, 0.0]), 5, np.array([2, 3, 9]), generator(0, "test"))
    assert taken[0] == 2
    assert taken.sum() == 5


def test_shards_give_few_labels_and_equal_sizes() -> None:
    for per_client in (1, 2):
        counts = counts_of(Shards(per_client)(SHUFFLED, 100, generator(3, "partition")), SHUFFLED)
        assert (counts.sum(axis=1) == 60).all()
        assert (counts > 0).sum(axis=1).max() == per_client


def test_per_class_redraws_until_everyone_has_the_minimum() -> None:
    shards = DirichletPerClass(alpha=0.5, min_size=25)(SHUFFLED, 50, generator(0, "partition"))
    assert sizes_of(shards).min() >= 25


@pytest.mark.parametrize("alphas", [(0.001, 0.01, 0.1, 0.5, 1.0), (1e-30,) * 5])
def test_hics_blocks_are_disjoint_equal_and_capped(alphas: tuple[float, ...]) -> None:
    counts = counts_of(HicsDirichlet(alphas)(SHUFFLED, 50, generator(0, "partition")), SHUFFLED)
    blocks = counts.reshape(5, 10, 10)
    assert (blocks.sum(axis=1) == 120).all()  # 6000 // 5 // 10 of every label
    sizes = blocks.sum(axis=2)
    assert sizes.min() >= 0.2 * 120
    assert sizes.max() < 120 + 120  # below the average before its last label, of at most 120 samples


def test_hics_entropy_rises_with_alpha() -> None:
    alphas = (0.001, 0.01, 0.1, 1.0, 100.0)
    counts = counts_of(HicsDirichlet(alphas)(SHUFFLED, 50, generator(0, "partition")), SHUFFLED)
    entropies = label_entropy(counts).reshape(5, 10).mean(axis=1)
    assert entropies[0] < 0.8
    assert entropies[0] < entropies[2] < entropies[4]


@pytest.mark.parametrize(
    ("per_class", "smallest", "largest"),
    [
        (6000, [396, 272, 196, 356, 350], [1394, 1034, 1296, 2334, 853]),
        (5000, [330, 227, 164, 297, 292], [1161, 862, 1080, 1945, 711]),
    ],
)
def test_fedcor_sizes_are_those_of_the_paper_for_its_seeds(
    per_class: int, smallest: list[int], largest: list[int]
) -> None:
    # FashionMNIST and CIFAR10; seeds 1 to 5 of the reference code, which draws from the legacy generator.
    totals = np.full(10, per_class)
    for seed, low, high in zip(range(1, 6), smallest, largest, strict=True):
        mixes = np.random.RandomState(seed).dirichlet(np.full(10, 0.02), size=100)
        sizes = least_norm_sizes(mixes, totals)
        assert sizes is not None
        assert round(sizes.min()) == low
        assert round(sizes.max()) == high


@given(seed=st.integers(0, 10_000), classes=st.integers(1, 5), alpha=st.sampled_from([0.05, 0.5, 5.0]))
@settings(max_examples=60)
def test_fedcor_sizes_are_feasible_and_of_least_norm(seed: int, classes: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    mixes = rng.dirichlet(np.full(classes, alpha), size=15)
    totals = rng.integers(20, 200, size=classes)
    sizes = least_norm_sizes(mixes, totals)
    program = linprog(np.zeros(15), A_eq=mixes.T, b_eq=totals)
    assert (sizes is not None) == (program.status == 0)
    if sizes is None:
        return
    assert sizes.min() >= 0
    np.testing.assert_allclose(mixes.T @ sizes, totals, rtol=1e-4)
    # x is the feasible point of least norm iff x'z >= x'x for every feasible z (variational inequality).
    lowest = linprog(sizes, A_eq=mixes.T, b_eq=mixes.T @ sizes).fun
    assert lowest >= sizes @ sizes * (1 - 1e-5)


def test_fedcor_deals_every_sample_once_in_the_drawn_mixes() -> None:
    shards = FedCorDirichlet(0.2)(SHUFFLED, 100, generator(0, "partition"))
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(6000))
    assert 1.5 < (counts_of(shards, SHUFFLED) > 1).sum(axis=1).mean() < 4


@given(total=st.integers(1, 5000), clients=st.integers(1, 300), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_fedgs_sizes_sum_to_the_samples(total: int, clients: int, seed: int) -> None:
    clients = min(clients, total)
    sizes = _log_normal_sizes(total, clients, np.random.default_rng(seed))
    assert sizes.sum() == total
    assert sizes.min() >= 1


def test_fedgs_log_normal_is_like_the_papers_cifar10() -> None:
    # exp(ln 500 - 1/2) = 303 samples in the middle; 6.5 labels on average in the reference code's partition.
    labels = np.repeat(np.arange(10), 5000)
    counts = [
        counts_of(FedGSLogNormal()(labels, 100, generator(seed, "partition")), labels) for seed in range(5)
    ]
    sizes = np.array([table.sum(axis=1) for table in counts])
    assert 300 < np.median(sizes) < 450
    assert sizes.max(axis=1).min() > 1200
    assert sizes.max() < 6000
    held = np.array([(table > 0).sum(axis=1) for table in counts])
    assert 6.0 < held.mean() < 7.0


def test_label_limited_is_balanced_where_labels_are() -> None:
    counts = counts_of(LabelLimited(2)(SHUFFLED, 100, generator(0, "partition")), SHUFFLED)
    assert (counts.sum(axis=1) == 60).all()
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert ((counts > 0).sum(axis=0) == 20).all()


@pytest.mark.parametrize("labels_per_client", [1, 2])
def test_fedpns_mixes_iid_clients_and_clients_with_few_labels(labels_per_client: int) -> None:
    partition = FedPNSMix(iid_share=0.3, labels_per_client=labels_per_client, samples=100)
    counts = counts_of(partition(SHUFFLED, 50, generator(0, "partition")), SHUFFLED)
    held = (counts > 0).sum(axis=1)
    assert (counts.sum(axis=1) == 100).all()
    assert (held[:15] == 10).all()
    assert held[15:].max() <= 2 * labels_per_client  # a shard can lie across one border
    assert held[15:].mean() < labels_per_client + 0.5


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (IID(), 0, "clients must be >= 1, got 0"),
        (IID(), 6001, "clients must be at most the 6000 training examples, got 6001"),
        (Shards(200), 100, "partition.per_client must be at most 60 for 100 clients"),
        (DirichletPerClass(min_size=61), 100, "partition.min_size must be at most 60 for 100 clients"),
        (DirichletPerClass(1e-4), 100, "raise partition.alpha or lower partition.min_size"),
        (HicsDirichlet((0.1, 1.0)), 5, "clients must be a multiple of 2, the number of partition.alphas"),
        (HicsDirichlet((0.001,)), 50, "use larger or more partition.alphas, or fewer clients"),
        (FedCorDirichlet(), 5, "raise partition.alpha or clients"),
        (FedGSLogNormal(1e-3), 3, "raise partition.alpha or clients"),
        (LabelLimited(11), 10, "partition.labels_per_client must be from 1 to 10"),
        (LabelLimited(1), 4, "partition.labels_per_client must be from 3 to 10"),
        (FedPNSMix(), 31, "partition.samples must be at most 193 for 31 clients"),
        (Natural(), 10, "needs a dataset that has natural clients"),
    ],
    ids=repr,
)
def test_what_cannot_be_dealt_is_refused_in_one_sentence(
    partition: Partition, clients: int, message: str
) -> None:
    with pytest.raises(UserError) as raised:
        partition(SHUFFLED, clients, generator(0, "partition"))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def parse(*arguments: str) -> Partition:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--partition", type=Partition)
    partition: Partition = parser.instantiate(parser.parse_args(list(arguments))).partition
    return partition


def test_config_makes_partitions_by_short_name_and_by_import_path() -> None:
    assert parse("--partition", "Dirichlet", "--partition.alpha", "0.3") == Dirichlet(0.3)
    assert parse("--partition=HicsDirichlet", "--partition.alphas=[0.1,1]") == HicsDirichlet((0.1, 1.0))
    assert parse("--partition=BySize", "--partition.sizes=[1,2]") == BySize(sizes=(1.0, 2.0))
    assert parse(
        "--partition", '{"class_path": "flsel.partition.Shards", "init_args": {"per_client": 1}}'
    ) == (Shards(1))


def test_config_refuses_unknown_keys_and_values_out_of_range() -> None:
    with pytest.raises(argparse.ArgumentError, match="'alpa' is not accepted"):
        parse("--partition=Dirichlet", "--partition.alpa=0.3")
    with pytest.raises(argparse.ArgumentError, match="alpha"):
        parse("--partition=Dirichlet", "--partition.alpha=much")
    with pytest.raises(UserError, match="alpha must be a finite number > 0"):
        parse("--partition=Dirichlet", "--partition.alpha=-1")
