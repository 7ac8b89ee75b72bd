"""One trial: seeds in lockstep, and a killed one goes on to the same reports."""

from __future__ import annotations

import math
import re
import statistics
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from jobs import job, untimed
from lightning.pytorch.callbacks import Callback
from runs import left_behind, same
from torch import optim

from flsel.config import RunConfig
from flsel.config.groups import LocalConfig
from flsel.engine.evaluation import Evaluator
from flsel.errors import DivergedError, UserError
from flsel.execution import stack
from flsel.execution.on_ray.deaths import cause_of_death
from flsel.execution.run import run
from flsel.models import MLP
from flsel.selectors.fedcat import FedCat
from flsel_tune.trial import Trial, attempt, failure

POWD = {"selector": "PowD", "selector.d": 5}


def reports(trial):
    """All reports of a trial from where it stands; then another may have its folders."""
    found = []
    with closing(trial):
        while not found or not found[-1]["finished"]:
            found.append(trial.advance())
    return found


def same_reports(one, other):
    # As texts, which have all digits, and in which NaN equals itself.
    return list(map(repr, map(untimed, one))) == list(map(repr, map(untimed, other)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The job and the reports of a trial that nobody interrupted."""
    common = job(tmp_path_factory.mktemp("whole"))
    return common, reports(Trial(common, 0, POWD))


def test_reports_of_several_seeds(whole):
    _, found = whole
    assert [report["round"] for report in found] == [2, 4, 6]
    assert [report["finished"] for report in found] == [False, False, True]
    for report in found:
        assert len(report["seeds"]) == 2
        assert report["objective"] == pytest.approx(statistics.fmean(report["seeds"]))
        assert report["spread"] == pytest.approx(abs(report["seeds"][0] - report["seeds"][1]) / math.sqrt(2))
        assert report["seeds"] == [rows[-1]["validation/accuracy"] for rows in report["rows"]]
        assert report["seconds"] > 0
    rounds = [[row["round"] for row in report["rows"][1]] for report in found]
    assert rounds == [[0, 1, 2], [3, 4], [5, 6]]
    assert found[0]["rows"][0] != found[0]["rows"][1]


def test_every_seed_is_a_run_as_train_writes_it(whole):
    common, found = whole
    for index, seed in enumerate(common.seeds):
        folder = common.trial_folder(0) / f"seed{seed}"
        names = {path.name for path in folder.iterdir()}
        assert {"config.yaml", "metrics.csv", "rounds.jsonl", "summary.json", "checkpoints"} <= names
        settings = common.run_config(POWD, seed)
        place = {"output.dir": common.folder, "output.name": f"train{seed}"}
        result = run(RunConfig.from_dict(settings, place))
        assert result.final["validation/accuracy"] == found[-1]["seeds"][index]
        assert same(left_behind(Path(common.folder) / f"train{seed}"), left_behind(folder))


def test_the_settings_are_those_of_the_trial(whole):
    common, _ = whole
    described = common.run_config(POWD, 3)
    assert described["selector"] == {"class_path": "flsel.selectors.powd.PowD", "init_args": {"d": 5}}
    assert described["seed"] == 3
    with pytest.raises(UserError, match=r"selector\.dd is not an argument of PowD"):
        common.run_config({"selector": "PowD", "selector.dd": 5}, 3)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_trial_killed_between_reports_goes_on(whole, tmp_path, after):
    """The report that may not have been received is repeated, and those that follow are the same."""
    common, expected = replace(whole[0], folder=str(tmp_path)), whole[1]
    trial = Trial(common, 0, POWD)
    for _ in range(after):
        trial.advance()
    trial.close()
    first, *others = reports(Trial(common, 0, POWD))
    repeated = expected[after - 1]
    history = [[row for report in expected[:after] for row in report["rows"][n]] for n in range(2)]
    assert same_reports([first], [{**repeated, "rows": history}])
    assert same_reports(others, expected[after:])
    for seed in common.seeds:
        one, other = (Path(j.folder) / "trials/0000" / f"seed{seed}" for j in (common, whole[0]))
        assert same(left_behind(one), left_behind(other))


@pytest.mark.parametrize("steps", [0, 3])
def test_a_trial_killed_where_one_seed_has_moved_and_the_other_not(whole, tmp_path, steps, monkeypatch):
    """After its first report the other seed takes so many steps."""
    common, expected = replace(whole[0], folder=str(tmp_path)), whole[1]
    trial = Trial(common, 0, POWD)
    trial.advance()
    second = trial._runs[1].session
    open_round, left = second.open_round, iter(range(steps))

    def opening():
        if next(left, None) is None:
            raise KeyboardInterrupt
        return open_round()

    monkeypatch.setattr(second, "open_round", opening)
    with pytest.raises(KeyboardInterrupt):
        reports(trial)
    assert trial._runs[0].session.server.round > second.server.round
    trial.close()
    *_, last = reports(Trial(common, 0, POWD))
    assert last["seeds"] == expected[-1]["seeds"]
    for seed in common.seeds:
        one, other = (Path(j.folder) / "trials/0000" / f"seed{seed}" for j in (common, whole[0]))
        assert same(left_behind(one), left_behind(other))


def test_a_trial_killed_before_its_first_report_starts_again(whole, tmp_path):
    common, expected = replace(whole[0], folder=str(tmp_path)), whole[1]
    trial = Trial(common, 0, POWD)
    trial._runs[0].session.step()
    trial.close()
    assert same_reports(reports(Trial(common, 0, POWD)), expected)


def test_a_finished_trial_repeats_its_last_report(tmp_path):
    common = job(tmp_path, seeds=(3,))
    *_, last = reports(Trial(common, 0, {}))
    written = (common.trial_folder(0) / "seed3" / "summary.json").stat().st_mtime_ns
    (again,) = reports(Trial(common, 0, {}))
    assert (again["round"], again["objective"], again["finished"]) == (6, last["objective"], True)
    assert (common.trial_folder(0) / "seed3" / "summary.json").stat().st_mtime_ns == written


def test_one_seed_has_no_spread(tmp_path):
    assert Trial(job(tmp_path, seeds=(3,)), 0, {}).advance()["spread"] == 0.0


def test_rounds_that_reports_do_not_divide(tmp_path):
    trial = Trial(job(tmp_path, every=4, seeds=(3,)), 0, {})
    assert [report["round"] for report in reports(trial)] == [4, 6]


def test_reports_are_repeated_at_their_round_after_a_plan_of_several_rounds(tmp_path):
    """FedCat's plan takes three rounds: it goes beyond the report's, which is the next evaluation."""
    common = job(tmp_path, seeds=(3,), selector=FedCat())
    trial = Trial(common, 0, {})
    found = reports(trial)
    assert [report["round"] for report in found] == [2, 4, 6]
    assert [[row["round"] for row in report["rows"][0]] for report in found] == [[0, 3], [6], []]
    again = replace(common, folder=str(tmp_path / "again"))
    killed = Trial(again, 0, {})
    killed.advance()
    killed.close()
    first, *others = reports(Trial(again, 0, {}))
    assert same_reports([first, *others], found)


class Ends(Callback):
    """Ends a run under the first seed after three rounds, and under the other after five."""

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch + 1 == (3 if "seed3" in trainer.default_root_dir else 5):
            trainer.should_stop = True


def test_a_callback_ends_a_run_as_it_ends_one_of_flsel_train(tmp_path):
    common = job(tmp_path, callbacks=(Ends,))
    found = reports(Trial(common, 0, {}))
    assert [report["round"] for report in found] == [2, 4, 5]
    assert [[len(rows) for rows in report["rows"]] for report in found] == [[3, 3], [1, 2], [0, 1]]
    (tmp_path / "seed3").mkdir()
    config = RunConfig.from_dict(common.run_config({}, 3), {"output.dir": str(tmp_path / "seed3")})
    alone = run(config)
    assert alone.history["validation/accuracy"][-1] == found[-1]["seeds"][0]
    assert len(alone.history["round"]) == 4
    again = replace(common, folder=str(tmp_path / "again"))
    killed = Trial(again, 0, {})
    assert [killed.advance()["round"] for _ in range(2)] == [2, 4]
    killed.close()
    assert same_reports(reports(Trial(again, 0, {}))[1:], found[2:])
    (last,) = reports(Trial(again, 0, {}))
    assert (last["round"], last["objective"]) == (5, found[-1]["objective"])


def test_several_metrics(tmp_path):
    common = job(tmp_path, metric="best(validation/accuracy), ledger/bytes_up", seeds=(3,))
    assert [common.objective(n) for n in range(2)] == ["objective_0", "objective_1"]
    report = Trial(common, 0, {}).advance()
    (rows,) = report["rows"]
    assert report["objective_0"] == max(row["validation/accuracy"] for row in rows)
    assert report["objective_1"] == rows[-1]["ledger/bytes_up"] > 0
    assert report["seeds"] == [report["objective_0"]]


def exploding(lr):
    return {
        "model": partial(MLP, hidden=[8, 8]),
        "local": LocalConfig(batch_size=5, steps=3, optimizer=partial(optim.SGD, lr=lr)),
    }


def test_a_learning_rate_that_diverges_is_reported(tmp_path):
    trial = Trial(job(tmp_path, **exploding(1e12)), 0, {})
    report = attempt(trial)
    assert report["status"] == "diverged"
    assert report["done"]
    assert not report["finished"]
    assert math.isnan(report["objective"])
    assert report["error"]
    assert attempt(trial)["status"] == "diverged"


def test_a_metric_that_is_not_finite_has_diverged(tmp_path, monkeypatch):
    trial = Trial(job(tmp_path, metric="validation/loss"), 0, {})
    measure = Evaluator.measure
    monkeypatch.setattr(Evaluator, "measure", lambda *given, **how: (math.nan, measure(*given, **how)[1]))
    report = attempt(trial)
    assert (report["status"], report["done"]) == ("diverged", True)
    assert report["error"] == "the metric is not finite"
    assert report["spread"] == 0.0


def test_attempts_end_with_the_last_report(tmp_path):
    trial = Trial(job(tmp_path, seeds=(3,)), 0, {})
    found = [attempt(trial) for _ in range(3)]
    assert [report["status"] for report in found] == ["running", "running", "complete"]
    assert [report["done"] for report in found] == [False, False, True]
    assert all(report["error"] == "" for report in found)


def test_errors_are_reported_but_for_those_that_another_process_may_mend(tmp_path, monkeypatch):
    trial = Trial(job(tmp_path), 0, {})
    for error, status in ((UserError("no."), "failed"), (DivergedError("gone."), "diverged")):
        monkeypatch.setattr(trial, "advance", lambda error=error: (_ for _ in ()).throw(error))
        report = attempt(trial)
        assert (report["status"], report["error"], report["done"]) == (status, str(error), True)
    monkeypatch.setattr(trial, "advance", lambda: 1 / 0)
    assert re.fullmatch(
        r"ZeroDivisionError: division by zero \(test_trial.py, line \d+\)", attempt(trial)["error"]
    )
    monkeypatch.setattr(trial, "advance", lambda: (_ for _ in ()).throw(MemoryError("no room")))
    assert cause_of_death(trial.folder).startswith("its process died, perhaps out of memory")
    with pytest.raises(MemoryError):
        attempt(trial)
    assert cause_of_death(trial.folder).startswith("out of memory: MemoryError: no room (test_trial.py")


def test_a_trial_that_is_refused_memory_in_a_round_may_be_tried_again(tmp_path, monkeypatch):
    trial = Trial(job(tmp_path), 0, {})
    monkeypatch.setattr(stack, "train", lambda *_: torch.empty(10**15))
    with pytest.raises(UserError, match="round 0 failed: the memory is not enough"):
        attempt(trial)
    assert cause_of_death(trial.folder).startswith("out of memory: RuntimeError: [enforce fail at alloc_cpu")


def test_a_trial_that_fails_late_tells_how_far_it_came(tmp_path, monkeypatch):
    trial = Trial(job(tmp_path), 0, {})
    before = attempt(trial)
    monkeypatch.setattr(trial, "advance", lambda: 1 / 0)
    report = attempt(trial)
    assert (report["status"], report["round"]) == ("failed", before["round"])
    assert report["seconds"] >= before["seconds"] > 0


def test_seconds_pass_once_for_all_seeds(tmp_path):
    began = time.perf_counter()
    report = attempt(Trial(job(tmp_path), 0, {}))
    assert 0 < report["seconds"] < time.perf_counter() - began


def test_a_failure_has_the_fields_of_a_report(whole):
    common, (report, *_) = whole
    failed = failure(common, UserError("no."))
    assert failed.keys() == report.keys() | {"status", "error", "done", "machine"}
    assert failed["rows"] == [[], []]


def test_settings_that_do_not_fit_are_an_error(tmp_path):
    with pytest.raises(UserError, match="clients_per_round must be at most the number of clients"):
        Trial(job(tmp_path), 0, {"clients_per_round": 99})


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    with closing(Trial(job(tmp_path, seeds=(3,)), 0, {})) as trial:
        trial.advance()
    with pytest.raises(UserError, match="checkpoint"):
        Trial(job(tmp_path, seeds=(3,)), 0, POWD)


def test_trials_leave_the_global_generators_alone(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    Trial(job(tmp_path, seeds=(3,)), 0, {}).advance()
    assert torch.equal(torch.get_rng_state(), before)
