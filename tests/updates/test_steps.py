"""Steps of an update against formulas, and properties that hold for all of them."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flsel.errors import UserError
from flsel.updates import Clip, Corrupt, GaussianNoise, Message, Quantise, Senders, TopK, UpdateStep
from flsel.updates.check_steps import check_steps

MODEL = {"weight": torch.zeros(2, 2), "bias": torch.zeros(1)}


def senders(*clients: int, turn: int = 0, total: int = 10, bound: float = math.inf) -> Senders:
    return Senders(torch.tensor(clients), [turn] * len(clients), total, seed=3, bound=bound)


def stack(*updates: list[float]) -> dict[str, torch.Tensor]:
    table = torch.tensor(updates)
    return {"weight": table[:, :4].reshape(-1, 2, 2), "bias": table[:, 4:]}


def table(found: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([found["weight"].reshape(-1, 4), found["bias"]], dim=1)


def test_clip_shrinks_to_the_norm_and_leaves_the_rest():
    found = Clip(norm=2.5).on_client(stack([3.0, 0, 4, 0, 0], [0, 0, 0, 1, 1]), senders(0, 1))
    assert table(found).tolist() == [[1.5, 0, 2, 0, 0], [0, 0, 0, 1, 1]]
    assert (Clip(norm=2.5).bound(math.inf), Clip(norm=2.5).bound(1.0)) == (2.5, 1.0)


def test_clip_leaves_an_update_of_zeros():
    assert table(Clip(norm=1.0).on_client(stack([0.0] * 5), senders(0))).tolist() == [[0.0] * 5]


def test_top_k_keeps_the_largest_and_of_equal_ones_the_first():
    step = TopK(share=0.4, feedback=False)
    found = step.on_client(stack([1.0, -3, 2, 0.5, 0], [1, 1, -1, 1, 1]), senders(0, 1))
    assert table(found).tolist() == [[0, -3, 2, 0, 0], [1, 1, 0, 0, 0]]


def test_top_k_adds_what_was_kept_back_to_the_clients_next_update():
    step = TopK(share=0.2)
    step.reset(MODEL, 10)
    first = step.on_client(stack([1.0, -3, 2, 0.5, 0], [0, 0, 0, 0, 7]), senders(4, 2))
    assert table(first).tolist() == [[0, -3, 0, 0, 0], [0, 0, 0, 0, 7]]
    # 2 + 2 now outweighs 3.5; client 2 has nothing left to send but its own.
    second = step.on_client(stack([0, 0, 0, 1.0, 0], [0, 3.5, 2, 0, 0]), senders(2, 4, turn=1))
    assert table(second).tolist() == [[0, 0, 0, 1, 0], [0, 0, 4, 0, 0]]


@given(st.lists(st.integers(-8, 8), min_size=5, max_size=5), st.sampled_from([0.2, 0.4, 0.6, 1.0]))
def test_top_k_with_feedback_loses_nothing(update, share):
    step = TopK(share=share)
    step.reset(MODEL, 10)
    total = torch.zeros(5)
    for turn in range(6):
        total += table(step.on_client(stack([float(number) for number in update]), senders(1, turn=turn)))[0]
    kept = torch.cat([step.errors_[name][step.slots_[1]].flatten() for name in MODEL])
    assert torch.equal(total + kept, 6 * torch.tensor(update, dtype=torch.float32))


def test_quantise_has_the_levels_and_the_mean_of_its_formula():
    step, update = Quantise(bits=3), [3.0, -3, 0.5, -1.25, 0]
    found = torch.cat([table(step.on_client(stack(update), senders(5, turn=turn))) for turn in range(4000)])
    assert set(found.flatten().tolist()) <= {-3, -2, -1, 0, 1, 2, 3}  # 2^3 - 1 levels
    assert torch.equal(found[:, [0, 1, 4]].unique(dim=0), torch.tensor([[3.0, -3, 0]]))
    # A number between two levels d apart varies by d^2 p (1 - p).
    assert abs(found[:, 2].mean() - 0.5) < 4 * math.sqrt(0.25 / 4000)
    assert abs(found[:, 3].mean() + 1.25) < 4 * math.sqrt(0.1875 / 4000)


@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 16))
def test_quantise_errs_by_less_than_a_level(number, bits):
    update = [number, 1.0, -2.5, 0, 0.3]
    found = table(Quantise(bits=bits).on_client(stack(update), senders(0)))[0]
    level = max(map(abs, update)) / (2 ** (bits - 1) - 1)
    assert float((found - torch.tensor(update)).abs().max()) <= level * (1 + 1e-5)


def test_noise_of_clients_has_its_distribution():
    step = GaussianNoise(multiplier=1.5, where="client")
    zeros, clients = {"w": torch.zeros(40, 500)}, range(40)
    drawn = step.on_client(zeros, senders(*clients, total=40, bound=2.0))["w"].double()
    # 20,000 normal numbers with standard deviation z S = 3: mean, variance, and a quantile.
    assert abs(drawn.mean()) < 4 * 3 / math.sqrt(20_000)
    assert abs(drawn.std() / 3 - 1) < 4 / math.sqrt(2 * 20_000)
    assert abs((drawn.abs() < 3).double().mean() - 0.6826895) < 4 * math.sqrt(0.2166 / 20_000)
    assert abs(torch.corrcoef(drawn[:2])[0, 1]) < 4 / math.sqrt(500)


def test_noise_of_the_server_is_relative_to_the_sensitivity():
    step, rng = GaussianNoise(multiplier=2.0), np.random.default_rng(5)
    delta = {"w": torch.ones(20_000, dtype=torch.float64)}
    assert step.on_client(delta, senders(0)) is delta
    drawn = step.at_server(delta, 0.25, rng)["w"]
    assert abs(drawn.mean() - 1) < 4 * 0.5 / math.sqrt(20_000)
    assert abs(drawn.std() / 0.5 - 1) < 4 / math.sqrt(2 * 20_000)


def test_a_client_draws_the_same_whoever_else_sends():
    for step in (GaussianNoise(where="client"), Quantise(bits=2), Corrupt(kind="gaussian", share=1.0)):
        alone = table(step.on_client(stack([1.0, 2, 3, 4, 5]), senders(7, bound=1.0)))
        both = table(step.on_client(stack([9.0] * 5, [1.0, 2, 3, 4, 5]), senders(2, 7, bound=1.0)))
        assert torch.equal(alone[0], both[1])
        again = table(step.on_client(stack([1.0, 2, 3, 4, 5]), senders(7, turn=1, bound=1.0)))
        assert not torch.equal(alone, again)


@pytest.mark.parametrize("kind", ["sign", "gaussian"])
def test_corrupt_clients_send_something_else(kind):
    step = Corrupt(kind=kind, share=0.2, scale=2.0)
    wrong = step.clients(10, seed=3).tolist()
    updates = stack(*[[float(client), 1, -1, 0, 2] for client in range(10)])
    found = table(step.on_client(updates, senders(*range(10))))
    honest = [client for client in range(10) if client not in wrong]
    assert len(wrong) == 2
    assert torch.equal(found[honest], table(updates)[honest])
    if kind == "sign":
        assert torch.equal(found[wrong], -2 * table(updates)[wrong])
    else:
        expected = 2 * table(updates)[wrong].norm(dim=1)
        torch.testing.assert_close(found[wrong].norm(dim=1), expected)


def test_corrupt_labels():
    y, everyone = torch.tensor([0, 1, 2, 3] * 500), senders(*range(10))
    flipped = Corrupt(kind="flipped", share=1.0).labels(y, 0, everyone, 4)
    assert flipped[:4].tolist() == [3, 2, 1, 0]
    noisy = Corrupt(kind="noisy", share=1.0, noise=0.3).labels(y, 0, everyone, 4)
    changed = noisy != y
    assert abs(changed.double().mean() - 0.3) < 4 * math.sqrt(0.21 / 2000)
    counts = Counter(((noisy - y) % 4)[changed].tolist())
    assert set(counts) == {1, 2, 3}
    assert min(counts.values()) > 140
    step = Corrupt(kind="flipped", share=0.2)
    wrong = step.clients(10, 3).tolist()
    assert [c for c in range(10) if not torch.equal(step.labels(y, c, everyone, 4), y)] == wrong


def test_corrupt_clients_of_a_smaller_share_are_among_those_of_a_larger_one():
    few, many = (set(Corrupt(share=share).clients(50, 1).tolist()) for share in (0.1, 0.4))
    assert len(few) == 5
    assert len(many) == 20
    assert few < many
    assert few != set(Corrupt(share=0.1).clients(50, 2).tolist())


def test_bytes_of_an_update():
    whole = Message(numbers=1000, bits=32, beside=16)
    assert whole.bytes == 4016
    assert TopK(share=0.05).message(whole).bytes == 50 * 8 + 16
    assert TopK(share=0.8).message(whole).bytes == 4016
    assert Quantise(bits=4).message(whole).bytes == 500 + 4 + 16
    both = Quantise(bits=4).message(TopK(share=0.05).message(whole))
    assert both.bytes == math.ceil(50 * 36 / 8) + 4 + 16


NOISE = GaussianNoise()
LOCAL = GaussianNoise(where="client")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([NOISE], "updates\\[0\\] GaussianNoise must follow a step that bounds"),
        ([Clip(), TopK(), NOISE], "updates\\[2\\] GaussianNoise must follow"),
        ([Clip(), Corrupt(kind="sign"), LOCAL], "updates\\[2\\] GaussianNoise must follow"),
        ([Clip(), LOCAL, NOISE], "updates\\[2\\] GaussianNoise must follow"),
        ([TopK(), Clip(), LOCAL], "updates\\[2\\] GaussianNoise must come before updates\\[0\\] TopK, whose"),
        ([Quantise(), Corrupt(kind="gaussian")], "updates\\[1\\] Corrupt must come before updates\\[0\\] Q"),
        ([Clip(), NOISE, TopK()], "updates\\[2\\] TopK must come before updates\\[1\\] GaussianNoise"),
    ],
)
def test_lists_without_sense_are_refused(steps, said):
    with pytest.raises(UserError, match=said):
        check_steps(steps)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [TopK(), Clip(), NOISE],
        [Clip(), TopK(feedback=False), NOISE],
        [Clip(), LOCAL, TopK(), Quantise()],
        [TopK(), Corrupt(kind="sign")],
        [Clip(), Corrupt(kind="noisy"), NOISE],
    ],
)
def test_lists_with_sense_pass(steps):
    check_steps(steps)


@settings(max_examples=20)
@given(st.permutations(range(5)))
def test_the_order_of_clients_does_not_matter(order):
    updates = torch.arange(25.0).reshape(5, 5).sin()
    for made in (Clip, TopK, Quantise, lambda: Corrupt(kind="gaussian", share=0.5)):
        straight, mixed = made(), made()
        for step in (straight, mixed):
            step.reset(MODEL, 10)
        for turn in range(2):
            first = table(straight.on_client(stack(*updates.tolist()), senders(*range(5), turn=turn)))
            second = table(mixed.on_client(stack(*updates[order].tolist()), senders(*order, turn=turn)))
            assert torch.equal(first[order], second)


def test_a_step_without_methods_changes_nothing():
    class Plain(UpdateStep):
        pass

    step, delta = Plain(), {"w": torch.ones(2)}
    assert not step.changes_updates
    assert step.on_client(delta, senders(0)) is delta
    assert step.at_server(delta, 1.0, np.random.default_rng(0)) is delta
