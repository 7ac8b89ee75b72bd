"""The output layer is found by what it computes, not by where it is registered."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flsel import models
from flsel.errors import UserError
from flsel.local.output_layer import Head, find_head

C, L = 4, 6


class Early(nn.Module):
    """The head is registered first; a hidden layer of the same width comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(C, C)
        self.body = nn.Linear(L, C)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class Tied(nn.Module):
    """The head shares its weight with an embedding, under whose name it is listed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(C, L)
        self.body = nn.Linear(L, L)
        self.head = nn.Linear(L, C)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.body(self.embedding(x).mean(1)))


class Tempered(nn.Module):
    """A learnt temperature follows the head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(L, C)
        self.scale = nn.Parameter(torch.tensor([3.0]))
        self.other = nn.Linear(L, C)

    def forward(self, x):
        self.other(x)
        return self.head(x) * self.scale


class LateBias(nn.Module):
    """The bias is a parameter of the model; a second layer of C outputs runs after the head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(L, C, bias=False)
        self.bias = nn.Parameter(torch.randn(C))
        self.auxiliary = nn.Linear(L, C)

    def forward(self, x):
        logits = self.head(x) + self.bias
        self.auxiliary(x)
        return logits


class TwoHeads(nn.Module):
    """Two layers have C outputs; the second to run makes the logits, the first to run comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Linear(L, C)
        self.auxiliary = nn.Linear(L, C)

    def forward(self, x):
        self.auxiliary(x)
        return self.main(x)


class Disturbing(nn.Module):
    """Draws random numbers, counts calls in a buffer and replaces another, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(L)
        self.drop = nn.Dropout()
        self.head = nn.Linear(L, C)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("noise", torch.zeros(3))

    def forward(self, x):
        self.calls += 1
        self.noise = torch.randn(3)
        return self.head(self.drop(self.norm(x)))


def _sequential(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(L, L), nn.ReLU(), *layers)


@pytest.mark.parametrize(
    ("module", "example", "expected"),
    [
        (_sequential(nn.Linear(L, C)), torch.rand(2, L), Head("2.weight", "2.bias")),
        (_sequential(nn.Linear(L, C, bias=False)), torch.rand(2, L), Head("2.weight", None)),
        (_sequential(nn.Linear(L, C), nn.BatchNorm1d(C)), torch.rand(2, L), Head("2.weight", "2.bias")),
        (_sequential(nn.Linear(L, C), nn.LayerNorm(C)), torch.rand(2, L), Head("2.weight", "2.bias")),
        (_sequential(nn.Linear(L, C), nn.LogSoftmax(1)), torch.rand(2, L), Head("2.weight", "2.bias")),
        (Early(), torch.rand(2, L), Head("head.weight", "head.bias")),
        (Tied(), torch.randint(C, (2, 5)), Head("embedding.weight", "head.bias")),
        (Tempered(), torch.rand(2, L), Head("head.weight", "head.bias")),
        (LateBias(), torch.rand(2, L), Head("head.weight", None)),
        (TwoHeads(), torch.rand(2, L), Head("main.weight", "main.bias")),
        (TwoHeads(), torch.rand(1, L), Head("main.weight", "main.bias")),
        (Disturbing(), torch.rand(2, L), Head("head.weight", "head.bias")),
        (
            nn.Sequential(nn.Conv2d(1, L, 3), nn.Conv2d(L, C, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            torch.rand(2, 1, 5, 5),
            Head("1.weight", "1.bias"),
        ),
        (
            nn.Sequential(nn.Conv2d(1, C, 3), nn.Flatten(), nn.Linear(9 * C, C)),
            torch.rand(2, 1, 5, 5),
            Head("2.weight", "2.bias"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_head_is_found(module, example, expected):
    assert find_head(module, example, C) == expected
    assert set(filter(None, expected)) <= dict(module.named_parameters()).keys()


@pytest.mark.parametrize(
    ("model", "shape"),
    [(models.LogisticRegression, (60,)), (models.MLP, (1, 28, 28)), (models.FedPNSCNN, (1, 28, 28))],
)
def test_head_of_the_papers_models(model, shape):
    net = model(10, shape)
    weight, bias = find_head(net, torch.rand(1, *shape), 10)
    assert [weight, bias] == [name for name, _ in net.named_parameters()][-2:]


def test_explicit_path_wins():
    assert find_head(TwoHeads(), torch.rand(2, L), C, "auxiliary") == ("auxiliary.weight", "auxiliary.bias")


@pytest.mark.parametrize("path", ["nowhere", "body", "head.weight", ""])
def test_explicit_path_must_have_a_row_per_class(path):
    module = nn.Sequential()
    module.add_module("body", nn.Linear(L, C + 1))
    module.add_module("head", nn.Linear(C + 1, C))
    with pytest.raises(UserError, match=r"output_layer must name a layer .* 4 rows, .*candidates are head\."):
        find_head(module, None, C, path)


def test_parametrised_weight_is_refused_by_name():
    module = _sequential(nn.utils.parametrizations.weight_norm(nn.Linear(L, C)))
    with pytest.raises(UserError, match="set output_layer to its path: no layer has such a weight"):
        find_head(module, torch.rand(2, L), C)


def test_without_forward_or_example_the_last_registered_linear_counts():
    module = nn.Module()
    module.add_module("first", nn.Linear(L, C))
    module.add_module("second", nn.Linear(L, C))
    module.add_module("convolution", nn.Conv2d(L, C, 1))
    assert find_head(module, torch.rand(2, L), C).weight_name == "second.weight"
    assert find_head(TwoHeads(), None, C).weight_name == "auxiliary.weight"


def test_not_found_lists_candidates():
    module = nn.Sequential(nn.Conv2d(1, C, 3), nn.Flatten())
    with pytest.raises(UserError, match="not found; set output_layer to its path: candidates are 0"):
        find_head(module, torch.rand(2, 1, 5, 5), C)


def test_an_error_of_the_model_itself_is_not_hidden():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        find_head(_sequential(nn.Linear(L, C)), torch.rand(2, L + 1), C)


@pytest.mark.parametrize("broken", [False, True])
def test_module_and_rng_are_left_as_they_were(broken):
    module = Disturbing().train()
    module.norm.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    buffers = {name: value.data_ptr() for name, value in module.named_buffers()}
    modes = [m.training for m in module.modules()]
    state = torch.get_rng_state()
    if broken:
        with pytest.raises(RuntimeError):
            find_head(module, torch.rand(2, L + 1, generator=torch.Generator().manual_seed(1)), C)
    else:
        find_head(module, torch.rand(2, L, generator=torch.Generator().manual_seed(1)), C)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in module.modules()] == modes
    assert {name: value.data_ptr() for name, value in module.named_buffers()} == buffers
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(m._forward_hooks for m in module.modules())
    assert all(p.grad is None for p in module.parameters())
