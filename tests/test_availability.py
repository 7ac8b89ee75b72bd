from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentParser

from flsel.availability import IDL, LDF, LN, MDF, SLN, YC, YMF, Availability, Schedule, Trace
from flsel.errors import UserError
from flsel.objectives import FedAvg
from flsel.rng import generator
from flsel.selectors import Uniform

# Probabilities of the FedGS reference code; provenance is inside the file.
GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden/fedgs_availability.json").read_text())
MODES: list[Availability] = [IDL(), MDF(), LDF(), YMF(), YC(), LN(), SLN()]


def golden_counts() -> np.ndarray:
    counts = np.zeros((len(GOLDEN["sizes"]), GOLDEN["num_labels"]), dtype=np.int64)
    for client, (size, labels) in enumerate(zip(GOLDEN["sizes"], GOLDEN["labels"], strict=True)):
        counts[client, labels] = 1
        counts[client, labels[0]] += size - len(labels)
    return counts


def probabilities(mode: Availability, counts: np.ndarray, rounds: int = 1, seed: int = 0) -> np.ndarray:
    return mode.probabilities(counts, np.arange(rounds), generator(seed, "test"))


def trace(mode: Availability, counts: np.ndarray, rounds: int, seed: int) -> np.ndarray:
    return np.array([Trace(mode, counts, seed)(round) for round in range(rounds)])


@st.composite
def populations(draw: st.DrawFn) -> np.ndarray:
    clients, labels = draw(st.integers(1, 20)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    counts = rng.integers(1, 50, (clients, labels)) * (rng.random((clients, labels)) < 0.4)
    counts[draw(st.integers(0, clients - 1)), draw(st.integers(0, labels - 1))] = 7
    return counts


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("IDL", IDL()),
        ("MDF-0.7", MDF(0.7)),
        ("LDF-0.7", LDF(0.7)),
        ("MDF-0.9", MDF(0.9)),
        ("LDF-0.9", LDF(0.9)),
        ("YMF-0.9", YMF(0.9)),
    ],
)
def test_constant_modes_match_the_reference(name: str, mode: Availability) -> None:
    table = probabilities(mode, golden_counts(), rounds=3)
    for key in ("reference", "paper"):
        np.testing.assert_allclose(table, [GOLDEN["modes"][name][key]] * 3, atol=1e-9)


def test_label_cycle_matches_the_reference_in_every_round() -> None:
    golden = GOLDEN["modes"]["YC-0.9"]
    table = probabilities(YC(0.9), golden_counts(), rounds=2 * golden["T"])
    np.testing.assert_allclose(table, golden["reference_by_round"] * 2, atol=1e-9)
    np.testing.assert_array_equal(table, probabilities(YC(0.9, period=100), golden_counts(), rounds=200))


@pytest.mark.parametrize(
    ("schedule", "golden"),
    [
        (LN(0.5).given, [GOLDEN["modes"]["LN-0.5"]["paper_given_c"]] * 24),
        (SLN(0.5).given, GOLDEN["modes"]["SLN-0.5"]["paper_by_round"]),
    ],
    ids=["LN", "SLN"],
)
def test_log_normal_modes_match_the_paper_for_given_scales(schedule: Any, golden: list[list[float]]) -> None:
    bound: Schedule = schedule(np.array(GOLDEN["modes"]["LN-0.5"]["c_k"]))
    np.testing.assert_allclose(bound(np.arange(24)), golden, atol=1e-9)


def test_uniform_draws_at_most_the_probability_make_a_client_active() -> None:
    chance = probabilities(MDF(0.7), golden_counts())[0]
    for draw in GOLDEN["draws_MDF-0.7"]:
        assert np.flatnonzero(np.array(draw["uniforms"]) <= chance).tolist() == draw["active"]


@pytest.mark.parametrize("mode", MODES, ids=repr)
@given(counts=populations(), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_probabilities_are_probabilities_and_zero_for_empty_clients(
    mode: Availability, counts: np.ndarray, seed: int
) -> None:
    table = probabilities(mode, counts, rounds=30, seed=seed)
    empty = counts.sum(axis=1) == 0
    assert table.shape == (30, len(counts))
    assert ((table >= 0) & (table <= 1)).all()
    assert (table[:, empty] == 0).all()
    assert (table[:, ~empty] > 0).all()


@given(counts=populations())
@settings(max_examples=25)
def test_beta_zero_makes_everybody_available_but_for_the_wave(counts: np.ndarray) -> None:
    full = counts[counts.sum(axis=1) > 0]
    for mode in (MDF(0.0), LDF(0.0), YMF(0.0), YC(0.0), LN(0.0)):
        np.testing.assert_array_equal(probabilities(mode, full, rounds=5), 1.0)
    wave = probabilities(SLN(0.0), full, rounds=24)
    np.testing.assert_allclose(wave, np.repeat(wave[:, :1], len(full), axis=1))
    np.testing.assert_allclose(wave[:, 0].mean(), 0.5)
    assert wave.max() == pytest.approx(0.9)
    assert wave.min() == pytest.approx(0.1)


@pytest.mark.parametrize("mode", MODES, ids=repr)
@given(counts=populations(), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_trace_rows_are_the_same_in_any_order_and_never_empty(
    mode: Availability, counts: np.ndarray, seed: int
) -> None:
    table = trace(mode, counts, 12, seed)
    again = Trace(mode, counts, seed)
    assert table.dtype == np.bool_
    assert table.shape == (12, len(counts))
    assert table.any(axis=1).all()
    assert not table[:, counts.sum(axis=1) == 0].any()
    for round in (11, 0, 5):
        generator(seed, "select", round).random(3)
        np.testing.assert_array_equal(again(round), table[round])


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_clients_are_active_as_often_as_their_probability_says(mode: Availability) -> None:
    counts = np.tile(golden_counts(), (4, 1))
    rounds = 2400
    expected = mode.probabilities(counts, np.arange(rounds), generator(5, "availability-scale"))
    observed = trace(mode, counts, rounds, 5)
    np.testing.assert_allclose(observed.mean(axis=0), expected.mean(axis=0), atol=0.045)


def test_traces_differ_between_seeds() -> None:
    assert not np.array_equal(trace(LN(), golden_counts(), 20, 0), trace(LN(), golden_counts(), 20, 1))


def test_rounds_in_which_nobody_was_drawn_are_drawn_again() -> None:
    table = trace(YC(0.99, period=50), np.array([[9, 0, 0, 0, 0]]), 300, 0)
    assert table.all()


@given(classes=st.integers(1, 12), turns=st.integers(1, 7))
@settings(max_examples=30)
def test_every_label_has_its_turn_and_no_phase_is_orphaned(classes: int, turns: int) -> None:
    one_label_each = np.eye(classes, dtype=np.int64)
    table = probabilities(YC(0.5, period=turns * classes), one_label_each, rounds=turns * classes)
    np.testing.assert_array_equal((table == 1).sum(axis=1), 1)
    np.testing.assert_array_equal((table == 1).sum(axis=0), turns)


def test_log_normal_scale_is_the_standard_deviation() -> None:
    table = probabilities(LN(0.5), np.ones((20_000, 1), dtype=np.int64))[0]
    assert np.log(table).std() == pytest.approx(np.log(2), rel=0.02)


def test_larger_beta_means_less_available() -> None:
    counts = golden_counts()
    for kind in (MDF, LDF, YMF, YC, LN):
        means = [probabilities(kind(beta), counts, rounds=100).mean() for beta in (0.0, 0.3, 0.6, 0.9)]
        assert means == sorted(means, reverse=True)


class Never(Availability):
    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        return lambda rounds: np.zeros((len(rounds), len(counts)))


class Hardly(Availability):
    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        return lambda rounds: np.full((len(rounds), len(counts)), 1e-12)


@pytest.mark.parametrize("mode", [Never(), Hardly()])
def test_nobody_is_there_where_probabilities_are_zero_or_hardly_more(mode: Availability) -> None:
    assert not Trace(mode, golden_counts(), 0)(3).any()


def test_a_population_without_samples_is_an_error() -> None:
    with pytest.raises(UserError, match="no client has training examples"):
        Trace(IDL(), np.zeros((3, 2), dtype=np.int64), 0)


def test_config_makes_modes_by_short_name() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--availability", type=Availability)
    arguments = ["--availability=YC", "--availability.beta=0.5", "--availability.period=50"]
    assert parser.instantiate(parser.parse_args(arguments)).availability == YC(0.5, 50)


@pytest.mark.parametrize(
    ("base", "method"),
    [
        (Availability, "bind"),
        (Availability, "probabilities"),
        (Uniform, "state_dict"),
        (FedAvg, "load_state_dict"),
    ],
)
def test_what_a_base_answers_for_is_not_overridden(base, method):
    with pytest.raises(TypeError, match=f"Mine must not define {method}"):
        type("Mine", (base,), {method: lambda self: None})
