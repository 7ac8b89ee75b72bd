import math

import numpy as np
import pytest
import torch
from scipy import stats

from flsel.data.data_config import DataConfig, SyntheticConfig
from flsel.data.federate import federate
from flsel.data.sources import load_source
from flsel.data.synthetic import make_fedgs
from flsel.errors import UserError


def load(clients, seed=0, test=0.1, **synthetic):
    return load_source(
        DataConfig(test=test, synthetic=SyntheticConfig(**synthetic)), clients=clients, seed=seed
    )


def fedpns(clients=10, samples=40, test=0.25, **synthetic):
    return load(clients, test=test, generator="fedpns", samples=samples, **synthetic)


def linear_accuracy(x, y, classes):
    """Training accuracy of a linear classifier, fitted to the end."""
    model = torch.nn.Linear(x.shape[1], classes, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=400, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.double()), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    return float((model(x.double()).argmax(1) == y).double().mean())


@pytest.mark.parametrize("generator", ["fedgs", "fedpns"])
def test_shapes_dtypes_and_owners(generator):
    source = load(7, generator=generator, size_mean=1, dimension=12, classes=4)
    assert source.train.x.dtype == torch.float32
    assert source.train.y.dtype == torch.int64
    assert source.train.x.shape == (len(source.train), 12)
    assert source.num_classes == 4
    assert set(source.train.y.tolist()) <= set(range(4))
    assert sorted(set(source.owner.tolist())) == list(range(7))
    assert (np.diff(source.owner) >= 0).all()


@pytest.mark.parametrize("generator", ["fedgs", "fedpns"])
def test_seed_decides_everything(generator):
    first, again, other = (load(3, seed=seed, generator=generator, size_mean=1) for seed in (0, 0, 1))
    assert torch.equal(first.train.x, again.train.x)
    assert torch.equal(first.train.y, again.train.y)
    assert not torch.equal(first.train.x[:20], other.train.x[:20])


@pytest.mark.parametrize("generator", ["fedgs", "fedpns"])
def test_a_client_does_not_depend_on_the_number_of_clients(generator):
    few, many = (load(n, generator=generator, size_mean=1, iid_share=0.0) for n in (3, 40))
    size = len(few.train)
    assert torch.equal(few.train.x, many.train.x[:size])
    assert torch.equal(few.train.y, many.train.y[:size])
    assert np.array_equal(few.owner, many.owner[:size])


def test_fedgs_sizes_are_lognormal_plus_the_minimum():
    source = load(20_000, size_mean=4, size_std=2, size_min=1, size_max=1000, dimension=1, classes=2)
    sizes = np.bincount(source.owner)
    assert sizes.min() == 1
    assert sizes.max() == 1000
    limits = np.array([5, 20, 54, 150, 900])
    expected = stats.lognorm(s=2, scale=math.exp(4)).cdf(limits)
    seen = (sizes[:, None] - 1 < limits).mean(axis=0)
    np.testing.assert_allclose(seen, expected, atol=0.015)


def test_fedgs_default_sizes_without_spread():
    assert np.bincount(load(3, size_std=0).owner).tolist() == [54 + 50] * 3


def test_fedgs_inputs_have_the_defined_covariance():
    source = load(4, size_mean=math.log(20_000), size_std=0)
    exponents = np.arange(1, 61, dtype=float) ** -1.2
    for k in range(4):
        x = source.train.x[torch.from_numpy(source.owner == k)].double()
        np.testing.assert_allclose(x.var(0).numpy() / exponents, 1, atol=0.06)
        correlation = torch.corrcoef(x.T) - torch.eye(60)
        assert correlation.abs().max() < 0.05


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_fedgs_beta_is_a_standard_deviation(beta):
    source = load(400, beta=beta, size_mean=0, size_std=0, size_min=100)
    centres = source.train.x.view(400, 101, 60).double().mean(1)
    assert centres.std(1).mean() == pytest.approx(1.0, abs=0.03)
    assert centres.mean(1).std() == pytest.approx(math.sqrt(beta**2 + 1 / 60), rel=0.12)


def test_fedgs_labels_come_from_one_linear_model_per_client():
    source = load(2, size_mean=math.log(1500), size_std=0, dimension=6, classes=3, beta=0, seed=3)
    masks = [torch.from_numpy(source.owner == k) for k in range(2)]
    alone = [linear_accuracy(source.train.x[m], source.train.y[m], 3) for m in masks]
    assert min(alone) > 0.995
    assert linear_accuracy(source.train.x, source.train.y, 3) < 0.95


def test_fedgs_alpha_cancels_in_the_labels():
    one, two = load(5, alpha=0.0, size_mean=1), load(5, alpha=4.0, size_mean=1)
    assert torch.equal(one.train.x, two.train.x)
    assert torch.equal(one.train.y, two.train.y)


def test_fedgs_brings_no_test_set():
    assert load(2, size_mean=1).test is None


def test_fedpns_splits_every_client():
    source = fedpns(clients=10, samples=40, test=0.25, iid_share=0.3)
    assert np.bincount(source.owner).tolist() == [30] * 10
    assert len(source.test) == 100


def test_fedpns_iid_clients_come_first_and_are_centred():
    source = fedpns(clients=20, samples=2000, test=0.1, iid_share=0.3, shift=2.0)
    centres = source.train.x.view(20, 1800, 60).mean(1)
    assert centres[:6].abs().max() < 0.12
    assert centres[6:].std(1).mean() == pytest.approx(1.0, abs=0.06)
    assert centres[6:].mean(1).std() > 0.8


def test_fedpns_paper_shares_one_model_and_the_reference_does_not():
    arguments = {"clients": 4, "samples": 900, "iid_share": 0.5, "dimension": 5, "classes": 3}
    paper, reference = fedpns(**arguments), fedpns(**arguments, variant="reference")
    assert linear_accuracy(paper.train.x, paper.train.y, 3) > 0.99
    assert linear_accuracy(reference.train.x, reference.train.y, 3) < 0.97
    iid = torch.from_numpy(reference.owner < 2)
    assert linear_accuracy(reference.train.x[iid], reference.train.y[iid], 3) > 0.99


def test_fedpns_reference_tests_on_iid_clients_only():
    source = fedpns(clients=10, samples=400, iid_share=0.2, shift=50.0, variant="reference")
    assert len(source.test) == 2 * 100
    assert source.test.x.mean(0).abs().max() < 0.5
    assert fedpns(clients=10, samples=400, iid_share=0.2, shift=50.0).test.x.mean(0).abs().max() > 2


@pytest.mark.parametrize(
    "arguments", [{"test": 0.0}, {"variant": "reference", "iid_share": 0.0}, {"samples": 2, "test": 0.1}]
)
def test_fedpns_needs_a_test_set(arguments):
    with pytest.raises(UserError, match="leaves no test or no training set"):
        fedpns(**arguments)


@pytest.mark.parametrize("clients", [None, 0])
def test_synthetic_data_need_a_number_of_clients(clients):
    with pytest.raises(UserError, match="clients must be at least 1"):
        load(clients)


def test_too_much_data_for_any_memory():
    with pytest.raises(UserError, match=r"examples .data.synthetic.size_mean, size_max. would take .* GiB"):
        load(100, size_mean=60)


def test_the_true_models_label_every_example():
    config = SyntheticConfig(size_mean=2.0, size_std=0.5, dimension=6, classes=4)
    source = make_fedgs(config, clients=5, seed=3)
    data = federate(source, DataConfig(test=0.2), deal=None, seed=3, clients=3)
    models = data.population.true_models()
    assert models.shape == (3, 4 * 7)
    for model, shard in zip(models, data.population.shards, strict=True):
        weight, bias = model[:24].reshape(4, 6), model[24:]
        said = (data.population.x[shard].double().numpy() @ weight.T + bias).argmax(1)
        assert (said == data.population.y[shard].numpy()).all()
    dealt = federate(source, DataConfig(test=0.2), deal=lambda y, rng: [np.arange(len(y))], seed=3)
    assert dealt.population.true_models is None
