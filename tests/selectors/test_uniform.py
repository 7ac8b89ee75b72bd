"""Uniform sampling: inclusion, pool, and the four weightings against the reference aggregations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from plain_views import assert_frequencies, chosen, updates, view

from flsel.selectors.uniform import Uniform

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "13_aggregation.json"


def test_every_set_of_the_pool_has_the_same_chance():
    def draw(seed):
        return chosen(Uniform().select(view([1, 50, 5, 9, 7, 0], 2, seed=seed, absent=[3])))

    assert_frequencies(draw, [0.5, 0.5, 0.5, 0.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [("size", "data_share_DERIVED"), ("equal", "uniform_clustered"), ("partial", "partial_fedavg")],
)
def test_weights_give_the_reference_aggregations(weights, expected):
    golden = json.loads(GOLDEN.read_text())
    sizes = [2, 1, 3, 4]  # of ten examples: the golden file's shares 0.2, 0.1, 0.3 for those selected
    assert golden["inputs"]["p_selected"] == [0.2, 0.1, 0.3]
    weight = Uniform(weights).weigh(view(sizes, 3), updates([0, 1, 2], sizes))
    for name, old in golden["inputs"]["old"].items():
        start = torch.tensor(old, dtype=torch.float64)
        ends = torch.tensor([end[name] for end in golden["inputs"]["local_models"]], dtype=torch.float64)
        new = start + torch.tensordot(weight, ends - start, dims=1)
        torch.testing.assert_close(new, torch.tensor(golden["outputs"][expected][name], dtype=torch.float64))


def test_scaled_weights_are_unbiased():
    sizes = [5, 1, 0, 14]
    total = torch.zeros(4, dtype=torch.float64)
    for seed in range(2000):
        now = view(sizes, 2, seed=seed)
        clients = chosen(Uniform("scaled").select(now))
        total[clients] += Uniform("scaled").weigh(now, updates(clients, sizes))
    torch.testing.assert_close(total / 2000, torch.tensor(sizes).double() / 20, atol=0.06, rtol=0)


def test_weights_are_those_of_double_precision():
    sizes = [5, 1, 7, 14]
    weights = Uniform("scaled").weigh(view(sizes, 3), updates([0, 2, 3], sizes))
    assert weights.tolist() == pytest.approx([4 * 5 / 27 / 3, 4 * 7 / 27 / 3, 4 * 14 / 27 / 3], rel=1e-15)
