"""A run warns of a selector that draws from another generator than its own, or misnames its state."""

from __future__ import annotations

import logging
import random
import sys
import threading
import time

import numpy as np
import pytest
import runs
import torch

from flsel.engine.selector_calls import select
from flsel.engine.watches import _warn_of_draws, _warn_unkept
from flsel.errors import UserError
from flsel.execution.run import run
from flsel.metrics import Ledger
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


class Busy:
    """A thread that draws from a global generator all the time."""

    def __init__(self, source: str) -> None:
        self._draw, self._over = DRAWS[source], threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            self._draw()
            time.sleep(0.0005)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


class Waits(Careless):
    needs = Need.LOSSES

    def select(self, view: View) -> Plan:
        time.sleep(0.01 if self.source != "numpy.random" else 0.0)
        view.losses(view.pool)
        return super().select(view)


class Slow:
    """Answers that take a while, in which clients and messages draw."""

    def losses(self, clients: object, at: object) -> torch.Tensor:
        DRAWS[self.source]()
        time.sleep(0.01)
        return torch.zeros(4)

    def __init__(self, source: str) -> None:
        self.source = source


def shown(source: str) -> View:
    rest = {"params": {}, "rng": np.random.default_rng(0), "ledger": Ledger(), "needs": Need.LOSSES}
    everybody, sizes = torch.ones(4, dtype=torch.bool), torch.ones(4, dtype=torch.int64)
    return View(0, 9, 2, everybody, sizes, 2, answers=Slow(source), **rest)


@pytest.mark.parametrize("other", ["random", "torch"])
@pytest.mark.parametrize("source", ["random", "torch", "none"])
def test_what_other_threads_draw_is_not_the_selectors(caplog, source, other):
    _warn_of_draws.cache_clear()
    with caplog.at_level(logging.WARNING, logger="flsel"), Busy(other):
        select(Waits(source), shown(other), [])
    assert [f"global generator of {source}," in text for text in caplog.messages] == [True] * (
        source != "none"
    )
    assert sys.getprofile() is None


@pytest.mark.parametrize("source", ["random", "torch", "numpy.random"])
def test_what_is_drawn_while_a_question_is_answered_is_not_the_selectors(caplog, source):
    _warn_of_draws.cache_clear()
    view = shown(source)
    with caplog.at_level(logging.WARNING, logger="flsel"):
        select(Waits("none"), view, [])
    assert caplog.messages == []
    assert view.asked_total == set()


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
