"""Simulated time: the table of devices, what requests take, and which paths arrive."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from runs import built, differ_when_resumed, same, settings

from flsel import run
from flsel.commands.cli import main
from flsel.commands.device_tables import expected_round
from flsel.config.simulated_time import TimeConfig
from flsel.devices import Devices, Equal, HalfNormal, LogNormal, Phones, Recorded, Table, Tiers, Zipf
from flsel.engine.arrival import arrive
from flsel.engine.clock import Clock, Elapsed, RoundTime, sent
from flsel.engine.stopwatch import Stopwatch
from flsel.errors import UserError
from flsel.local.schedule import BatchSpec, batch_table
from flsel.metrics import Cost
from flsel.objectives import MOON, SCAFFOLD
from flsel.selector import Need, Plan, Selector
from flsel.selectors import MD, DivFL, FedCat, FedCS, FedGS, FedPNS, Oort, PowD, TiFL, Uniform

MODEL = 400_000
PLAIN = TimeConfig()
LOSS = Cost(models_down=1, bytes_down=MODEL, passes=1, scalars_up=1)
SHIPPED: list[Devices] = [Equal(), LogNormal(), Tiers(), Phones(), Zipf(), HalfNormal()]


def clock(rules: TimeConfig = PLAIN, **changes: Any) -> Clock:
    """The table of the checks by hand: three clients, one epoch."""
    sizes = np.array([100, 100, 50])
    table = Table(np.array([0.01, 0.02, 0.04]), 1e6, 1e6, 0.0, 0.0)
    columns = {name: np.broadcast_to(np.asarray(value, float), (3,)) for name, value in vars(table).items()}
    made = Clock(Table(**columns), rules, 0, sizes, sizes, 0, 1, MODEL)
    return replace(made, **changes)


def round_of(plan: Plan, rules: TimeConfig = PLAIN, wanted: int = 9, **changes: Any) -> Any:
    watch = Stopwatch(clock(rules, **changes), 0)
    return watch.train(plan, Cost(), wanted=wanted)


def test_trainings_take_what_was_computed_by_hand() -> None:
    assert clock().profile([0, 1, 2]) == pytest.approx([3.8, 6.8, 6.8], abs=1e-12)
    arrival = round_of(Plan.star([0, 1, 2]))
    assert arrival.seconds == pytest.approx(6.8, abs=1e-12)
    assert arrival.durations == pytest.approx([3.8, 6.8, 6.8], abs=1e-12)


def test_a_question_is_waited_for_and_saves_the_second_download() -> None:
    watch = Stopwatch(clock(), 0)
    watch.ask([0, 1, 2], LOSS, watch.clock.forward([0, 1, 2]))
    arrival = watch.train(Plan.star([2]), Cost(), wanted=1)
    time = watch.finish(arrival, 0, [])
    assert time.questions == pytest.approx(2.400008, abs=1e-12)
    assert time.seconds == pytest.approx(8.800008, abs=1e-12)
    assert time.client_seconds == pytest.approx(1.400008 + 2 * 2.400008 + 6.4, abs=1e-12)
    assert round_of(Plan.star([2])).seconds == pytest.approx(6.8, abs=1e-12)


def test_paths_of_two_hops_wait_at_the_server_or_do_not() -> None:
    plan = Plan(((0, 1), (1, 0)))
    assert round_of(plan).seconds == pytest.approx(13.6, abs=1e-12)
    assert round_of(plan, TimeConfig(relay=True)).seconds == pytest.approx(10.6, abs=1e-12)


def test_over_selection_keeps_the_first_and_a_deadline_what_is_in_time() -> None:
    arrival = round_of(Plan.star([2, 1, 0]), wanted=2)
    assert arrival.plan == Plan.star([1, 0])
    assert arrival.seconds == pytest.approx(6.8, abs=1e-12)
    assert arrival.wasted([]) == pytest.approx(6.8, abs=1e-12)
    assert list(arrival.late) == [2]
    arrival = round_of(Plan.star([0, 1, 2]), TimeConfig(deadline=5.0))
    assert (arrival.plan, arrival.seconds) == (Plan.star([0]), 5.0)
    assert arrival.client_seconds == pytest.approx(3.8 + 6.8 + 6.8, abs=1e-12)
    nobody = round_of(Plan.star([1, 2]), TimeConfig(deadline=5.0))
    assert nobody.plan == Plan.star([1, 2])
    assert nobody.seconds == pytest.approx(6.8, abs=1e-12)


def test_a_late_path_is_dropped_or_rests_where_it_was() -> None:
    plan = Plan(((0, 1), (0, 0)))
    late = {"deadline": 5.0}
    dropped = round_of(plan, TimeConfig(**late))
    assert (dropped.plan, dropped.seconds) == (Plan(((0, 0),)), pytest.approx(3.8 + 5.0))
    assert dropped.wasted([]) == pytest.approx(6.8)
    rests = round_of(plan, TimeConfig(late="rest", **late))
    assert rests.plan == Plan(((0, -1), (0, 0)))
    assert rests.wasted([]) == pytest.approx(6.8)
    relayed = round_of(plan, TimeConfig(late="rest", relay=True, deadline=8.0))
    assert (relayed.plan, relayed.seconds) == (Plan(((0, -1), (0, 0))), 8.0)


def test_a_client_on_two_paths_trains_once_in_the_first_hop_and_twice_later() -> None:
    assert round_of(Plan(((0,), (0,)))).client_seconds == pytest.approx(3.8)
    twice = round_of(Plan(((1, 0), (2, 0))))
    assert twice.seconds == pytest.approx(6.8 + 2 * 3.8)
    assert twice.durations == pytest.approx([6.8 + 3.8, 6.8 + 2 * 3.8])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    hops = draw(st.integers(1, 3))
    paths = draw(st.lists(st.lists(st.integers(-1, 2), min_size=hops, max_size=hops), min_size=1, max_size=5))
    kept = [tuple(path) for path in paths if any(client >= 0 for client in path)]
    return Plan(tuple(kept or [(0,) * hops]))


@given(plans(), st.integers(1, 5), st.sampled_from([None, 3.0, 5.0, 9.0]), st.booleans())
@effort(max_examples=200, deadline=None)
def test_rules_of_arrival(plan: Plan, wanted: int, deadline: float | None, rest: bool) -> None:
    rules = TimeConfig(deadline=deadline, late="rest" if rest and deadline else "drop")
    arrival = round_of(plan, rules, wanted)
    assert 1 <= len(arrival.plan) <= len(plan)
    assert arrival.plan.hops == plan.hops
    assert all(any(client >= 0 for client in path) for path in arrival.plan.paths)
    assert 0 <= arrival.wasted([]) <= arrival.client_seconds + 1e-9
    assert arrival.wasted(range(len(arrival.plan))) == pytest.approx(arrival.client_seconds)
    if plan.hops == 1:
        assert len(arrival.plan) <= wanted
    relayed = round_of(plan, replace(rules, relay=True), wanted)
    if deadline is None and len(plan) <= wanted:
        assert relayed.seconds <= arrival.seconds + 1e-9
        assert arrival.plan == relayed.plan == plan
    order = np.random.default_rng(0).permutation(len(plan))
    if plan.hops == 1:
        other = round_of(Plan(tuple(plan.paths[k] for k in order)), rules, wanted)
        assert other.seconds == arrival.seconds
        assert sorted(other.plan.paths) == sorted(arrival.plan.paths)
        assert other.client_seconds == arrival.client_seconds


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, unique=True), max_size=4))
def test_a_question_never_makes_a_round_shorter(questions: list[list[int]]) -> None:
    before = -1.0
    for count in range(len(questions) + 1):
        watch = Stopwatch(clock(), 0)
        for asked in questions[:count]:
            watch.ask(asked, LOSS, watch.clock.forward(asked))
        seconds = watch.finish(watch.train(Plan.star([0, 2]), Cost(), wanted=9), 0, []).seconds
        assert seconds >= before
        before = seconds


def test_parts_of_one_request_do_not_wait_for_each_other() -> None:
    parts, whole = Stopwatch(clock(), 0), Stopwatch(clock(), 0)
    with parts.one_request():
        for client in (0, 1, 2):
            parts.ask([client], LOSS, parts.clock.forward([client]))
    whole.ask([0, 1, 2], LOSS, whole.clock.forward([0, 1, 2]))
    arrived = [watch.train(Plan.star([0]), Cost(), wanted=1) for watch in (parts, whole)]
    one, other = (w.finish(a, 0, []) for w, a in zip((parts, whole), arrived, strict=True))
    assert one.seconds == other.seconds
    assert one.client_seconds == pytest.approx(other.client_seconds)


def test_held_updates_are_sent_afterwards() -> None:
    watch = Stopwatch(clock(), 0)
    arrival = watch.train(Plan.star([0, 1, 2]), Cost(), wanted=3, held=True)
    assert arrival.seconds == pytest.approx(6.4)
    watch.collect({0, 1})
    time = watch.finish(arrival, 0, [])
    assert (time.seconds, time.questions) == (pytest.approx(6.8), 0.0)
    assert time.client_seconds == pytest.approx(3.4 + 6.4 + 6.4 + 2 * 0.4)


def test_overhead_and_server_passes_take_time() -> None:
    rules = TimeConfig(overhead=2.0, server_pass=0.5)
    watch = Stopwatch(clock(rules), 0)
    arrival = watch.train(Plan(((0, 0),)), Cost(), wanted=1)
    assert watch.finish(arrival, 3, []).seconds == pytest.approx(2 * 2.0 + 3 * 0.5 + 2 * 3.8)


def test_jitter_belongs_to_the_visit_alone() -> None:
    noisy = replace(clock(), table=replace(clock().table, jitter=np.array([0.5, 0.5, 0.0])))
    passes = noisy.training([0, 1, 2])

    def seconds(clients: list[int], round: int) -> list[float]:
        found = noisy.seconds(clients, passes[clients], down=0.0, up=0.0, round=round)
        return dict(zip(clients, found.tolist(), strict=True)).get(1)  # type: ignore[return-value]

    assert seconds([0, 1, 2], 4) == seconds([1], 4) == seconds([2, 1], 4) != seconds([1], 5)
    still = noisy.seconds([2], passes[[2]], down=0.0, up=0.0, round=4)
    assert still == pytest.approx([6.0])
    drawn = np.mean([seconds([1], round) for round in range(4000)])
    assert drawn == pytest.approx(6.0, rel=0.05)


def test_links_vary_around_their_mean_speed() -> None:
    spreads = {"down_jitter": np.array([0.0, 0.6, 0.0]), "up_jitter": np.array([0.0, 0.0, 0.4])}
    noisy = replace(clock(), table=replace(clock().table, **spreads))
    bare = np.zeros(3)
    rounds = range(4000)

    def speeds(down: float, up: float) -> np.ndarray:
        found = [noisy.seconds([0, 1, 2], bare, down=down, up=up, round=round) for round in rounds]
        return (down + up) / (np.array(found) - np.asarray(noisy.table.delay))

    for speed, known, client in ((speeds(100.0, 0.0), "down", 1), (speeds(0.0, 100.0), "up", 2)):
        expected = np.asarray(getattr(noisy.table, known))
        assert speed.mean(axis=0) == pytest.approx(expected, rel=0.05)
        assert [bool(each) for each in speed.std(axis=0) > 1e-9 * expected] == [n == client for n in range(3)]
        assert np.log(speed[:, client]).std() == pytest.approx(0.6 if known == "down" else 0.4, rel=0.05)
    # A training in the table of a block is the one that is computed part by part.
    model, passes = float(noisy.messages * noisy.model), noisy.training([0, 1, 2])
    down, up = model + noisy.beside.bytes_down, model + sent(noisy.beside)
    for round in (0, 17, 40):
        parts = noisy.seconds([0, 1, 2], passes, down=down, up=up, round=round)
        assert noisy.train([0, 1, 2], [round] * 3) == pytest.approx(parts.tolist(), rel=1e-12)


@given(
    st.integers(1, 40),
    st.integers(1, 9),
    st.sampled_from(["short", "wrap"]),
    st.integers(0, 60),
    st.booleans(),
)
def test_examples_of_a_visit_are_counted_as_they_are_dealt(
    work: int, size: int, last: Any, examples: int, epochs: bool
) -> None:
    spec = BatchSpec(size, work if epochs else None, None if epochs else work, last)
    table = batch_table(spec, np.arange(examples), seed=0, round=0, client=0)
    assert spec.num_examples(examples) == (table >= 0).sum()
    assert min(examples, spec.num_examples(examples)) == len(np.unique(table[table >= 0]))


@pytest.mark.parametrize("devices", SHIPPED, ids=lambda devices: type(devices).__name__)
def test_tables_depend_on_the_seed_alone(devices: Devices) -> None:
    sizes = np.arange(1, 301)
    one, again, other = (devices.table(sizes, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(again).values(), strict=True))
    assert all(value.shape == (300,) and value.dtype == np.float64 for value in vars(one).values())
    if not isinstance(devices, Equal):
        assert not np.array_equal(one.seconds, other.seconds)


@pytest.mark.parametrize("kind", [LogNormal, Tiers, Phones, Zipf, HalfNormal])
def test_speed_may_go_with_size(kind: Any) -> None:
    sizes = np.random.default_rng(0).permutation(2000) + 1
    plain = kind().table(sizes, 0)
    for correlation in (-1.0, 0.6, 1.0):
        table = kind(correlation=correlation).table(sizes, 0)
        if kind is not Phones:
            assert np.array_equal(np.sort(table.seconds), np.sort(plain.seconds))
        ranks = [np.argsort(np.argsort(values)) for values in (-table.seconds, sizes)]
        assert np.sign(np.corrcoef(ranks)[0, 1]) == np.sign(correlation)
    fastest = kind(correlation=1.0).table(sizes, 0).seconds
    assert np.all(np.diff(fastest[np.argsort(sizes)]) <= 0)


def test_phones_are_as_frequent_and_as_fast_as_measured() -> None:
    table = Phones().table(np.ones(100_000, dtype=np.int64), 3)
    seconds, counts = np.unique(table.seconds, return_counts=True)
    assert seconds * 3 * 10 * 1000 == pytest.approx([179, 588, 1642])
    assert counts / 1e5 == pytest.approx([0.0045, 0.4640, 0.5315], abs=0.005)
    down, up = np.log(table.down), np.log(table.up)
    assert np.exp(np.median(down)) / 1024 == pytest.approx(4318, rel=0.02)
    assert np.corrcoef(down, up)[0, 1] == pytest.approx(0.45, abs=0.02)


def test_a_round_costs_as_many_medians_as_the_spread_says() -> None:
    """Waiting for ten log-normal clients takes 2.69 medians, for the first ten of 13 takes 1.47."""
    draws = LogNormal(1.0, 0.6).table(np.ones(130_000, dtype=np.int64), 0).seconds.reshape(-1, 13)
    assert draws[:, :10].max(axis=1).mean() == pytest.approx(2.69, rel=0.02)
    assert np.sort(draws, axis=1)[:, 9].mean() == pytest.approx(1.47, rel=0.02)


def test_recorded_devices_are_read_and_checked(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "devices.csv"
    head = "client,seconds,down,up,delay\n"
    path.write_text(head + "1,0.02,2e6,1e6,0.5\n0,0.01,1e6,1e6,0\n")
    table = Recorded(str(path)).table(np.array([5, 5]), 0)
    assert table.seconds.tolist() == [0.01, 0.02]
    assert table.delay.tolist() == [0.0, 0.5]
    path.write_text("\ufeffclient, seconds, down, up, delay, jitter, name\n\n0, 1, 2, 3, 4, 0.5, phone\n")
    table = Recorded(str(path)).table(np.array([5]), 0)
    assert {name: float(column[0]) for name, column in vars(table).items()} == {
        "seconds": 1, "down": 2, "up": 3, "delay": 4, "jitter": 0.5, "down_jitter": 0, "up_jitter": 0,
    }  # fmt: skip
    assert f"{path}: not used: name" in caplog.text
    path.write_text("seconds,down,up,delay,down_sd,up_jitter,seconds_sd\n1,100,50,0,40,0.3,0\n")
    table = Recorded(str(path)).table(np.array([5]), 0)
    assert float(table.down_jitter[0]) == pytest.approx(math.sqrt(math.log(1 + 0.4**2)))
    assert (float(table.up_jitter[0]), float(table.jitter[0])) == (0.3, 0.0)
    good = "0,0.01,1,1,0\n"
    for text, said in (
        (head + "1_0,0.01,1,1,0\n", "a whole number >= 0 as client, .*csv has '1_0' in line 2"),
        (head + "0,1_0,1,1,0\n", "a finite number > 0 as seconds, .*csv has '1_0' in line 2"),
        (head + good + "1,fast,1,1,0\n", "a finite number > 0 as seconds, .*csv has 'fast' in line 3"),
        (head + good + "\n1,-1,1,1,0\n", "a finite number > 0 as seconds, .*csv has '-1' in line 4"),
        (head + good + "1,1,nan,1,0\n", "a finite number > 0 as down, .*csv has 'nan' in line 3"),
        (head + good + "1,1,1,inf,0\n", "as up, .*csv has 'inf' in line 3"),
        (head + good + "1,1,1,1,-2\n", "a finite number >= 0 as delay, .*csv has '-2' in line 3"),
        (head + good + "1.5,1,1,1,0\n", "a whole number >= 0 as client, .*csv has '1.5' in line 3"),
        (head + good + "0,1,1,1,0\n1,1,1,1,0\n", "a second one for client 0 in line 3"),
        (head + good + "1,0,01,1,1,0\n", "5 numbers in each row, .*csv has 6 in line 3"),
        (head + good + "1,1,1\n", "5 numbers in each row, .*csv has 3 in line 3"),
        ("client,seconds\n0,1\n", "without down,up,delay"),
        (head.replace("up", "down") + good, "without up"),
        (head.replace("\n", ",up\n") + good, "with two columns up"),
        (head, "without rows"),
        (head.replace("\n", ",up_sd,up_jitter\n") + "0,1,1,1,0,1,1\n", "one of up_sd and up_jitter"),
        (head.replace("\n", ",down_sd\n") + "0,1,1,1,0,-1\n", "a finite number >= 0 as down_sd"),
        (head.replace(",", ";") + good.replace(",", ";"), "separated by semicolons: use commas"),
        (head.replace(",", "\t") + good, "separated by tabs: use commas"),
        ("", "without rows"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            Recorded(str(path)).table(np.array([5, 5]), 0)
    with pytest.raises(UserError, match="can be read"):
        Recorded(str(tmp_path / "none.csv")).table(np.array([5]), 0)


@pytest.mark.parametrize("head", ["seconds,down,up,delay,name\n", "client,seconds,down,up,delay\n"])
def test_recorded_devices_are_drawn_by_the_seed(head: str, tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    columns = range(head.count(",") + 1)
    rows = [[str(k + 1) for _ in columns] for k in range(6)]
    path.write_text(head + "".join(",".join(row) + "\n" for row in rows))
    fewer, more = (Recorded(str(path)).table(np.full(n, 5), 0).seconds for n in (4, 15))
    assert len(set(fewer)) == 4
    assert sorted(np.unique(more, return_counts=True)[1]) == [2, 2, 2, 3, 3, 3]
    assert sorted(more[:6]) == sorted(more[6:12]) == [1, 2, 3, 4, 5, 6]
    assert more.tolist() == Recorded(str(path)).table(np.full(15, 5), 0).seconds.tolist()
    assert more.tolist() != Recorded(str(path)).table(np.full(15, 5), 1).seconds.tolist()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Equal(seconds=-1.0), "seconds must be a finite number > 0, got -1"),
        (lambda: LogNormal(correlation=2.0), "correlation must be"),
        (lambda: Tiers(shares=(0.5, 0.6)), "factors must be as many"),
        (lambda: Tiers(shares=(0.5, 0.6), factors=(1.0, 2.0)), "shares must sum to 1"),
        (lambda: TimeConfig(over_selection=0.5), "time.over_selection must be"),
        (lambda: TimeConfig(late="rest"), "time.late must be drop without time.deadline, got rest"),
    ],
)
def test_wrong_numbers_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make()


class Half(Devices):
    """A class of one's own whose table lacks clients."""

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        return Table(np.ones(len(sizes) - 1), 1.0, 1.0)


def test_a_wrong_table_is_refused() -> None:
    with pytest.raises(UserError, match="Half seconds must be > 0 and finite, one for each of 3 clients"):
        Half().table(np.array([1, 1, 1]), 0)


@pytest.mark.parametrize("name", ["over_selection", "deadline", "stop_after_seconds", "relay"])
def test_rules_of_time_need_devices(tmp_path: Path, name: str) -> None:
    value = True if name == "relay" else 2.0
    with pytest.raises(
        UserError, match=rf"time\.{name} must be .* without devices, got {str(value).lower()}"
    ):
        settings(tmp_path, time=TimeConfig(**{name: value}))


def test_a_deadline_that_nobody_meets_names_the_fastest(tmp_path: Path) -> None:
    config = settings(tmp_path, devices=LogNormal(), time=TimeConfig(deadline=1e-6))
    with pytest.raises(UserError, match=r"the fastest, client \d, takes .* simulated seconds"):
        built(config)


def test_over_selection_refuses_chains(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        devices=LogNormal(),
        time=TimeConfig(over_selection=2.0),
        selector=FedCat(lam=1, epsilon=0.5),
    )
    with pytest.raises(UserError, match="over_selection must be 1 with FedCat"):
        execute_all(config)


def test_weights_that_lateness_biases_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for selector in (MD(), MD(), Uniform("scaled"), Uniform()):
        for rules in (TimeConfig(), TimeConfig(over_selection=1.5)):
            built(settings(tmp_path, selector=selector, devices=Equal(), time=rules))
    said = [record.getMessage() for record in caplog.records if "unbiased" in record.getMessage()]
    assert [text.partition("'s weights")[0] for text in said] == ["MD", "Uniform"]


def execute_all(config: Any) -> None:
    server = built(config).server
    while not server.finished:
        server.step()


SELECTORS: list[Selector] = [
    Uniform(),
    MD(),
    PowD(),
    FedCat(lam=1, epsilon=0.5),
    FedPNS(),
    FedGS(graph="cosine"),
    DivFL(),
]


def timed(folder: Path, **changes: Any) -> Any:
    selector = changes.get("selector", Uniform())
    more = {} if not isinstance(selector, FedPNS) else {"data": replace(settings(folder).data, server=0.1)}
    return settings(folder, **(more | changes))


@pytest.mark.parametrize("selector", SELECTORS, ids=lambda selector: type(selector).__name__)
def test_devices_change_no_other_number(tmp_path: Path, selector: Selector) -> None:
    plain = built(timed(tmp_path, selector=selector)).server
    clocked = built(timed(tmp_path, selector=selector, devices=LogNormal(jitter=0.3))).server
    seconds = 0.0
    while not plain.finished:
        one, other = plain.step(), clocked.step()
        assert one.outcome.plan == other.outcome.plan
        assert other.outcome.time is not None
        assert other.outcome.time.seconds > 0
        seconds += other.outcome.time.seconds
        assert other.metrics is not None
        assert one.metrics is not None
        new = {name for name in other.metrics if name.startswith("clock/")} | {"ledger/client_seconds"}
        assert other.metrics.keys() - one.metrics.keys() == new
        same_ones = [n for n in one.metrics if not n.startswith("seconds/")]
        assert {n: one.metrics[n] for n in same_ones} == {n: other.metrics[n] for n in same_ones}
        assert other.metrics["clock/seconds"] == seconds
    assert same(plain.state_dict()["model"], clocked.state_dict()["model"])
    assert "clock" not in plain.state_dict()


@pytest.mark.parametrize("rules", [TimeConfig(), TimeConfig(deadline=2.0), TimeConfig(over_selection=1.7)])
def test_the_clock_resumes_at_every_round(tmp_path: Path, rules: TimeConfig) -> None:
    config = timed(tmp_path, selector=PowD(), devices=LogNormal(0.05, jitter=0.3), time=rules)
    assert differ_when_resumed(config, range(config.rounds)) == []


@pytest.mark.parametrize(
    "selector", [Oort(window=2), Oort(pacer="falling", window=1), TiFL(interval=2), FedCS(2.0)]
)
def test_selectors_that_know_time_resume_at_every_round(tmp_path: Path, selector: Selector) -> None:
    rules = TimeConfig(over_selection=1.4)
    config = timed(tmp_path, selector=selector, devices=LogNormal(0.05, jitter=0.3), time=rules)
    assert differ_when_resumed(config, range(config.rounds)) == []


def test_squared_losses_are_of_what_a_client_trains_on(tmp_path: Path) -> None:
    """Three steps of five examples are fewer than a client has; no pass is charged for them."""
    made = built(timed(tmp_path, selector=Oort(), devices=LogNormal(), precision="64-true"))
    start = {name: value.clone() for name, value in made.server.params.items()}
    plan = made.server.step().outcome.plan
    assert made.server.ledger["passes"] == 0
    assert made.server.ledger["scalars_up"] == len(plan)
    selector, program = made.server.selector, made.program
    assert isinstance(selector, Oort)
    for (client,) in plan.paths:
        batches = program.batches(client, 0)
        used = torch.unique(batches[batches >= 0])
        program.load(start)
        x, y = program.batch(used)
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(program.task(x), y, reduction="none")
        expected = len(used) * losses.square().mean().sqrt()
        assert selector.utility_[client] == pytest.approx(float(expected))
        assert len(used) == min(15, int(made.server.federation.sizes[client]))


class Given(Selector):
    """Chooses what it is told, and may ask everyone first."""

    asks = False
    needs = Need.LOSSES | Need.DURATIONS

    def select(self, view: Any) -> Plan:
        if self.asks:
            view.losses(view.pool.tolist())
        return Plan.star([view.round % 4, 4 + view.round % 4, 7 - view.round % 3])


class Same(Given):
    """Chooses the same cohorts as Given."""


class Asking(Given):
    """The same cohorts, after a question to everyone."""

    asks = True


def test_the_same_cohorts_take_the_same_seconds(tmp_path: Path) -> None:
    def seconds(selector: Selector) -> list[float]:
        server = built(timed(tmp_path, selector=selector, devices=LogNormal(jitter=0.4))).server
        return [server.step().outcome.time.seconds for _ in range(6)]  # type: ignore[union-attr]

    assert seconds(Given()) == seconds(Same())
    assert all(more > less for more, less in zip(seconds(Asking()), seconds(Given()), strict=True))


class Noting(Selector):
    """Notes what it is told about time."""

    needs = Need.DURATIONS
    told: list[Any]

    def select(self, view: Any) -> Plan:
        type(self).told.append((view.clock, view.durations(range(8)), view.clients_per_round))
        return Plan.star(range(view.clients_per_round))

    def observe(self, view: Any, updates: Any, weights: Any) -> None:
        type(self).told.append((updates.clients, updates.durations, updates.late))


def test_selectors_are_told_the_clock_durations_and_who_was_late(tmp_path: Path) -> None:
    Noting.told = []
    config = timed(tmp_path, selector=Noting(), devices=LogNormal(), time=TimeConfig(over_selection=1.7))
    server = built(config).server
    record = server.step()
    (clock_before, profile, clients_per_round), (clients, durations, late) = Noting.told
    assert (clock_before, clients_per_round, len(clients), len(late.clients)) == (0.0, 5, 3, 2)
    assert torch.equal(durations, profile[clients])
    assert set(clients.tolist()) | set(late.clients.tolist()) == set(range(5))
    assert late.durations.min() >= durations.max() == record.outcome.time.seconds  # type: ignore[union-attr]
    assert record.outcome.time.late == tuple(late.clients.tolist())  # type: ignore[union-attr]
    server.step()
    assert Noting.told[2][0] == record.outcome.time.seconds  # type: ignore[union-attr]
    assert server.ledger["trainings"] == 10
    assert int(server.counts.sum()) == 6


def test_late_clients_are_charged_and_not_computed(tmp_path: Path) -> None:
    config = timed(tmp_path, devices=LogNormal(), time=TimeConfig(over_selection=1.7))
    server = built(config).server
    job = server.open()
    assert len(job.visits(0)) == 3
    assert job.view.ledger["trainings"] == 5


def test_durations_need_devices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="devices must be set with Noting"):
        built(timed(tmp_path, selector=Noting()))


def test_a_run_ends_after_its_simulated_time(tmp_path: Path) -> None:
    first = built(timed(tmp_path, devices=LogNormal()))
    enough = sum(first.server.step().outcome.time.seconds for _ in range(3))  # type: ignore[union-attr]
    config = timed(tmp_path, devices=LogNormal(), time=TimeConfig(stop_after_seconds=enough - 1e-9))
    config = replace(config, evaluation=replace(config.evaluation, every=5))
    server = built(config).server
    while not server.finished:
        record = server.step()
    assert server.round == 3
    assert record.metrics is not None
    assert record.metrics["clock/seconds"] == pytest.approx(enough)


@pytest.mark.parametrize(("objective", "factor"), [(SCAFFOLD(), None), (MOON(), 5 / 3)])
def test_objectives_take_the_time_of_what_they_send_and_run(
    tmp_path: Path, objective: Any, factor: Any
) -> None:
    fast = Equal(1e-30 if factor is None else 0.01, *((10.0, 10.0) if factor is None else (1e30, 1e30)))
    times = [
        built(timed(tmp_path, devices=fast, **given)).server.step().outcome.time
        for given in ({}, {"objective": objective})
    ]
    plain, other = (time.seconds for time in times if time is not None)
    assert other / plain == pytest.approx(2.0 if factor is None else factor)


def test_columns_of_the_clock_are_means_since_the_last_evaluation() -> None:
    elapsed = Elapsed()
    assert elapsed.measure(0)["clock/round"] == 0.0
    for _ in range(2):
        elapsed.add(RoundTime(4.0, 1.0, 9.0, 2.0))
    assert elapsed.measure(4) == {
        "clock/seconds": 8.0,
        "clock/round": 2.0,
        "clock/questions": 0.25,
        "clock/wasted_client_seconds": 4.0,
    }
    again = Elapsed()
    again.load_state_dict(elapsed.state_dict())
    assert again.state_dict() == elapsed.state_dict()
    assert math.isclose(again.measure(5)["clock/seconds"], 8.0)


def test_paths_that_are_never_late_arrive_as_they_are() -> None:
    plan = Plan(((0, 1, -1), (2, 2, 0)))
    arrival = arrive(plan, lambda hop, clients, first: np.zeros(len(clients)), TimeConfig(), wanted=2)
    assert arrival.plan == plan


@pytest.mark.parametrize(("wanted", "asked"), [(1, 1), (2, 2), (2, 4), (5, 5)])
def test_the_mean_round_is_that_of_all_cohorts(wanted: int, asked: int) -> None:
    seconds = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    cohorts = itertools.combinations(seconds, asked)
    mean = np.mean([sorted(cohort)[wanted - 1] for cohort in cohorts])
    assert expected_round(seconds, wanted, asked) == pytest.approx(mean)


def test_data_shows_the_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = str(tmp_path / "p.png")
    words = [
        "data",
        "--clients",
        "12",
        "--devices",
        "Tiers",
        "--time.over_selection",
        "1.5",
        "--picture",
        picture,
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "simulated devices" in shown
    assert "a round of 10 clients, the first of 12 asked:" in shown
    assert shown.count("%") >= 7


def test_a_finished_run_tells_the_time_of_each_step(tmp_path: Path) -> None:
    result = run(timed(tmp_path, selector=PowD(), devices=LogNormal(), time=TimeConfig(over_selection=1.4)))
    assert sum(step.seconds or 0 for step in result.rounds) == pytest.approx(result.final["clock/seconds"])
    assert all(0 < (step.questions or 0) < (step.seconds or 0) for step in result.rounds)
    assert all(len(step.late) == 1 for step in result.rounds)
    assert result.to_target(0.01, cost="simulated_seconds").reached
    plain = run(timed(tmp_path, selector=PowD()))
    assert [(step.seconds, step.questions, step.late) for step in plain.rounds] == [(None, None, ())] * 6
