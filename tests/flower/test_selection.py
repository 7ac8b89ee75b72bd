"""Rounds over clients that answer messages, without Flower: what is aggregated, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flsel
from flsel.errors import UserError
from flsel.flower.members import Members
from flsel.flower.remote_model import Holdout
from flsel.flower.round_parts import RoundSummary, Rules
from flsel.flower.selection import Selection
from flsel.flower.wire import Reply, Request
from flsel.selector import Need, Selector, Updates, View
from flsel.selectors import HiCS, Uniform

MODEL = {"weight": np.zeros((3, 2), np.float32), "bias": np.zeros(3, np.float32)}
EXAMPLES = {1: 10, 2: 30}


class Nodes:
    """Two nodes whose clients say who they are and how many examples they have."""

    def nodes(self) -> list[int]:
        return list(EXAMPLES)

    def exchange(self, requests: Sequence[Request], timeout: float) -> list[Reply]:
        assert {request.action for request in requests} <= {"hello"}
        return [
            Reply(
                values={
                    "client": str(r.node),
                    "examples": EXAMPLES[r.node],
                    "answers": "",
                    "version": flsel.__version__,
                }
            )
            for r in requests
        ]


class Meddler(Uniform):
    """Writes to what it is shown in one of its methods."""

    needs = Need.DELTAS

    def __init__(self, where: str) -> None:
        self.where = where

    def weigh(self, view: View, updates: Updates) -> Tensor:
        if self.where == "weigh":
            updates.deltas["bias"].add_(1.0)
        return super().weigh(view, updates)

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        if self.where == "observe":
            view.params["weight"].mul_(2.0).add_(1.0)


def one_round(selector: Selector, moves: Sequence[float]) -> RoundSummary:
    """Run a round in which client k moves every parameter by ``moves[k]``."""
    members = Members(2, labels=False, timeout=1.0, wait=0.0)
    rules = Rules(2, 0, 1.0, None, None, Holdout(), None)
    selection = Selection(selector, members, rules)
    trainings = selection.open(Nodes(), MODEL, 10, {})
    replies = [
        Reply({"model": {n: a + np.float32(moves[t.client]) for n, a in t.arrays.items()}}, seconds=0.5)
        for t in trainings
    ]
    found = selection.returned(replies)
    assert found is not None
    return found


def test_updates_are_weighed_by_examples() -> None:
    found = one_round(Uniform(), [1.0, 2.0])
    assert found.arrays is not None
    assert found.clients == pytest.approx({0: 0.25, 1: 0.75})
    np.testing.assert_allclose(found.arrays["weight"], 1.75)


def test_updates_that_are_not_finite_are_dropped() -> None:
    found = one_round(Uniform(), [float("nan"), 2.0])
    assert found.arrays is not None
    assert (found.dropped, found.ledger["dropped_updates"]) == ([0], 1)
    np.testing.assert_allclose(found.arrays["bias"], 2.0)


@pytest.mark.parametrize("where", ["weigh", "observe"])
def test_a_selector_that_writes_to_what_it_is_shown_is_refused(where: str) -> None:
    with pytest.raises(UserError, match=rf"^Meddler\.{where} writes to what the view or the updates show"):
        one_round(Meddler(where), [1.0, 2.0])


def test_a_selector_that_draws_from_a_global_generator_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Global(Uniform):
        def select(self, view: View) -> flsel.Plan:
            torch.rand(1)
            return super().select(view)

    one_round(Global(), [1.0, 2.0])
    assert "Global draws from the global generator of torch" in caplog.text


@pytest.mark.parametrize(
    ("model", "given", "reason"),
    [
        ({"w": np.zeros((3, 2), np.float32)}, {}, 'selector.signal must be "weight_mean" for a model whose'),
        (MODEL, {"num_classes": 5}, r"which HiCS reads, got weight \[3, 2\]. The number of classes is"),
        (MODEL, {"output_layer": ("bias", None)}, r"which HiCS reads, got bias \[3\]"),
        (
            {"bias": np.zeros(3, np.float32)},
            {"num_classes": 3},
            "must name the model's last weight .* which HiCS reads; no array of the model has rows",
        ),
    ],
)
def test_an_output_layer_that_a_selector_cannot_read_is_refused_before_anything_trains(
    model: dict[str, np.ndarray], given: dict[str, Any], reason: str
) -> None:
    rules = replace(Rules(2, 0, 1.0, None, None, Holdout(), None), **given)
    selection = Selection(HiCS(), Members(2, labels=False, timeout=1.0, wait=0.0), rules)
    with pytest.raises(UserError, match=reason):
        selection.open(Nodes(), model, 10, {})
    assert not hasattr(selection.selector, "asked_")
