"""HiCS-FL: estimated entropies, distances, clusters, warm-up, annealed draws and odd reports."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import assert_frequencies, chosen, inclusion, view
from scipy.special import softmax
from scipy.stats import chisquare

from flsel.errors import UserError
from flsel.rng import generator
from flsel.selector import Need, Plan, Updates
from flsel.selectors import _hics
from flsel.selectors._hics import (
    annealed,
    auto_temperature,
    client_distances,
    client_temperatures,
    entropy,
    group,
    layer_of,
    log_weights,
    mean_entropies,
    signal_of,
)
from flsel.selectors.hics import HiCS

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
GATE = json.loads((GOLDEN / "06_hics_round_with_gate.json").read_text())["cases"]
ENTROPY = json.loads((GOLDEN / "01_hics_entropy.json").read_text())


def at(sizes, clients_per_round, round=0, rounds=1000, **more):
    return replace(view(sizes, clients_per_round, needs=Need.HEAD, **more), round=round, rounds=rounds)


def head(bias, weight=None):
    bias = torch.as_tensor(bias, dtype=torch.float64)
    weight = bias[:, :, None] if weight is None else torch.as_tensor(weight, dtype=torch.float64)
    return {"weight": weight, "bias": bias}


def updates(clients, answer):
    ones = torch.ones(len(clients), dtype=torch.int64)
    return Updates(Plan.star(clients), ones, ones, Need.HEAD, {"head": answer})


def measured(selector, answer):
    """Give every client the update of the output layer in its row."""
    count, classes = answer["weight"].shape[:2]
    selector.reset(torch.ones(count, dtype=torch.int64), classes)
    selector.asked_[:] = True
    selector.observe(at([1] * count, count), updates(range(count), answer), torch.ones(count))
    return selector


def labels_to_update(alphas, classes=6, seed=0):
    """Bias updates as Eq. 6 has them: proportional to the label shares minus their mean."""
    rng = generator(seed, "labels")
    return np.stack([0.01 * (rng.dirichlet([a] * classes) - 1 / classes) for a in alphas])


@pytest.mark.parametrize(("signal", "expected"), [("bias", "H_bias_mode"), ("weight_mean", "H_weight_mode")])
def test_entropies_are_the_reference_ones(signal, expected):
    given_, told = ENTROPY["inputs"], ENTROPY["outputs"]
    values = signal_of(head(given_["delta_b"], given_["delta_W"]), signal).numpy()
    for temperature in given_["temperatures"]:
        np.testing.assert_allclose(entropy(values, temperature), told[expected][str(temperature)], atol=1e-10)


@pytest.mark.parametrize("case", ENTROPY["edge_cases"], ids=lambda case: case["name"])
def test_entropies_of_odd_updates(case):
    expected = case["expected"] if "expected" in case else case["expected_stable"]
    value = entropy(np.array([case["delta_b"]]), case["T"])
    np.testing.assert_allclose(value, [expected], atol=case.get("tolerance", 1e-10))


def test_distances_are_the_papers_and_the_codes_up_to_scale():
    file = json.loads((GOLDEN / "02_hics_distance.json").read_text())
    told = file["inputs"]
    bias = np.array(told["delta_b"])
    entropies = np.array(told["H_bias_mode"])
    np.testing.assert_allclose(
        client_distances(bias, entropies, 0.1), file["outputs"]["D_paper_lambda_0_1_bias_only"], atol=1e-9
    )
    layer = layer_of(head(bias, told["delta_W"])).numpy()
    for signal, values, name in (
        (bias, told["H_bias_mode"], "D_code_bias_only"),
        (layer, told["H_weight_mode"], "D_code_weight_and_bias_H_from_row_mean"),
    ):
        for code, expected in file["outputs"][name].items():
            lam = 1 / (1 + float(code))
            np.testing.assert_allclose(
                client_distances(signal, np.array(values), lam) / lam, expected, atol=1e-9
            )


def test_a_round_of_the_reference_has_these_clusters_and_probabilities():
    case = json.loads((GOLDEN / "06_hics_round_with_gate.json").read_text())["cases"][0]
    answer = head(case["delta_b"], case["delta_W"])
    entropies = entropy(signal_of(answer, "layer").numpy(), case["T"])
    np.testing.assert_allclose(entropies, case["H"], atol=1e-10)
    np.testing.assert_allclose(entropies.var(), case["variance_of_H_population"], rtol=1e-8)
    lam, gamma = 1 / (1 + case["lambda_code"]), 4 * (1 - 21 / 200)
    labels = group(
        layer_of(answer).numpy(), entropies, lam=lam, count=4, linkage="rows", rng=generator(0, "test")
    )
    means = mean_entropies(entropies, labels)
    sizes = np.array(case["n_samples"])
    pi = softmax(gamma * means)
    weights = [pi[labels[k]] * sizes[k] / sizes[labels == labels[k]].sum() for k in range(len(sizes))]
    selector = HiCS(case["T"], lam, case["gamma0"], case["M"], signal="layer")
    measured(selector, answer)

    def draw(seed):
        return chosen(selector.select(at(sizes.tolist(), 2, 20, 200, seed=seed)))

    assert_frequencies(draw, inclusion(weights, 2), times=300)


def test_a_temperature_of_ones_own_is_a_share_of_the_largest_minus_the_mean_entry():
    rows = np.array([[3.0, -1.0, 1.0], [0.0, 0.0, 0.0], [2.0, 2.0, -4.0], [1e-9, 0.0, -1e-9]])
    np.testing.assert_allclose(client_temperatures(rows, 0.5), [1.0, 1.0, 1.0, 5e-10])
    by_hand = []
    for row in rows:
        peak = max(row) - sum(row) / 3
        q = softmax(row / (0.25 * peak)) if peak else np.full(3, 1 / 3)
        by_hand.append(-sum(p * math.log(p) for p in q if p > 0))
    np.testing.assert_allclose(entropy(rows, client_temperatures(rows, 0.25)), by_hand)


@given(st.integers(0, 10**6), st.lists(st.floats(1e-6, 1e6), min_size=5, max_size=5))
def test_with_temperatures_of_their_own_lengths_of_updates_do_not_matter(seed, factors):
    update = labels_to_update([0.01, 0.1, 1.0, 10.0, 0.5], seed=seed)
    plain = entropy(update, client_temperatures(update, 0.25))
    longer = update * np.array(factors)[:, None]
    np.testing.assert_allclose(entropy(longer, client_temperatures(longer, 0.25)), plain, atol=1e-9)


def test_a_short_update_does_not_pass_for_balanced_labels_with_temperatures_of_their_own():
    skewed, balanced = np.array([4.0, -1, -1, -1, -1]), np.array([2.0, 1, 0, -1, -2])
    update = np.stack([skewed, skewed / 30, balanced])
    for own, order in ((False, [0, 2, 1]), (True, [0, 1, 2])):
        selector = measured(HiCS(temperature_per_client=own), head(update))
        assert np.argsort(selector._entropies(np.arange(3)), kind="stable").tolist() == order


@pytest.mark.parametrize("keep", [False, True])
def test_the_first_update_is_kept_for_good_where_this_is_asked_for(keep):
    selector, sizes = HiCS(keep_first_update=keep), [1] * 4
    selector.reset(torch.tensor(sizes), 3)
    for turn, clients in enumerate(([0, 1], [1, 2])):
        answer = head(np.eye(3)[[turn] * 2])
        selector.observe(at(sizes, 2, turn), updates(clients, answer), torch.ones(2))
    assert selector.signal_.argmax(1).tolist() == [0, 0 if keep else 1, 1, 0]
    assert selector.measured_.tolist() == [True, True, True, False]


def test_warm_up_in_the_order_of_ids():
    selector, sizes = HiCS(warm_up_by_id=True), [1] * 5
    selector.reset(torch.tensor(sizes), 3)
    met = [chosen(selector.select(at(sizes, 2, round, seed=round))) for round in range(3)]
    assert met == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("case", GATE, ids=lambda case: case["name"])
def test_the_switch_to_clustered_sampling_is_that_of_the_published_code(case):
    answer, sizes = head(case["delta_b"], case["delta_W"]), case["n_samples"]
    lam, count = 1 / (1 + case["lambda_code"]), case["K"]
    selector = HiCS(case["T"], lam, case["gamma0"], case["M"], "layer", clustered_from_variance=0.1)
    measured(selector, answer)
    np.testing.assert_allclose(
        selector._entropies(np.arange(len(sizes))).var(), case["variance_of_H_population"], rtol=1e-8
    )
    times = np.zeros(len(sizes))
    for seed in range(400):
        np.add.at(times, chosen(selector.select(at(sizes, count, 20, 200, seed=seed))), 1)
    if case["branch"] == "hics":
        assert selector.clustered_ == 0
        return
    assert selector.clustered_ == 400
    # Draws of Clustered Sampling: client k comes K p_k times, whatever the strata.
    expected = count * np.array(sizes) / sum(sizes)
    assert np.all(np.abs(times / 400 - expected) < 5 * np.sqrt(expected / 400))


def test_the_switch_draws_unlike_clients_from_different_strata():
    update = np.repeat(np.eye(4) - 0.25, 3, axis=0)
    selector = measured(HiCS(lam=1.0, clustered_from_variance=0.0), head(update))
    for seed in range(20):
        plan = chosen(selector.select(at([1] * 12, 4, 9, seed=seed)))
        assert sorted(k // 3 for k in plan) == [0, 1, 2, 3]
    away = chosen(selector.select(at([1] * 12, 4, 9, absent=[0, 1, 2, 3, 4])))
    assert set(away) <= set(range(5, 12))
    assert len(away) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HiCS(0.5, temperature_per_client=True), "temperature must be auto where every client has"),
        (
            lambda: HiCS(clustered_from_variance=0.1).reset(torch.ones(2001, dtype=torch.int64), 3),
            "clustered_from_variance must be null for more than 2000 clients, got 0.1 and 2001",
        ),
    ],
)
def test_settings_that_do_not_go_together(make, message):
    with pytest.raises(UserError, match=message):
        make()


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.floats(-1, 1))
def test_automatic_temperature_follows_the_scale_and_ignores_shifts(seed, factor, shift):
    update = labels_to_update([0.01, 0.1, 1.0, 10.0, 0.5], seed=seed)
    plain = entropy(update, auto_temperature(update))
    scaled = entropy(update * factor, auto_temperature(update * factor))
    np.testing.assert_allclose(scaled, plain, atol=1e-9)
    np.testing.assert_allclose(auto_temperature(update + shift), auto_temperature(update), rtol=1e-9)
    assert ((plain >= 0) & (plain <= math.log(6) + 1e-12)).all()


def test_automatic_temperature_of_constant_updates():
    assert auto_temperature(np.zeros((3, 4))) == 1.0
    assert auto_temperature(np.array([[0.0, 0, 0, 0], [0.3, -0.1, -0.1, -0.1]])) == pytest.approx(0.25 * 0.3)
    np.testing.assert_allclose(entropy(np.zeros((3, 4)), 1.0), math.log(4))


@given(st.integers(0, 10**6), st.sampled_from(["rows", "condensed"]), st.integers(1, 9), st.randoms())
def test_clusters_do_not_depend_on_the_numbering(seed, linkage, count, random):
    update = labels_to_update([0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 0.2], seed=seed)
    entropies = entropy(update, 0.0015)
    order = random.sample(range(8), 8)
    arguments = {"lam": 0.1, "count": count, "linkage": linkage, "rng": generator(0, "test")}
    plain = group(update, entropies, **arguments)
    renumbered = group(update[order], entropies[order], **arguments)
    assert (
        {frozenset(np.flatnonzero(plain == m)) for m in set(plain)}
        == {frozenset(np.array(order)[renumbered == m]) for m in set(renumbered)}
    )  # fmt: skip
    assert len(set(plain)) == min(count, 8)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), min_size=1, max_size=12),
    st.lists(st.floats(0, 2.3), min_size=4, max_size=4),
    st.floats(0, 1000),
)
def test_weights_are_probabilities_of_eq_10(clients, means, gamma):
    labels, sizes = np.array(clients).T
    means = np.array(means)
    weights = np.exp(log_weights(means, labels, sizes, gamma))
    present = sorted(set(labels.tolist()))
    pi = np.bincount(labels, weights, minlength=4)
    # Below the smallest normal number, about 2e-308, a float keeps fewer digits.
    np.testing.assert_allclose(pi[present], softmax(gamma * means)[present], rtol=1e-9, atol=1e-307)
    for m in present:
        inside = labels == m
        if pi[m] > 1e-290:
            np.testing.assert_allclose(
                weights[inside] / pi[m], sizes[inside] / sizes[inside].sum(), rtol=1e-9
            )


def test_draws_have_the_plackett_luce_probabilities_of_the_papers_loop():
    update = labels_to_update([0.01, 0.01, 100.0, 100.0, 0.01], classes=3)
    selector, sizes = measured(HiCS(0.0025, gamma0=1.0, num_clusters=2), head(update)), [3, 1, 2, 5, 4]
    entropies = entropy(update, 0.0025)
    balanced = np.array([False, False, True, True, False])
    pi = softmax(0.9 * np.array([entropies[~balanced].mean(), entropies[balanced].mean()]))
    weights = np.where(balanced, pi[1] * np.array(sizes) / 7, pi[0] * np.array(sizes) / 8)
    first_then = np.outer(weights / (1 - weights), weights)  # The loop ignores a client drawn again.
    off = ~np.eye(5, dtype=bool)
    assert first_then[off].sum() == pytest.approx(1)
    drawn = np.zeros((5, 5))
    for seed in range(2000):
        first, second = chosen(selector.select(at(sizes, 2, 99, 1000, seed=seed)))
        drawn[first, second] += 1
    assert chisquare(drawn[off], 2000 * first_then[off]).pvalue > 1e-3


def test_annealing_ends_at_zero_in_the_last_round():
    assert annealed(4.0, 0, 200) == pytest.approx(4 * 199 / 200)
    assert annealed(4.0, 99, 200) == pytest.approx(2.0)
    assert annealed(4.0, 199, 200) == 0.0
    assert annealed(4.0, 24, 200, 0.5) == pytest.approx(4 * 0.75)
    assert annealed(4.0, 99, 200, 0.5) == annealed(4.0, 150, 200, 0.5) == 0.0
    update = labels_to_update([0.01, 100.0, 100.0, 100.0], classes=3)
    selector = measured(HiCS(0.0025, gamma0=8.0, num_clusters=2), head(update))
    last = [1 / 2, 1 / 6, 1 / 6, 1 / 6]
    assert_frequencies(
        lambda seed: chosen(selector.select(at([1] * 4, 1, 9, 10, seed=seed))), last, times=300
    )
    early = [chosen(selector.select(at([1] * 4, 1, 4, 1000, seed=seed)))[0] for seed in range(200)]
    assert early.count(0) < 5


def test_a_warm_up_round_is_filled_up_where_new_clients_are_away():
    selector, sizes = HiCS(), [1] * 12
    selector.reset(torch.tensor(sizes), 3)
    selector.observe(
        at(sizes, 4), updates(range(8), head(np.eye(3)[[k % 3 for k in range(8)]])), torch.ones(8)
    )
    selector.asked_[:8] = True
    # Four are new; one of them is there, and seven that are known.
    plan = chosen(selector.select(at(sizes, 4, 2, absent=[0, 9, 10, 11])))
    assert plan[0] == 8
    assert len(set(plan)) == 4
    # Where everybody is there, the last round of the warm-up has the remaining new clients alone.
    assert sorted(chosen(selector.select(at(sizes, 4, 2)))) == [9, 10, 11]


def test_warm_up_meets_everybody_once_in_random_order():
    firsts = set()
    for seed in range(20):
        selector, met = HiCS(), []
        selector.reset(torch.ones(10, dtype=torch.int64), 3)
        for round in range(4):
            now = at([1] * 10, 3, round, seed=seed * 10 + round)
            plan = chosen(selector.select(now))
            assert len(plan) == (3 if round < 3 else 1)
            answer = head(labels_to_update([1.0] * len(plan), classes=3))
            selector.observe(now, updates(plan, answer), torch.ones(len(plan)))
            met += plan
        assert sorted(met) == list(range(10))
        assert len(chosen(selector.select(at([1] * 10, 3, 4)))) == 3
        firsts.add(met[0])
    assert len(firsts) > 3


def test_a_client_that_comes_late_is_first_and_others_fill_the_cohort():
    selector = HiCS()
    selector.reset(torch.ones(5, dtype=torch.int64), 3)
    for round in range(2):
        now = at([1] * 5, 2, round, seed=round, absent=[4])
        plan = chosen(selector.select(now))
        answer = head(labels_to_update([1.0] * 2, classes=3, seed=round))
        selector.observe(now, updates(plan, answer), torch.ones(2))
    for seed in range(10):
        fresh = HiCS()
        fresh.reset(torch.ones(5, dtype=torch.int64), 3)
        fresh.load_state_dict({k: v.clone() for k, v in selector.state_dict().items()})
        plan = chosen(fresh.select(at([1] * 5, 2, 7, seed=seed)))
        assert plan[0] == 4
        assert len(set(plan)) == 2
        assert set(plan) <= set(range(5))


def test_only_participants_are_refreshed():
    before = labels_to_update([0.1] * 4, classes=3)
    selector = measured(HiCS(), head(before))
    new = np.array([[0.5, -0.25, -0.25], [0.0, 0.0, 0.0]])
    selector.observe(at([1] * 4, 2), updates([2, 0], head(new)), torch.ones(2))
    np.testing.assert_array_equal(selector.signal_, [new[1], before[1], new[0], before[3]])


@pytest.mark.parametrize("signal", ["bias", "weight_mean", "layer"])
@pytest.mark.parametrize("report", [math.nan, math.inf, -math.inf, 1e300])
def test_an_update_that_is_no_number_leaves_the_old_one(signal, report):
    before = labels_to_update([0.1] * 3, classes=3)
    selector = measured(HiCS(signal=signal), head(before))
    state = {name: value.clone() for name, value in selector.state_dict().items()}
    now = at([1] * 3, 2)
    broken = np.full((1, 3), report)
    selector.observe(now, updates([1], head(broken)), torch.ones(1))
    assert all(torch.equal(value, state[name]) for name, value in selector.state_dict().items())
    assert len(chosen(selector.select(at([1] * 3, 2, 5)))) == 2


def test_a_client_whose_update_was_lost_counts_as_the_most_balanced():
    update = labels_to_update([0.01, 0.01, 100.0, 0.01], classes=3)
    selector = measured(HiCS(0.0025, gamma0=2.0, num_clusters=2), head(update))
    selector.measured_[3] = False
    low, high = entropy(update, 0.0025)[:2].mean(), entropy(update, 0.0025)[2]
    pi = softmax(2 * (1 - 501 / 1000) * np.array([low, high, high]))
    chance = [pi[0] / 2, pi[0] / 2, pi[1], pi[2]]
    assert_frequencies(
        lambda seed: chosen(selector.select(at([7] * 4, 1, 500, seed=seed))), chance, times=300
    )
    selector.measured_[:] = False
    assert len(set(chosen(selector.select(at([1] * 4, 3, 500))))) == 3


def test_draws_stay_in_the_pool_and_clusters_keep_their_probability():
    update = labels_to_update([0.01, 0.01, 100.0, 100.0], classes=3)
    selector = measured(HiCS(0.0025, gamma0=1.0, num_clusters=2), head(update))
    values = entropy(update, 0.0025)
    pi = softmax(0.5 * np.array([values[:2].mean(), values[2:].mean()]))
    chance = [pi[0] / 2, pi[0] / 2, 0.0, pi[1]]
    assert_frequencies(
        lambda seed: chosen(selector.select(at([1] * 4, 1, 499, absent=[2], seed=seed))), chance, times=300
    )
    assert sorted(chosen(selector.select(at([1] * 4, 3, 499, absent=[0, 2])))) == [1, 3]


@pytest.mark.parametrize("clusters", [1, 2, 5, 50])
def test_any_number_of_clusters(clusters):
    selector = measured(HiCS(num_clusters=clusters), head(labels_to_update([0.1, 1.0, 5.0, 0.1])))
    assert len(set(chosen(selector.select(at([1, 2, 3, 4], 3, 9))))) == 3


def test_steep_preferences_do_not_overflow():
    selector = measured(HiCS(1e-30, gamma0=1e4), head(labels_to_update([0.01, 100.0, 1.0])))
    assert len(set(chosen(selector.select(at([1] * 3, 2, 0))))) == 2


def test_a_model_without_bias_needs_the_weight():
    answer = {"weight": torch.from_numpy(generator(0, "test").normal(size=(2, 3, 4)))}
    with pytest.raises(UserError, match=r'signal must be "weight_mean" for a model .* no bias'):
        measured(HiCS(), answer)
    for signal in ("weight_mean", "layer"):
        selector = measured(HiCS(signal=signal), answer)
        np.testing.assert_allclose(selector.signal_, answer["weight"].mean(2))
    np.testing.assert_allclose(selector.layer_, answer["weight"].flatten(1))


def test_large_populations_find_the_same_kinds_of_clients(monkeypatch):
    kinds = generator(0, "test").integers(0, 3, 400)
    update = 0.01 * (np.eye(3)[kinds] - 1 / 3) + generator(1, "test").normal(0, 1e-4, (400, 3))
    entropies = entropy(update, 0.002)
    monkeypatch.setattr(_hics, "EXACT", 100)
    labels = group(update, entropies, lam=0.9, count=3, linkage="rows", rng=generator(2, "test"))
    assert len({(kind, label) for kind, label in zip(kinds, labels, strict=True)}) == 3


def test_ten_thousand_clients():
    clients, sizes = 10_000, [3] * 10_000
    selector = HiCS()
    selector.reset(torch.tensor(sizes), 10)
    selector.asked_[:] = selector.measured_[:] = True
    selector.signal_ = torch.from_numpy(generator(0, "test").normal(size=(clients, 10)))
    for clients_per_round in (10, 100):
        now = at(sizes, clients_per_round, 500, 10_000)
        plan = chosen(selector.select(now))
        selector.observe(
            now, updates(plan, head(np.ones((clients_per_round, 10)))), torch.ones(clients_per_round)
        )
        assert len(set(plan)) == clients_per_round


def test_weights_are_equal_and_divide_by_the_number_returned():
    answer = updates([1, 3], head(np.zeros((2, 3))))
    assert HiCS().weigh(at([1] * 4, 3), answer).tolist() == [0.5, 0.5]
