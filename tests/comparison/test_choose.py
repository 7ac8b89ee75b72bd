"""``flsel choose``: who races, what is executed, what is said, and how a race is resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
from runs import settings

import flsel
from flsel.choosing.choice import Choice
from flsel.choosing.choose_config import ChooseConfig
from flsel.commands.cli import main
from flsel.config import RunConfig
from flsel.devices import Phones
from flsel.errors import Interrupted, UserError
from flsel.execution.executor import Listener
from flsel.execution.job import Job, Outcome, write_failure

NOISE = np.random.default_rng(1).normal(0, 0.004, (40, 60))
EFFECTS = {"Uniform": 0.0, "PowD": 0.08, "AFL": -0.1, "MD": 0.078}

pytestmark = pytest.mark.usefixtures("here")


class Made:
    """An executor that writes made-up runs, and counts them; it stops after some where it is told so."""

    def __init__(self, curve: Callable[[str, int], dict[str, Any]]) -> None:
        self.executed: Counter[tuple[str, int]] = Counter()
        self.fails: dict[tuple[str, int], Outcome] = {}
        self.stops_after: int | None = None
        self._curve = curve

    @contextmanager
    def ready(self, shared: Any):
        yield

    def execute(self, jobs: Sequence[Job], folder: Path, listener: Listener) -> None:
        for job in jobs:
            if self.stops_after is not None and sum(self.executed.values()) >= self.stops_after:
                raise Interrupted("stopped")
            who = type(job.config.selector).__name__, job.config.seed
            self.executed[who] += 1
            if who in self.fails:
                job.folder.mkdir(parents=True)
                write_failure(job.folder, self.fails[who])
            else:
                made.run(job.folder, selector=who[0], seed=who[1], **self._curve(*who))
            listener.ended(job)


def climbing(variant: str, seed: int) -> dict[str, Any]:
    end = 0.6 + EFFECTS[variant] + NOISE[list(EFFECTS).index(variant), seed - 1]
    return {"curve": made.climb(end, rounds=40)}


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Made:
    executor = Made(climbing)
    monkeypatch.setattr("flsel.choosing.choose_selector.executor_for", lambda resources: executor)
    monkeypatch.setattr("flsel.comparison.cells._was_run_with", lambda run, declared: True)
    return executor


def choose(folder: Path, variants: Any = ("Uniform", "PowD", "AFL", "MD"), **wanted: Any) -> Choice:
    config = settings(folder / "unused", rounds=40)
    return flsel.choose(config, list(variants), folder=str(folder), name="c", **wanted)


def test_a_race_chooses_a_variant_within_the_margin(tmp_path, runner):
    found = choose(tmp_path, margin=2.0)
    assert found.decided
    assert found.winner in ("PowD", "MD")
    places = {racer.name: racer.place for racer in found.racers}
    assert places["AFL"] == places["Uniform"] == "out"
    assert found.racers[0].place == "chosen"
    assert [racer.place for racer in found.racers[2:]] == ["out", "out"]
    assert set(runner.executed.values()) == {1}
    seeds = Counter(variant for variant, _ in runner.executed)
    assert {racer.name: racer.seeds for racer in found.racers} == dict(seeds)
    assert found.runs_used == sum(seeds.values())
    assert found.headline.startswith(
        f"Choose {found.winner}: with 95 % confidence nothing that raced is more than 2 points of accuracy "
        "better ("
    )
    assert f"{found.runs_used} of 160 runs" in found.headline


def test_what_needs_least_of_the_equivalent_is_named(tmp_path, runner):
    found = choose(tmp_path, margin=5.0)
    assert {racer.name for racer in found.racers if racer.place in ("chosen", "equivalent")} == {"PowD", "MD"}
    assert found.needs_least.name == "MD"
    assert "MD needs least of these: nothing." in found.headline


def test_an_interrupted_race_ends_as_one_that_was_not(tmp_path, runner):
    whole = choose(tmp_path / "whole", margin=1.0)
    total = sum(runner.executed.values())
    for stops in (5, total - 1):
        runner.executed.clear()
        runner.stops_after = stops
        with pytest.raises(Interrupted, match="flsel choose --resume"):
            choose(tmp_path / str(stops), margin=1.0)
        runner.stops_after = None
        resumed = flsel.choose(tmp_path / str(stops) / "c", resume=True)
        assert sum(runner.executed.values()) == total
        assert resumed.rows == whole.rows
        assert resumed.headline == whole.headline
    runner.executed.clear()
    assert flsel.choose(tmp_path / "whole" / "c", resume=True).rows == whole.rows
    assert not runner.executed


def test_a_race_that_was_stopped_is_read_as_such(tmp_path, runner):
    runner.stops_after = 14
    with pytest.raises(Interrupted):
        choose(tmp_path, margin=0.1)
    found = flsel.choose(tmp_path / "c")
    assert not found.decided
    assert found.headline.startswith("The race goes on: ")
    assert found.racers[0].place == "leads"


def test_a_run_that_diverges_loses(tmp_path, runner):
    runner.fails["PowD", 2] = Outcome("diverged", "the loss is not finite")
    found = choose(tmp_path, margin=2.0)
    assert found.winner == "MD"
    lost = found.racers[-1]
    assert (lost.name, lost.place, lost.reason) == (
        "PowD",
        "lost",
        "diverged in seed 2: the loss is not finite",
    )
    assert any("diverged in seed 2" in cell for cell in found.table()[1][-1])


def test_an_undecided_race_says_who_may_be_better(tmp_path, runner):
    found = choose(tmp_path, ("PowD", "MD"), margin=0.01, max_seeds=4)
    assert not found.decided
    assert found.headline.startswith("Undecided: ")
    assert (
        "may be more than 0.01 points of accuracy better: start another race with a larger" in found.headline
    )
    assert runner.executed.keys() == {(v, s) for v in ("PowD", "MD") for s in range(1, 5)}


def arriving(variant: str, seed: int) -> dict[str, Any]:
    """PowD is there after 10 rounds of 3 models, Uniform after 20 of 2, AFL never."""
    rise = {"PowD": 10, "Uniform": 20, "AFL": 400}[variant] + seed % 2
    curve = [0.1 + 0.7 * min(1.0, r / rise) for r in range(41)]
    return {"curve": curve, "models": 3 if variant == "PowD" else 2}


def test_a_cost_decides_and_who_never_arrives_loses(tmp_path, runner):
    runner._curve = arriving
    found = choose(tmp_path, ("Uniform", "PowD", "AFL"), decides="bytes", target=0.7, last=1)
    assert found.winner == "PowD"
    assert found.decided
    places = {racer.name: racer.place for racer in found.racers}
    assert places["AFL"] in ("open", "out")
    assert places["Uniform"] in ("open", "out")  # the leader may be decided before all others left
    assert "nothing that raced is more than 1.1 times cheaper in bytes" in found.headline
    ratios = {line[0]: line[3] for line in found.table()[1]}
    assert ratios["Uniform"].startswith("1.4")  # about 18 rounds of 2 models, and 9 of 3
    assert ratios["AFL"].startswith("- [")
    assert "more]" in ratios["AFL"]


def test_nobody_wins_where_nobody_always_arrives(tmp_path, runner):
    def curve(variant: str, seed: int) -> dict[str, Any]:
        late = (variant == "PowD") == (seed % 2 == 0)
        return {"curve": made.climb(0.5 if late else 0.8, rounds=40)}

    runner._curve = curve
    found = choose(tmp_path, ("Uniform", "PowD"), decides="rounds", target=0.7, last=1)
    assert not found.decided
    assert "nobody that is left reaches the target in every seed" in found.headline
    assert sum(runner.executed.values()) == 6


def test_a_race_to_a_target_that_no_run_reaches_ends_at_the_first_look(tmp_path, runner):
    runner._curve = lambda variant, seed: {"curve": made.climb(0.5, rounds=40)}
    found = choose(tmp_path, ("Uniform", "PowD"), decides="rounds", target=0.9, last=1)
    assert sum(runner.executed.values()) == 6
    assert found.headline.startswith("Undecided: Uniform leads (3 seeds, 6 of ")
    assert "nobody that is left reaches the target in every seed: lower the target" in found.headline
    found.write()
    assert (found.folder / "best.yaml").read_text().startswith("# Undecided: Uniform leads (3 seeds, 6 of ")


def entrants(config: RunConfig, **wanted: Any):
    from flsel.choosing.entrants import find_entrants
    from flsel.execution.executor import Sources

    return find_entrants(config, ChooseConfig(**wanted), (), Sources())


def test_every_selector_races_or_is_left_out_with_a_reason(tmp_path):
    found = entrants(settings(tmp_path))
    names = {variant.name for variant in found.variants}
    assert names | found.left_out.keys() == set(flsel.selectors.__all__)
    assert {"TiFL", "FedCS", "Oort", "Complete"} & names == set()
    assert found.left_out["TiFL"].startswith("needs durations")
    assert found.left_out["Complete"] == "needs all clients in each round: 8, and clients_per_round is 3"
    assert found.needs["PowD"] == "losses"


def test_what_the_server_may_not_know_is_left_out(tmp_path):
    found = entrants(settings(tmp_path), may="nothing")
    assert set(found.needs.values()) == {"nothing"}
    assert {"Uniform", "MD", "FedCat"} <= found.needs.keys()
    assert found.left_out["PowD"] == "needs losses"
    more = entrants(settings(tmp_path), may="losses")
    assert more.needs.keys() - found.needs.keys() == {"PowD"}


def test_devices_let_selectors_race_that_need_them(tmp_path):
    found = entrants(settings(tmp_path, devices=Phones()))
    assert {"TiFL", "FedCS", "Oort"} <= found.needs.keys()


def test_the_configs_own_selector_races_with_its_arguments(tmp_path):
    from flsel.selectors import PowD

    own = entrants(settings(tmp_path, selector=PowD(d=7)), may="losses")
    assert own.needs["PowD:d=7"] == "losses"
    assert "PowD" not in own.needs


def test_variants_of_a_file_race_beside_all_selectors(tmp_path):
    file = tmp_path / "more.yaml"
    file.write_text("Prox: {objective: FedProx}\nhurried: {selector: PowD, rounds: 3}\n")
    found = entrants(settings(tmp_path), may="nothing", variants=str(file))
    assert found.needs["Prox"] == "nothing"
    assert found.left_out["hurried"] == "needs losses"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"may": "labels,gossip"}, "may must be nothing, or some of labels, .*got 'gossip'"),
        ({"margin": 1.0, "decides": "rounds"}, "margin is a difference of scores, and rounds decide"),
        ({"margin_ratio": 1.2}, "margin_ratio must be given with a cost that decides"),
        ({"decides": "speed"}, "decides must be one of accuracy, rounds, .*got .speed."),
        ({"decides": "passes"}, "decides must be one of accuracy, rounds, .*got 'passes'"),
        ({"may": "nothing,losses"}, "may must be nothing alone, or what the server may know"),
        ({"max_seeds": 2}, "max_seeds must be"),
        ({"speed": 2}, "choose takes no speed; its settings are"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(tmp_path, runner, wanted, said):
    with pytest.raises(UserError, match=said):
        choose(tmp_path, **wanted)
    assert not (tmp_path / "c").exists()


def test_a_race_needs_two(tmp_path, runner):
    with pytest.raises(
        UserError, match=r"a race needs two variants or more, got 1; left out: PowD needs losses"
    ):
        choose(tmp_path, ("Uniform", "PowD"), may="nothing")


def test_a_cost_needs_a_target_or_devices(tmp_path, runner):
    with pytest.raises(UserError, match="decides bytes needs a target"):
        choose(tmp_path, decides="bytes")
    with pytest.raises(UserError, match="decides simulated_seconds needs simulated devices"):
        choose(tmp_path, decides="simulated_seconds", target=0.7)


def test_a_damaged_race_is_refused(tmp_path, runner):
    choose(tmp_path, margin=2.0)
    (tmp_path / "c/race.yaml").write_text("needs: 3\n")
    with pytest.raises(UserError, match=r"race\.yaml"):
        flsel.choose(tmp_path / "c")
    with pytest.raises(UserError, match="choose takes a RunConfig, or a race or its folder"):
        flsel.choose(tmp_path / "nothing")


def test_the_command_runs_a_race_and_writes_what_train_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("flsel.choosing.run_race._LONG_SECONDS", 0.0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    file = tmp_path / "mine.yaml"
    file.write_text(str(settings(tmp_path, rounds=3, quiet=False)))
    arguments = ["--selectors", "Uniform,MD,PowD:d=4", "--margin", "30", "--max-seeds", "4", "--last", "1"]
    assert main(["choose", "--config", str(file), *arguments, "--name", "r"]) == 0
    printed = capsys.readouterr().out
    assert "3 race, with at most 4 seeds each; 0 left out" in printed
    assert "Choose " in printed
    assert printed.count("`flsel choose --resume choices/r --max-concurrent 2` goes on with 2.") == 1
    folder = Path("choices/r")
    assert {"report.html", "report.md", "table.csv", "best.yaml", "race.yaml"} <= {
        p.name for p in folder.iterdir()
    }
    found = flsel.choose(folder)
    best = RunConfig.from_file(folder / "best.yaml")
    assert best == found.best
    assert (
        main(["train", "--config", str(folder / "best.yaml"), "--quiet", "true", "--output.name", "again"])
        == 0
    )
    page = (folder / "report.html").read_text().replace("\xa0", " ")
    assert found.headline.split(" (")[0] in page.replace("&#x27;", "'")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert main(["choose", "--resume", str(folder)]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume"], "--resume takes the folder of a race"),
        (["--resume", "nowhere"], "there is no folder nowhere; a race's folder is below choices/ or"),
        (["--resume", "nowhere", "--margin", "2"], "margin stays as it is"),
        (["--margin"], "margin needs a value"),
        (["--margn", "2"], "did you mean margin?"),
    ],
)
def test_the_command_refuses_in_a_sentence(arguments, said, capsys):
    assert main(["choose", *arguments]) == 2
    assert said in capsys.readouterr().err
