"""The Gaussian process: reference vectors, autograd, the closed-form optimum and a dense Algorithm 1."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from flsel.errors import UserError
from flsel.rng import generator
from flsel.selectors import _gp

GOLDEN = Path(__file__).parents[1] / "golden"
GP = json.loads((GOLDEN / "fedcor_gp.json").read_text())
SELECTION = json.loads((GOLDEN / "fedcor_selection.json").read_text())
X, CHANGES, NOISE = np.array(GP["X"]), np.array(GP["loss_changes"]), GP["noise"]


def phi(embedding, changes, weights, noise):
    """Phi by the definition: one dense Gaussian per sample, over who was observed."""
    covariance = embedding.T @ embedding + noise**2 * torch.eye(embedding.shape[1], dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for y, w in zip(changes, weights, strict=True):
        seen = ~y.isnan()
        gaussian = MultivariateNormal(torch.zeros(int(seen.sum())).double(), covariance[seen][:, seen])
        total = total + w * gaussian.log_prob(y[seen])
    return total


def greedy_dense(sigma, share, alpha, allowed, count):
    """Algorithm 1 as printed, N x N; also how far ahead of the runner-up each pick was."""
    mu, sigma = np.zeros(len(sigma)), sigma.copy()
    left, chosen, margins = list(np.flatnonzero(allowed)), [], []
    for _ in range(min(count, len(left))):
        predicted = {k: -alpha[k] * math.sqrt(sigma[k, k]) for k in left}
        value = {k: share @ (mu + sigma[:, k] / sigma[k, k] * predicted[k]) for k in left}
        best = min(left, key=lambda k: value[k])
        margins.append(min((value[k] - value[best] for k in left if k != best), default=math.inf))
        # The prediction is relative to mu, so mu_k drops out of the difference.
        mu = mu + sigma[:, best] / sigma[best, best] * predicted[best]
        sigma = sigma - np.outer(sigma[:, best], sigma[best]) / sigma[best, best]
        chosen.append(best)
        left.remove(best)
    return chosen, margins


@pytest.mark.parametrize("case", GP["log_marginal_likelihood"], ids=lambda case: str(case["sample"]))
def test_likelihood_of_the_reference(case):
    y = CHANGES[case["sample"]][None]
    mean = np.array(GP["mu_nonzero"])
    for rows, key in ((y, "mu0"), (y - mean, "muNZ")):
        value, _ = _gp.likelihood(X, _gp.Samples.of(rows, np.ones(1)), NOISE)
        assert value == pytest.approx(case[f"loglik_{key}_float64"], rel=1e-8)
        assert value == pytest.approx(case[f"loglik_{key}_reference"], rel=1e-3)


def test_likelihood_of_some_clients():
    case = GP["loglik_subset"]
    y = np.full((1, 8), np.nan)
    y[0, case["clients"]] = case["y"]
    value, gradient = _gp.likelihood(X, _gp.Samples.of(y, np.ones(1)), NOISE)
    assert value == pytest.approx(case["float64"], rel=1e-8)
    others = [k for k in range(8) if k not in case["clients"]]
    assert not gradient[:, others].any()


def history():
    case = GP["history"]
    assert case["kept_after_each_push"]["14"] == [11, 13, 14]
    return CHANGES[1:], case["gamma"] ** np.array([3, 1, 0])


def test_history_of_the_reference():
    case, (changes, weights) = GP["history"], history()
    value, gradient = _gp.likelihood(X, _gp.Samples.of(changes, weights), NOISE)
    assert value == pytest.approx(case["Phi_mu0_float64"], rel=1e-8)
    np.testing.assert_allclose(gradient, case["grad_Phi_wrt_X_float64"], rtol=1e-8, atol=1e-7)
    mean = _gp.discounted_mean(changes, weights)
    np.testing.assert_allclose(mean, case["MLE_Mean_after_last"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", GP["training"], ids=lambda case: str(case["adam_steps"]))
def test_training_of_the_reference(case):
    samples = _gp.Samples.of(*history())
    steps = case["adam_steps"]
    before = X.copy()
    after = _gp.fit(X, samples, noise=NOISE, lr=case["lr"], steps=steps)
    assert np.array_equal(X, before)
    np.testing.assert_allclose(after, case["X_after"], rtol=0, atol=5e-4)  # The reference runs in float32.
    last = X if steps == 1 else _gp.fit(X, samples, noise=NOISE, lr=case["lr"], steps=steps - 1)
    assert -_gp.likelihood(last, samples, NOISE)[0] == pytest.approx(case["loss_before_last_step"], rel=2e-3)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12), st.integers(1, 5))
def test_likelihood_and_gradient_are_those_of_the_definition(seed, d, n, m):
    rng = generator(seed, "test")
    embedding = torch.from_numpy(rng.normal(size=(d, n))).requires_grad_()
    changes = rng.normal(size=(m, n))
    changes[rng.random((m, n)) < 0.3] = np.nan
    changes[:, 0] = 1.0
    weights = rng.random(m)
    expected = phi(embedding, torch.from_numpy(changes), torch.from_numpy(weights), 0.3)
    expected.backward()
    value, gradient = _gp.likelihood(embedding.detach().numpy(), _gp.Samples.of(changes, weights), 0.3)
    assert value == pytest.approx(float(expected.detach()), rel=1e-9)
    np.testing.assert_allclose(gradient, embedding.grad.numpy(), rtol=1e-7, atol=1e-7)


def test_the_closed_form_optimum_is_stationary_and_reached():
    # Probabilistic PCA with fixed noise: X = (Lambda_d - noise^2)_+^(1/2) U_d'.
    rng, noise, weights = generator(1, "test"), 0.2, np.array([1.0, 0.5, 0.8, 0.3, 0.9, 0.7])
    changes = rng.normal(size=(6, 7))
    spectrum, basis = np.linalg.eigh((changes.T * weights) @ changes / weights.sum())
    best = np.sqrt(np.maximum(spectrum[-3:] - noise**2, 0))[:, None] * basis[:, -3:].T
    samples = _gp.Samples.of(changes, weights)
    optimum, gradient = _gp.likelihood(best, samples, noise)
    assert np.abs(gradient).max() < 1e-9
    start = best + 0.1 * rng.normal(size=(3, 7))
    found = _gp.fit(start, samples, noise=noise, lr=0.01, steps=1500)
    assert _gp.likelihood(found, samples, noise)[0] == pytest.approx(optimum, rel=1e-6)
    np.testing.assert_allclose(found.T @ found, best.T @ best, atol=1e-4)


def test_steps_start_with_fresh_moments_from_where_they_are():
    samples = _gp.Samples.of(*history())
    once = _gp.fit(X, samples, noise=NOISE, lr=0.01, steps=1)
    np.testing.assert_allclose(np.abs(once - X), 0.01, rtol=1e-6)
    twice = _gp.fit(once, samples, noise=NOISE, lr=0.01, steps=1)
    np.testing.assert_allclose(np.abs(twice - once), 0.01, rtol=1e-6)
    assert not np.array_equal(twice, _gp.fit(X, samples, noise=NOISE, lr=0.01, steps=2))


def test_absurd_changes_are_an_error():
    samples = _gp.Samples.of(np.full((1, 3), 1e160), np.ones(1))
    with pytest.raises(
        UserError,
        match=r"noise must be larger, or lr smaller, for loss changes of this size, got noise 0\.01",
    ):
        _gp.fit(np.ones((2, 3)), samples, noise=0.01, lr=0.01, steps=1)


def test_an_absurd_learning_rate_is_an_error():
    samples = _gp.Samples.of(*history())
    with pytest.raises(UserError, match=r"or lr smaller, .* and lr 1e\+200"):
        _gp.fit(X, samples, noise=NOISE, lr=1e200, steps=5)


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 1.0, 1e3])
def test_any_noise_is_fine(noise):
    after = _gp.fit(X, _gp.Samples.of(*history()), noise=noise, lr=0.01, steps=20)
    assert np.isfinite(after).all()


def shares(case):
    return np.ones(case["N"]) if case["p"] is None else np.array(case["p"])


@pytest.mark.parametrize("case", SELECTION["cases"], ids=lambda case: case["name"])
def test_selection_of_the_reference(case):
    sigma, alpha = np.array(case["Sigma"]), np.array(case["alpha"])
    everyone, expected = np.ones(case["N"], dtype=bool), case["expected_selection_paper_float64"]
    assert expected == case["expected_selection_reference"]
    dense, margins = greedy_dense(sigma, shares(case), alpha, everyone, case["C"])
    assert dense == expected
    assert margins[:-1] == pytest.approx([step["margin_to_second"] for step in case["steps"]][:-1], rel=1e-6)
    # Any covariance is X'X with d = N.
    factor = np.linalg.cholesky(sigma).T
    terms = {"share": shares(case), "alpha": alpha, "allowed": everyone, "count": case["C"]}
    assert _gp.greedy_by_posterior(factor, 0.0, **terms) == expected
    if "rank5_plus_noise" in case["name"]:
        assert _gp.greedy_by_posterior(np.array(SELECTION["X_rank5"]), 0.01, **terms) == expected


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(2, 15), st.sampled_from([0.01, 0.3]))
def test_low_rank_choice_equals_the_dense_one(seed, d, n, noise):
    rng = generator(seed, "test")
    x, share, alpha = rng.normal(size=(d, n)), rng.random(n), 0.9 ** rng.integers(0, 5, n)
    allowed = rng.random(n) < 0.8
    sigma = x.T @ x + noise**2 * np.eye(n)
    count = int(rng.integers(1, n + 1))
    dense, margins = greedy_dense(sigma, share, alpha, allowed, count)
    chosen = _gp.greedy_by_posterior(x, noise, share=share, alpha=alpha, allowed=allowed, count=count)
    sure = next((i for i, margin in enumerate(margins) if margin < 1e-8), len(dense))
    assert chosen[:sure] == dense[:sure]
    assert len(chosen) == len(dense) == min(count, allowed.sum())
    scaled = _gp.greedy_by_posterior(
        3 * x, 3 * noise, share=share, alpha=0.5 * alpha, allowed=allowed, count=count
    )
    assert scaled[:sure] == dense[:sure]
    order = rng.permutation(n)
    renumbered = _gp.greedy_by_posterior(
        x[:, order], noise, share=share[order], alpha=alpha[order], allowed=allowed[order], count=count
    )
    assert [order[k] for k in renumbered][:sure] == dense[:sure]


def test_independent_clients_are_ranked_by_their_own_terms():
    deviation, share, alpha = np.array([1.0, 3.0, 2.0, 1.0]), np.array([0.4, 0.1, 0.2, 0.3]), np.ones(4)
    terms = {"allowed": np.ones(4, dtype=bool), "count": 4, "alpha": alpha}
    assert _gp.greedy_by_posterior(np.diag(deviation), 0.0, share=share, **terms) == [0, 2, 1, 3]
    assert _gp.greedy_by_posterior(np.eye(4), 0.0, share=np.full(4, 0.25), **terms) == [0, 1, 2, 3]


def test_zero_variance_is_never_chosen():
    x = generator(0, "test").normal(size=(3, 8))
    x[:, 5] = x[:, 2]  # The same data twice.
    x[:, 6] = 0.0
    terms = {"share": np.full(8, 0.125), "alpha": np.ones(8), "allowed": np.ones(8, dtype=bool), "count": 8}
    chosen = _gp.greedy_by_posterior(x, 0.0, **terms)
    assert len(chosen) == 3  # The rank.
    assert 6 not in chosen
    assert not {2, 5} <= set(chosen)
    assert len(_gp.greedy_by_posterior(x, 0.01, **terms)) == 8
    assert _gp.greedy_by_posterior(np.zeros((3, 8)), 0.0, **terms) == []


def test_anticorrelated_clients_can_still_be_chosen():
    x = np.array([[1.0, -0.9]])
    terms = {"share": np.array([0.9, 0.1]), "alpha": np.ones(2)}
    assert _gp.greedy_by_posterior(x, 0.01, **terms, allowed=np.array([False, True]), count=1) == [1]
