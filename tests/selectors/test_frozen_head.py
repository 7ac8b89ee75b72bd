"""Selectors that read updates of the output layer, with a layer that does not train as a whole."""

from __future__ import annotations

import pytest
import torch
from runs import built, settings
from torch import nn

from flsel.errors import UserError
from flsel.selectors import FedAU, HiCS, HiCSOracle


class Net(nn.Module):
    """A body and an output layer, some of whose parameters are frozen."""

    def __init__(self, frozen: tuple[str, ...] = (), low_rank: bool = False):
        super().__init__()
        self.body = nn.Linear(8, 6)
        self.head = nn.Linear(6, 4)
        self.down = nn.Linear(6, 2, bias=False) if low_rank else None
        self.up = nn.Linear(2, 4, bias=False) if low_rank else None
        if self.up is not None:
            nn.init.zeros_(self.up.weight)  # as LoRA starts
        for name in frozen:
            self.get_parameter(name).requires_grad_(False)

    def forward(self, x):
        logits = self.head(torch.relu(self.body(x)))
        if self.down is None or self.up is None:
            return logits
        return logits + self.up(self.down(torch.relu(self.body(x))))


def net(tmp_path, selector, *, frozen=(), low_rank=False, **more):
    model = Net(frozen, low_rank)
    return built(settings(tmp_path, selector=selector, model=model, **more)).server


@pytest.mark.parametrize("selector", [HiCS(), HiCS(signal="layer"), HiCSOracle(), FedAU(HiCS())])
@pytest.mark.parametrize("low_rank", [False, True])
def test_an_output_layer_that_does_not_train_is_refused_before_the_run(selector, low_rank, tmp_path):
    name = type(selector).__name__
    with pytest.raises(UserError, match=rf"head\.weight must train with {name}, .* and it is frozen"):
        net(tmp_path, selector, frozen=("head.weight", "head.bias"), low_rank=low_rank)
    with pytest.raises(UserError, match=r"head\.weight must train"):
        net(tmp_path, selector, frozen=("head.weight",), low_rank=low_rank)


@pytest.mark.parametrize("make", [HiCS, HiCSOracle])
def test_a_frozen_bias_is_no_signal(make, tmp_path):
    for selector in (make(), FedAU(make())):
        with pytest.raises(UserError, match=r'selector.signal must be "weight_mean" .* no bias that trains'):
            net(tmp_path, selector, frozen=("head.bias",))
    server = net(tmp_path, make(signal="weight_mean"), frozen=("head.bias",))
    server.step()
    server.step()


def test_the_layer_that_trains_beside_a_frozen_one_can_be_named(tmp_path):
    frozen = ("head.weight", "head.bias")
    server = net(tmp_path, HiCS(signal="layer"), frozen=frozen, low_rank=True, output_layer="up")
    server.step()
    assert server.selector.layer_.shape == (8, 4 * 2)
