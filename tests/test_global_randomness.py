"""A run warns of a selector that draws from another generator than its own, or misnames its state."""

from __future__ import annotations

import logging
import random
import threading

import numpy as np
import pytest
import runs
import torch
from torch import Tensor, nn

from flsel.engine.watches import _warn_of_draws, _warn_unkept
from flsel.errors import UserError
from flsel.execution.run import run
from flsel.selector import Need, Plan, Selector, View

DRAWS = {
    "random": random.random,
    "numpy.random": np.random.random,
    "torch": lambda: torch.rand(1),
    "none": lambda: None,
}


class Careless(Selector):
    def __init__(self, source: str = "none") -> None:
        self.source = source

    def select(self, view: View) -> Plan:
        DRAWS[self.source]()
        return Plan.star(view.rng.permutation(view.pool)[: view.clients_per_round])


@pytest.mark.parametrize("source", DRAWS)
def test_global_randomness_is_said_once(tmp_path, caplog, source):
    _warn_of_draws.cache_clear()
    with caplog.at_level(logging.WARNING, logger="flsel"):
        run(runs.settings(tmp_path, selector=Careless(source)))
    said = [record.getMessage() for record in caplog.records if "global generator" in record.getMessage()]
    assert len(said) == (source != "none")
    assert all(f"Careless draws from the global generator of {source}, so" in line for line in said)


class Asks(Careless):
    needs = Need.LOSSES | Need.SHADOW | Need.GRADIENTS

    def select(self, view: View) -> Plan:
        view.losses(view.pool)
        view.shadow(view.pool)
        view.gradients(view.pool)
        return super().select(view)


class Draws(nn.Module):
    """A model that draws from every global generator, whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 0.01 * (random.random() + np.random.random() + torch.rand(1))


@pytest.mark.parametrize("source", DRAWS)
def test_what_clients_draw_is_not_the_selectors(tmp_path, caplog, source):
    _warn_of_draws.cache_clear()
    with caplog.at_level(logging.WARNING, logger="flsel"):
        runs.built(runs.settings(tmp_path, selector=Asks(source), model=Draws)).server.step()
    said = [text for text in caplog.messages if "global generator" in text]
    assert [f"Asks draws from the global generator of {source}," in text for text in said] == [True] * (
        source != "none"
    )


@pytest.mark.parametrize(("source", "said"), [("random", 0), ("numpy.random", 1), ("torch", 1)])
def test_pythons_generator_is_not_judged_while_threads_may_draw_from_it(tmp_path, caplog, source, said):
    _warn_of_draws.cache_clear()
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with caplog.at_level(logging.WARNING, logger="flsel"):
            runs.built(runs.settings(tmp_path, selector=Careless(source))).server.step()
    finally:
        over.set()
        thread.join()
    assert len([text for text in caplog.messages if "global generator" in text]) == said


class Counts(Selector):
    def __init__(self, where: str = "turn", turn: int = 0) -> None:
        self.where, self.turn = where, turn

    def select(self, view: View) -> Plan:
        setattr(self, self.where, getattr(self, self.where, 0) + 1)
        self.made = "at first, and never changed"
        return Plan.star([getattr(self, self.where) % 8])


@pytest.mark.parametrize(("where", "says"), [("turn", True), ("turns_", False)])
def test_what_no_checkpoint_keeps_is_said_once(tmp_path, caplog, where, says):
    _warn_unkept.cache_clear()
    with caplog.at_level(logging.WARNING, logger="flsel"):
        run(runs.settings(tmp_path, selector=Counts(where)))
    said = [text for text in caplog.messages if "checkpoints do not keep" in text]
    assert [text.partition(" changes its turn,")[0] for text in said] == ["Counts"] * says


def test_state_that_is_made_in_a_round_comes_back():
    first = Counts("turns_")
    first.turns_ = 3
    again = Counts("turns_")
    again.load_state_dict(first.state_dict())
    assert again.turns_ == 3
    first.turns_ = [first]
    first.turns_[0] = first.turns_
    with pytest.raises(UserError, match=r"Counts\.turns_ is part of itself"):
        first.state_dict()
