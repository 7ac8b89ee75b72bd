"""Dropout by a hash of counters: the same masks for every trainer, and as random as they should be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import built, same, settings
from test_trainers import OPTIMIZERS, SPECS, STACKS, Noisy, largest_gap, make_program, starts_of, told, train
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from flsel.config.groups import LocalConfig
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.dropout import Masks, step_keys, visit_key
from flsel.local.sequential import SequentialTrainer

CLIENTS = [3, 0, 2, 4, 1]
TRAINERS: tuple[Callable[[], Any], ...] = (*STACKS, partial(CompiledTrainer, 2, tabled=True))


class Functional(nn.Linear):
    """Drops what a module without a name of its own does."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(functional.dropout(input, 0.3, self.training))


class Repeated(Functional):
    """Runs its layer again in the backward pass."""

    def forward(self, input: Tensor) -> Tensor:
        value: Tensor = checkpoint(super().forward, input, use_reentrant=False)
        return value


def dense(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 4))


def images(*layers: nn.Module) -> nn.Sequential:
    first = (nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.Tanh())
    return nn.Sequential(*first, *layers, nn.Flatten(), nn.Linear(48, 4))


NETS = {
    "modules": dense(nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.25)),
    "alpha": dense(nn.SELU(), nn.AlphaDropout(0.2)),
    "in place": dense(nn.Dropout(0.5, inplace=True)),
    "functional": dense(Functional(8, 8)),
    "everything": dense(nn.Dropout(1.0)),
    "images": images(nn.Dropout2d(0.4), nn.Dropout(0.2), nn.FeatureAlphaDropout(0.2)),
}


@pytest.mark.parametrize("name", NETS)
def test_every_trainer_takes_the_same_masks(name: str, caplog: Any) -> None:
    # Batches of 8, 7 and 1 examples: padding must not change a mask.
    program = make_program(OPTIMIZERS["momentum"], SPECS["epochs"], net=NETS[name])
    starts = starts_of(program, len(CLIENTS))
    one = train(SequentialTrainer(), program, starts, CLIENTS, 2)
    for trainer in TRAINERS:
        assert largest_gap(one, train(trainer(), program, starts, CLIENTS, 2)) < 1e-10
    assert not told(caplog)


def test_what_cannot_be_hashed_is_left_to_torch_and_one_client_at_a_time(caplog: Any) -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=Noisy())
    starts = starts_of(program, 2)
    one = train(SequentialTrainer(), program, starts, [3, 0], 2)
    assert largest_gap(one, train(CompiledTrainer(), program, starts, [3, 0], 2)) == 0.0
    (said,) = told(caplog)
    assert "it draws random numbers (dropout may" in said
    assert said.endswith("; sequential trains instead")


def test_a_pass_that_is_repeated_in_the_backward_pass_trains_alike() -> None:
    program = make_program(OPTIMIZERS["sgd"], SPECS["steps"], net=dense(Repeated(8, 8)))
    starts = starts_of(program, 2)
    one = train(SequentialTrainer(), program, starts, [3, 0], 2)
    assert largest_gap(one, train(CompiledTrainer(), program, starts, [3, 0], 2)) < 1e-10


def test_a_repeated_forward_pass_meets_the_mask_of_the_first() -> None:
    net = Repeated(64, 1).double()
    x = torch.ones(1, 64, dtype=torch.float64, requires_grad=True)
    with Masks(torch.tensor(5)):
        loss = net(x).sum()
        loss.backward()
    assert x.grad is not None
    torch.testing.assert_close(loss, (x.grad * x).sum() + net.bias.sum())


def test_masks_differ_between_seeds_rounds_clients_steps_and_layers() -> None:
    names = {(seed, round, client) for seed in (1, 2) for round in (0, 1) for client in (0, 1)}
    keys = step_keys([visit_key(*name) for name in names], range(3)).flatten()
    found = []
    for key in keys:
        with Masks(key):
            found += [functional.dropout(torch.ones(64)) for _ in range(2)]
    assert len({tuple(mask.tolist()) for mask in found}) == 2 * len(keys) == 48
    assert torch.equal(
        keys,
        torch.cat([step_keys([visit_key(*n) for n in names], range(s, s + 1)) for s in range(3)]).flatten(),
    )


def drawn(p: float) -> Tensor:
    """Draw what is kept: 0 or 1, ``[clients, steps, layers, examples, units]``."""
    keys = step_keys([visit_key(7, 3, client) for client in range(8)], range(16))
    rows = []
    for key in keys.T.flatten():
        with Masks(key):
            rows.append(
                [functional.dropout(torch.ones(32, 100, dtype=torch.float64), p) > 0 for _ in range(3)]
            )
    return torch.stack([torch.stack(row) for row in rows]).double().unflatten(0, (8, 16))


@pytest.mark.parametrize("p", [0.01, 0.25, 0.5, 0.9])
def test_as_many_are_dropped_as_should_be_and_independently(p: float) -> None:
    kept = drawn(p)
    share = p * (1 - p)
    assert abs(kept.mean() - (1 - p)) < 4.5 * (share / kept.numel()) ** 0.5
    scaled = (kept - (1 - p)) / share**0.5
    for dim in range(5):
        # How many of a row, a column, ... are kept varies as if each were drawn by itself.
        means = scaled.mean(dim=[d for d in range(5) if d != dim])
        chi = float((means**2).sum() * scaled.numel() / len(means))
        assert abs(chi - len(means)) < 5 * (2 * len(means)) ** 0.5 + 5
        # Neighbours, and those further apart, know nothing of each other.
        for lag in range(1, min(kept.shape[dim], 5)):
            product = scaled.narrow(dim, 0, kept.shape[dim] - lag) * scaled.narrow(
                dim, lag, kept.shape[dim] - lag
            )
            assert abs(product.mean()) < 4.5 / product.numel() ** 0.5


@pytest.mark.parametrize(
    ("drop", "shape", "constant"),
    [
        (functional.dropout1d, (6, 5, 7), (2,)),
        (functional.dropout1d, (5, 7), (1,)),
        (functional.dropout2d, (6, 5, 3, 4), (2, 3)),
        (functional.dropout3d, (6, 5, 3, 4, 2), (2, 3, 4)),
        (functional.dropout3d, (5, 3, 4, 2), (1, 2, 3)),
        (torch.feature_dropout, (6, 5, 7), (2,)),
        (functional.feature_alpha_dropout, (6, 5, 7), (2,)),
        (torch.dropout, (6, 5), ()),
        (torch.dropout_, (6, 5), ()),
    ],
)
def test_channels_are_dropped_as_a_whole(
    drop: Any, shape: tuple[int, ...], constant: tuple[int, ...]
) -> None:
    x = torch.ones(shape)
    with Masks(torch.tensor(11)) as masks:
        out = drop(x, 0.5, True)
        again = drop(torch.ones(shape), 0.5, False)
    assert masks.used == 1
    assert torch.equal(again, torch.ones(shape))
    assert (out is x) == (drop is torch.dropout_)
    assert len(out.unique()) == 2
    if constant:
        assert torch.equal(out.amax(dim=constant), out.amin(dim=constant))


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = torch.randn(400, 500, generator=torch.Generator().manual_seed(0))
    with Masks(torch.tensor(3)):
        out = functional.alpha_dropout(x, 0.3, True)
    assert abs(out.mean()) < 0.02
    assert abs(out.std() - 1) < 0.02
    torch.manual_seed(0)
    theirs = functional.alpha_dropout(torch.ones(100), 0.3, True)
    with Masks(torch.tensor(3)):
        ours = functional.alpha_dropout(torch.ones(100), 0.3, True)
    torch.testing.assert_close(ours.unique(), theirs.unique())


def test_masks_are_what_the_formula_says() -> None:
    """In Python's integers: key of the step, of the first dropout in it, and SplitMix64's streams 0 and 1."""
    golden, first, second, whole = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64

    def signed(value: int) -> int:
        return (value + whole // 2) % whole - whole // 2

    def mixed(value: int) -> int:
        value = signed(value)
        value = signed((value ^ (value >> 32)) * first)
        return signed((value ^ (value >> 29)) * second)

    def split(stream: int, index: int) -> int:
        value = ((stream << 40) + index + 1) * golden % whole
        value = (value ^ (value >> 30)) * first % whole
        value = (value ^ (value >> 27)) * second % whole
        return value ^ (value >> 31)

    step, visit = 4, visit_key(1, 2, 3)
    with Masks(step_keys([visit], range(step, step + 1))[0, 0]):
        kept = functional.dropout(torch.ones(5, 24), 0.25) > 0
    key = mixed(mixed(visit + step * golden) + golden)
    expected = [
        [mixed(key + split(0, i) + split(1, j)) >= round(-0.25 * whole) for j in range(24)] for i in range(5)
    ]
    assert kept.tolist() == expected


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path, backend: Any) -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 4))
    local = LocalConfig(batch_size=5, steps=3, backend=backend)
    config = settings(tmp_path, model=net, local=local)
    server = built(config).server
    for _ in range(3):
        server.step()
    again = built(config).server
    again.load_state_dict(copy.deepcopy(server.state_dict()))
    while not server.finished:
        server.step()
        again.step()
    assert same(again.state_dict(), server.state_dict())
