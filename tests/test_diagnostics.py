"""Diagnostics of selectors in a run's folder: few clients, few rounds, the same after an interruption."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flsel.errors import UserError
from flsel.runner.diagnostics import FILE, MOST_CLIENTS, MOST_ROUNDS, Recorder, read_diagnostics
from flsel.runner.run_log import JsonLines, Mark
from flsel.selector.diagnostic import Diagnostic
from flsel.selectors import FedCor, FedPNS, HiCS
from flsel.selectors._hics import entropy

CLIENTS, ROUNDS = 250, 100


class Telling:
    """Tells the round as every client's number, and twice that between clients."""

    def __init__(self) -> None:
        self.round = 0

    def diagnostics(self, clients):
        n = len(clients)
        return [
            Diagnostic("belief", "client", np.full(n, self.round / 3)),
            Diagnostic("distance", "pair", np.full((n, n), 2.0 * self.round)),
        ]


def run_rounds(recorder, selector, first, last):
    for round in range(first, last):
        selector.round = round + 1
        recorder.after(selector, round, round + 1)


def test_few_clients_and_rounds_are_kept_and_read_back(tmp_path):
    recorder, selector = Recorder(JsonLines(tmp_path / FILE), CLIENTS, ROUNDS), Telling()
    run_rounds(recorder, selector, 0, ROUNDS)
    recorder.end(selector, ROUNDS)
    belief, distance = read_diagnostics(tmp_path)
    assert belief.clients.shape == (MOST_CLIENTS,)
    assert belief.clients[[0, -1]].tolist() == [0, CLIENTS - 1]
    assert 0.5 * MOST_ROUNDS < len(belief.rounds) <= MOST_ROUNDS
    np.testing.assert_allclose(belief.values, np.repeat(belief.rounds[:, None] / 3, MOST_CLIENTS, 1), 1e-4)
    assert distance.rounds.tolist() == [ROUNDS]
    assert (distance.values == 2.0 * ROUNDS).all()


def test_a_resumed_run_leaves_the_same_file(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    marks: dict[int, Mark] = {}
    for folder, stops in ((whole, [(0, ROUNDS)]), (parts, [(0, 58), (50, 58), (50, ROUNDS)])):
        folder.mkdir()
        for first, last in stops:
            file = JsonLines(folder / FILE)
            file.lines.rewind(marks.get(first, Mark()))
            recorder, selector = Recorder(file, 7, ROUNDS), Telling()
            for round in range(first, last):
                run_rounds(recorder, selector, round, round + 1)
                marks[round + 1] = file.lines.mark()
        recorder.end(selector, ROUNDS)
    assert (parts / FILE).read_bytes() == (whole / FILE).read_bytes()


def test_a_selector_without_any_leaves_no_file(tmp_path):
    class Silent:
        def diagnostics(self, clients):
            return ()

    recorder = Recorder(JsonLines(tmp_path / FILE), 4, 4)
    run_rounds(recorder, Silent(), 0, 4)
    recorder.end(Silent(), 4)
    assert list(tmp_path.iterdir()) == []
    assert read_diagnostics(tmp_path) == []


def test_a_wrong_shape_and_a_damaged_file_are_named(tmp_path):
    class Wrong:
        def __init__(self, told):
            self.told = told

        def diagnostics(self, clients):
            return self.told

    for told, said in (
        ([Diagnostic("belief", "pair", np.zeros(4))], r"'belief' must be a pair of 4 clients, in numbers"),
        (
            [Diagnostic("belief", "client", np.full(4, "x"))],
            r"'belief' must be a client of 4 clients, in",
        ),
        ([Diagnostic("belief", "client", [[1], [2, 3]])], r"'belief' must be a client of 4 clients"),
        (None, "must return a list of Diagnostic, got null"),
        ([3], r"must return a list of Diagnostic, got \[3\]"),
    ):
        with pytest.raises(UserError, match=rf"^Wrong.diagnostics.*{said}"):
            Recorder(JsonLines(tmp_path / FILE), 4, 4).end(Wrong(told), 4)
    with pytest.raises(UserError, match=r"^kind must be one of client, entropy, pair, visit, got 'odd'\.$"):
        Diagnostic("belief", "odd", np.zeros(4))
    (tmp_path / FILE).write_text('{"round": 1, "words": "x", "kind": "odd", "values": [1]}\n')
    with pytest.raises(UserError, match="is damaged"):
        read_diagnostics(tmp_path)


def test_what_the_papers_selectors_tell_is_what_they_choose_by():
    sizes, some = torch.full((6,), 10), np.array([0, 3, 5])
    hics = HiCS(temperature=0.5)
    hics.reset(sizes, 4)
    hics.signal_ = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    hics.measured_[[0, 5]] = True
    (told,) = hics.diagnostics(some)
    expected = entropy(hics.signal_.numpy()[some], 0.5)
    np.testing.assert_allclose(told.values, [expected[0], np.nan, expected[2]])

    fedcor = FedCor(d=3)
    fedcor.reset(sizes, 4)
    assert list(fedcor.diagnostics(some)) == []
    fedcor.embedding_ = torch.tensor([[1.0, 0, 0, 2, 0, 1], [0, 1, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0]]).double()
    (told,) = fedcor.diagnostics(some)
    np.testing.assert_allclose(told.values, [[1, 1, 0.5**0.5], [1, 1, 0.5**0.5], [0.5**0.5, 0.5**0.5, 1]])

    fedpns = FedPNS()
    fedpns.reset(sizes, 4)
    (told,) = fedpns.diagnostics(np.arange(6))
    assert told.values.sum() == pytest.approx(1)
