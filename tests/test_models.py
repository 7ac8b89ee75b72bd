"""The papers' networks: parameter counts, layers, shapes and messages."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flsel import models
from flsel.errors import UserError

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
COUNTS = [  # class, input shape, classes, trainable parameters as the papers or the specification give them
    (models.LogisticRegression, GREY, 10, 7_850),
    (models.LogisticRegression, (60,), 10, 610),
    (models.MLP, GREY, 10, 52_500),
    (models.FedCorCNN, COLOUR, 10, 122_570),
    (models.McMahanCNN, GREY, 10, 1_663_370),
    (models.McMahanCNN, GREY, 62, 1_690_046),
    (models.FedGSCifarCNN, COLOUR, 10, 797_962),
    (models.FedCatCifarCNN, COLOUR, 10, 1_068_298),
    (models.FedPNSCNN, GREY, 10, 21_840),
    (models.LeNet, COLOUR, 10, 62_006),
    (models.FedGenCNN, GREY, 10, 26_434),
    (models.HiCSFashionCNN, GREY, 10, 31_594),
    (models.HiCSPublishedCNN, GREY, 10, 229_709),
    (models.HiCSCifarCNN, COLOUR, 10, 122_570),
]
IMAGE_MODELS = [case for case in COUNTS if case[0] not in (models.LogisticRegression, models.MLP)]


@pytest.mark.parametrize(("model", "shape", "classes", "count"), COUNTS)
def test_parameter_count_and_logits(model, shape, classes, count):
    net = model(num_classes=classes, input_shape=shape)
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == count
    assert bool(list(net.buffers())) == (model in (models.HiCSPublishedCNN, models.FedGenCNN))
    assert all(module.training for module in net.modules())
    logits = net(torch.rand(3, *shape))
    assert logits.shape == (3, classes)
    logits.logsumexp(1).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def _layers(net: nn.Module, *kinds: type[nn.Module]) -> list[tuple[int, ...]]:
    return [tuple(m.weight.shape) for m in net.modules() if isinstance(m, kinds)]


def test_layers_as_in_the_papers():
    assert _layers(models.FedCorCNN(10, COLOUR), nn.Conv2d) == [(32, 3, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3)]
    assert _layers(models.FedCorCNN(10, COLOUR), nn.Linear) == [(64, 1024), (10, 64)]
    assert _layers(models.McMahanCNN(10, GREY), nn.Conv2d) == [(32, 1, 5, 5), (64, 32, 5, 5)]
    assert _layers(models.McMahanCNN(10, GREY), nn.Linear) == [(512, 3136), (10, 512)]
    assert _layers(models.LeNet(10, COLOUR), nn.Linear) == [(120, 400), (84, 120), (10, 84)]
    assert _layers(models.FedPNSCNN(10, GREY), nn.Linear) == [(50, 320), (10, 50)]
    assert _layers(models.FedCatCifarCNN(10, COLOUR), nn.Linear) == [(384, 2304), (192, 384), (10, 192)]
    assert _layers(models.HiCSFashionCNN(10, GREY), nn.Linear) == [(10, 512)]
    published = models.HiCSPublishedCNN(10, GREY)
    assert _layers(published, nn.Conv2d) == [(32, 1, 3, 3), (32, 32, 3, 3), (64, 32, 3, 3)]
    assert _layers(published, nn.Linear) == [(64, 3136), (10, 64)]
    # Xavier's uniform rule fills [-a, a], a^2 = 6 / (inputs + outputs), torch's own a^2 = 1 / inputs.
    hidden = next(m for m in published.modules() if isinstance(m, nn.Linear))
    assert hidden.weight.detach().abs().max() == pytest.approx((6 / 3200) ** 0.5, rel=1e-3)


def test_dropout_is_where_the_papers_have_it():
    def rates(net: nn.Module) -> list[float]:
        return [m.p for m in net.modules() if isinstance(m, (nn.Dropout, nn.Dropout2d))]

    for model, shape, classes, _ in COUNTS:
        assert rates(model(classes, shape)) == ([0.5] if model is models.FedPNSCNN else [])
    assert rates(models.FedPNSCNN(10, GREY, hidden_dropout=0.5)) == [0.5, 0.5]
    assert rates(models.MLP(10, GREY, dropout=0.5)) == [0.5, 0.5]
    assert rates(models.HiCSCifarCNN(10, COLOUR, dropout=0.2)) == [0.2] * 3


def test_mlp_matches_its_formula():
    net = models.MLP(3, (2, 2), hidden=[5])
    first, last = (m for m in net.modules() if isinstance(m, nn.Linear))
    x = torch.rand(4, 2, 2)
    expected = torch.relu(x.reshape(4, 4) @ first.weight.T + first.bias) @ last.weight.T + last.bias
    torch.testing.assert_close(net(x), expected)


def test_crop_sees_the_centre_only():
    net = models.FedCatCifarCNN(10, COLOUR).eval()
    x = torch.rand(2, *COLOUR)
    border = x.clone()
    border[..., :4, :] = border[..., -4:, :] = border[..., :4] = border[..., -4:] = 0
    torch.testing.assert_close(net(x), net(border))
    border[..., 4, 4] += 1
    assert not torch.equal(net(x), net(border))
    assert models.FedCatCifarCNN(10, COLOUR, crop=None)(x).shape == (2, 10)


def test_local_response_norm_is_tensorflows():
    norm = next(m for m in models.FedCatCifarCNN(10, COLOUR).modules() if isinstance(m, nn.LocalResponseNorm))
    x = torch.rand(1, 20, 1, 1)
    squares = torch.stack([x[0, max(c - 4, 0) : c + 5].square().sum() for c in range(20)])
    torch.testing.assert_close(norm(x).flatten(), x.flatten() / (1 + 0.001 / 9 * squares) ** 0.75)


@pytest.mark.parametrize("model", sorted({case[0] for case in COUNTS}, key=lambda model: model.__name__))
def test_construction_needs_the_data_and_is_reproducible(model):
    shape = next(case[1] for case in COUNTS if case[0] is model)
    with pytest.raises(UserError, match="num_classes must be"):
        model(input_shape=shape)
    with pytest.raises(UserError, match="input_shape must be"):
        model(num_classes=10)
    with pytest.raises(UserError, match="num_classes must be at least 1"):
        model(num_classes=0, input_shape=shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        one = model(10, shape)
        torch.manual_seed(5)
        other = model(10, shape)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    "model", sorted({case[0] for case in IMAGE_MODELS}, key=lambda model: model.__name__)
)
def test_images_of_the_wrong_shape(model):
    with pytest.raises(UserError, match=r"\(channels, height, width\), got \(60,\)"):
        model(10, (60,))
    if model is not models.FedGenCNN:  # whose padded convolutions take any image
        with pytest.raises(UserError, match=r"too small|crop must"):
            model(10, (3, 1, 1))
    assert model(7, (2, 40, 36))(torch.rand(2, 2, 40, 36)).shape == (2, 7)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (models.MLP, {"hidden": [64, 0]}, "hidden must be widths of at least 1"),
        (models.MLP, {"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        (models.FedPNSCNN, {"dropout": -0.1}, "dropout must be in"),
        (models.FedPNSCNN, {"hidden_dropout": 2.0}, "hidden_dropout must be in"),
        (models.HiCSCifarCNN, {"hidden": 0}, "hidden must be at least 1"),
        (models.FedCatCifarCNN, {"crop": 33}, "crop must be between 1 and"),
    ],
)
def test_arguments_out_of_range(model, arguments, message):
    with pytest.raises(UserError, match=message):
        model(10, COLOUR, **arguments)
