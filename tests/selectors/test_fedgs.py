"""FedGS: what each graph asks for, when, and what it makes of it; balance of the counts; edge cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import plain_views
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flsel.errors import UserError
from flsel.metrics import Ledger
from flsel.partition import Dirichlet, FedGSLogNormal, FedPNSMix, Shards
from flsel.selector import Need, View
from flsel.selectors import _sspp
from flsel.selectors._graph import EPSILON, SIGMA2, adjacency, graph_distances, shortest_paths, similarity
from flsel.selectors.fedgs import FedGS


class Federation:
    """Answers label counts and models from tables; notes who trained."""

    def __init__(self, labels: Sequence[Sequence[int]] = (), models: Sequence[Sequence[float]] = ()) -> None:
        self.counts = torch.tensor(labels)
        self.models = torch.tensor(models, dtype=torch.float32)
        self.trained: list[list[int]] = []

    def labels(self):
        return self.counts

    def true_models(self):
        return torch.tensor(MODELS, dtype=torch.float64)

    def shadow(self, clients):
        self.trained.append(list(clients))
        return {"w": self.models[list(clients)]}

    def noise_outputs(self, models):
        return models["w"].double() ** 2


def see(federation: Federation, selector: FedGS, clients_per_round: int, clients: int = 6, **changes) -> View:
    sizes = changes.pop("sizes", [10] * clients)
    now = plain_views.view(sizes, clients_per_round, needs=selector.needs, answers=federation, **changes)
    return replace(now, params={"w": torch.ones(2)})


def fresh(selector: FedGS, sizes: Sequence[int] = (10,) * 6) -> FedGS:
    selector.reset(torch.tensor(sizes), 3)
    return selector


def graph_of(features, *, clip: bool = False, variant="scaled", diagonal: bool = True) -> np.ndarray:
    u = np.asarray(features, dtype=float)
    given = u @ u.T
    if not diagonal:
        np.fill_diagonal(given, np.nan)
    v = similarity(given, clip=clip, variant=variant)
    r = adjacency(v, epsilon=EPSILON[variant], sigma2=SIGMA2[variant], variant=variant)
    return graph_distances(shortest_paths(r), gap=1.0, variant=variant)


LABELS = [[9, 1, 0], [8, 2, 0], [1, 9, 0], [0, 5, 5], [2, 0, 18], [3, 3, 4]]
SHARES = [[count / sum(row) for count in row] for row in LABELS]
MODELS = [[1.0, 2.0], [1.1, 2.2], [3.0, 1.2], [2.0, -1.0], [1.0, 1.0], [0.5, 1.5]]
CLOSE = {"atol": 1e-9, "rtol": 1e-9}


@pytest.mark.parametrize("variant", ["scaled", "normalised", "paper", "reference"])
def test_the_graph_of_labels(variant):
    selector, federation = fresh(FedGS(variant=variant)), Federation(LABELS)
    selector.select(see(federation, selector, 2, absent=[3]))
    np.testing.assert_allclose(selector.graph_, graph_of(SHARES, variant=variant), **CLOSE)


@pytest.mark.parametrize("variant", ["normalised", "reference"])
def test_the_secure_graph_is_that_of_labels_without_the_diagonal(variant):
    selector, federation = fresh(FedGS(graph="secure", variant=variant)), Federation(LABELS)
    now = see(federation, selector, 2)
    selector.select(now)
    # The reference's cosines are computed by clients that scale their vectors, and its diagonal is zero.
    expected = graph_of(SHARES, variant=variant, diagonal=variant == "reference")
    np.testing.assert_allclose(selector.graph_, expected, atol=1e-6)
    assert now.ledger == Ledger(vars(_sspp.traffic(6, 3)))


def test_the_graph_of_updates():
    selector, federation = fresh(FedGS(graph="cosine")), Federation(models=MODELS)
    selector.select(see(federation, selector, 2))
    updates = np.float32(MODELS) - 1
    assert not updates[4].any()
    np.testing.assert_allclose(selector.graph_, graph_of(updates, clip=True), **CLOSE)
    np.testing.assert_allclose(np.delete(selector.graph_[4].numpy(), 4), 1.0)  # A zero update has no edge.


def test_the_graph_of_outputs_on_noise():
    selector, federation = fresh(FedGS(graph="functional")), Federation(models=MODELS)
    selector.select(see(federation, selector, 2))
    np.testing.assert_allclose(selector.graph_, graph_of(np.float32(MODELS) ** 2, clip=True), atol=1e-6)


def test_the_graph_of_models_after_training():
    selector, federation = fresh(FedGS(graph="optimal")), Federation(models=MODELS)
    selector.select(see(federation, selector, 2))
    np.testing.assert_allclose(selector.graph_, graph_of(np.float32(MODELS)), **CLOSE)


def test_the_graph_of_the_models_that_labelled_the_data():
    selector, federation = fresh(FedGS(graph="true_models")), Federation(models=MODELS)
    selector.select(see(federation, selector, 2, absent=[3]))
    np.testing.assert_allclose(selector.graph_, graph_of(MODELS), **CLOSE)


def test_the_graph_of_given_features(tmp_path):
    path = tmp_path / "optimal.npy"
    np.save(path, np.array(MODELS))
    selector = fresh(FedGS(graph=str(path)))
    assert selector.needs == Need.NONE
    selector.select(see(Federation(), selector, 2))
    np.testing.assert_allclose(selector.graph_, graph_of(MODELS), **CLOSE)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 2)), r"must hold numbers of shape \[6, d\].*got float64 of shape \[5, 2\]"),
        (np.zeros(6), r"got float64 of shape \[6\]"),
        (np.full((6, 2), "a"), "got <U1 of shape"),
        (np.full((6, 2), None), r"must be a \.npy file"),
    ],
)
def test_features_that_do_not_fit(tmp_path, array, message):
    path = tmp_path / "features.npy"
    np.save(path, array)
    with pytest.raises(UserError, match=message):
        fresh(FedGS(graph=str(path)))


@pytest.mark.parametrize("kind", ["empty", "text", "npz"])
def test_a_file_that_is_no_array(tmp_path, kind):
    path = tmp_path / f"features.{kind}"
    if kind == "npz":
        np.savez(path, features=np.array(MODELS))
    else:
        path.write_text("w,b" if kind == "text" else "")
    with pytest.raises(UserError, match=r"graph .* must be a \.npy file"):
        fresh(FedGS(graph=str(path)))


def test_clients_train_once_when_they_are_first_reached():
    selector, federation = fresh(FedGS(graph="cosine")), Federation(models=MODELS)
    selector.select(see(federation, selector, 2, absent=[0, 3]))
    first = selector.graph_.clone()
    assert federation.trained == [[1, 2, 4, 5]]
    np.testing.assert_array_equal(first[0], [0, 1, 1, 1, 1, 1])
    known = [1, 2, 4, 5]
    among = graph_of(np.float32(MODELS)[known] - 1, clip=True)
    np.testing.assert_allclose(first[known][:, known], among, **CLOSE)
    selector.select(see(federation, selector, 2, absent=[0, 3]))
    assert len(federation.trained) == 1
    assert torch.equal(selector.graph_, first)
    selector.select(see(federation, selector, 2, absent=[1, 3]))
    assert federation.trained[1:] == [[0]]
    selector.select(see(federation, selector, 2))
    assert federation.trained[2:] == [[3]]
    np.testing.assert_allclose(selector.graph_, graph_of(np.float32(MODELS) - 1, clip=True), **CLOSE)
    assert selector.feature_.shape == (6, 0)


def test_many_clients_train_in_parts():
    models = np.random.default_rng(0).normal(size=(70, 2))
    selector, federation = fresh(FedGS(graph="cosine"), (10,) * 70), Federation(models=models.tolist())
    selector.select(see(federation, selector, 2, clients=70))
    assert [len(part) for part in federation.trained] == [32, 32, 6]
    np.testing.assert_allclose(selector.graph_, graph_of(np.float32(models) - 1, clip=True), atol=1e-6)


def test_updates_that_are_not_finite_have_no_edge_and_are_not_asked_again():
    models = [list(row) for row in MODELS]
    models[1], models[2] = [math.nan, 0.0], [math.inf, 1.0]
    selector, federation = fresh(FedGS(graph="cosine", gap=2.0)), Federation(models=models)
    for _ in range(3):
        assert len(selector.select(see(federation, selector, 2))) == 2
    assert len(federation.trained) == 1
    assert selector.graph_.isfinite().all()
    np.testing.assert_array_equal(np.delete(selector.graph_[1].numpy(), 1), 2.0)


@settings(max_examples=25)
@given(
    clients=st.integers(1, 12),
    clients_per_round=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    share=st.floats(0.2, 1.0),
)
def test_alpha_zero_takes_the_smallest_counts(clients, clients_per_round, seed, share):
    selector, rng = fresh(FedGS(alpha=0.0), (10,) * clients), np.random.default_rng(seed)
    clients_per_round = min(clients_per_round, clients)
    assert selector.needs == Need.NONE
    for round in range(6):
        absent = np.flatnonzero(rng.random(clients) > share)[: clients - 1].tolist()
        before = selector.count_.clone()
        plan = selector.select(
            see(Federation(), selector, clients_per_round, clients, seed=round, absent=absent)
        )
        chosen = plain_views.chosen(plan)
        pool = [k for k in range(clients) if k not in absent]
        assert len(set(chosen)) == min(clients_per_round, len(pool))
        assert set(chosen) <= set(pool)
        left = [int(before[k]) for k in pool if k not in chosen]
        assert max(int(before[k]) for k in chosen) <= min(left, default=10**9)
        before[chosen] += 1
        assert torch.equal(selector.count_, before)


def test_ties_are_broken_at_random():
    seen = set()
    for seed in range(30):
        selector = fresh(FedGS(alpha=0.0))
        seen |= {tuple(plain_views.chosen(selector.select(see(Federation(), selector, 2, seed=seed))))}
    assert {k for pair in seen for k in pair} == set(range(6))


def test_distant_clients_are_chosen_together_and_counts_stay_even():
    labels = [[10, 0, 0]] * 2 + [[0, 10, 0]] * 2 + [[0, 0, 10]] * 2
    selector, federation = fresh(FedGS(alpha=1.0, gap=2.0)), Federation(labels)
    for round in range(8):
        chosen = plain_views.chosen(selector.select(see(federation, selector, 3, seed=round)))
        assert sorted(k // 2 for k in chosen) == [0, 1, 2]
        assert int(selector.count_.max() - selector.count_.min()) <= 1


@pytest.mark.parametrize(
    "partition",
    [FedGSLogNormal(), Dirichlet(0.1), Dirichlet(0.5), Shards(2), FedPNSMix(samples=80)],
    ids=repr,
)
@pytest.mark.parametrize("presence", [0.5, 1.0])
def test_the_default_graph_makes_cohorts_more_diverse_than_no_graph(partition, presence):
    labels, rng = np.repeat(np.arange(10), 600), np.random.default_rng(7)
    counts = np.stack(
        [np.bincount(labels[part], minlength=10) for part in partition(labels, 60, np.random.default_rng(1))]
    )
    sizes, away = counts.sum(1).tolist(), rng.random((40, 60)) > presence
    apart = {}
    for alpha in (0.0, 1.0):
        selector, federation, far = fresh(FedGS(alpha), sizes), Federation(counts.tolist()), []
        for round in range(40):
            absent = np.flatnonzero(away[round]).tolist()
            now = see(federation, selector, 8, 60, seed=round, sizes=sizes, absent=absent)
            cohort = counts[plain_views.chosen(selector.select(now))].sum(0)
            far.append(np.abs(cohort / cohort.sum() - counts.sum(0) / counts.sum()).sum() / 2)
        apart[alpha] = np.mean(far)
    assert apart[1.0] < 0.8 * apart[0.0]


def test_counts_grow_at_selection_even_if_the_update_is_lost():
    selector = fresh(FedGS(alpha=0.0))
    for round in range(6):
        selector.select(see(Federation(), selector, 2, seed=round))
    assert selector.count_.tolist() == [2] * 6


def test_a_limit_on_moves_counts_work_and_not_time():
    labels = np.random.default_rng(0).integers(0, 9, (300, 3)).tolist()
    plans = [
        fresh(FedGS(moves=2, restarts=1000), (10,) * 300).select(
            see(Federation(labels), FedGS(), 20, clients=300)
        )
        for _ in range(2)
    ]
    assert len(plans[0]) == 20
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("graph", "needs"),
    [
        ("labels", Need.LABELS),
        ("secure", Need.LABELS),
        ("true_models", Need.TRUE_MODELS),
        ("cosine", Need.SHADOW),
        ("optimal", Need.SHADOW),
        ("functional", Need.SHADOW | Need.NOISE_OUTPUTS),
    ],
)
def test_needs_follow_the_graph(graph, needs):
    assert FedGS(graph=graph).needs == needs
    assert FedGS(0.0, graph).needs == Need.NONE


def test_a_hundred_thousand_clients_without_a_graph():
    selector = fresh(FedGS(alpha=0.0), (10,) * 100_000)
    now = see(Federation(), selector, 100, clients=100_000)
    assert len(set(selector.select(now).paths)) == 100


def test_more_clients_than_a_graph_is_built_for():
    sizes = torch.ones(20_001, dtype=torch.int64)
    with pytest.raises(
        UserError, match=r"alpha must be 0, which needs no graph, for more than 20,000 clients"
    ):
        FedGS().reset(sizes, 10)
    FedGS(alpha=0.0).reset(sizes, 10)
