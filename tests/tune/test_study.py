"""The study: what is asked and told, and that an interruption leaves no trace in it."""

from __future__ import annotations

import errno
import itertools
import math
import warnings
from statistics import median

import optuna
import pytest
from jobs import job
from optuna.trial import TrialState
from spaces import config_of

from flsel.errors import DivergedError, UserError
from flsel.files import naming
from flsel_tune.journal_repair import repair_journal
from flsel_tune.metric import parse_metrics
from flsel_tune.space_file import make_space
from flsel_tune.study import BASELINE, JOURNAL, SETTINGS, Study
from flsel_tune.sweep_config import SweepConfig
from flsel_tune.trial import failure
from flsel_tune.workload import outcome

COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
HICS = config_of("HiCS")
LAM = {"type": "uniform", "low": 0, "high": 1}
SPACE = {
    "selector": {"type": "choice", "values": ["HiCS", "FedCor"]},
    "selector.lam": {**LAM, "when": {"selector": "HiCS"}},
    "selector.beta": {"type": "uniform", "low": 0.5, "high": 1, "when": {"selector": "FedCor"}},
    "local.batch_size": {"type": "int", "low": 1, "high": 64, "log": True},
}
PLAIN = {"selector.lam": LAM, "selector.gamma0": {"type": "uniform", "low": 0, "high": 8}}
GRID = {
    "selector.lam": {"type": "quantised", "low": 0, "high": 1, "step": 0.5},
    "selector.num_clusters": {"type": "int", "low": 2, "high": 6, "step": 2},
    "selector.signal": {"type": "choice", "values": ["bias", "layer"]},
}


def study(folder, *, seed=0, metric="validation/accuracy", rounds=20, **changes):
    metrics = parse_metrics(metric, "auto")
    config = SweepConfig(**changes)
    return Study(folder, "s", metrics=metrics, config=config, rounds=rounds, seed=seed)


def value_of(settings):
    """A smooth function of all settings."""
    numbers = [value for value in settings.values() if not isinstance(value, str)]
    return math.sin(sum(math.log1p(abs(number)) for number in numbers)) + len(settings)


def asked_for(made, space, count, folder=None, **settings):
    """Ask and tell trials one by one; with a folder the study is opened anew for each."""
    found = []
    for _ in range(count):
        if folder is not None:
            made = study(folder, **settings)
        number, asked = made.ask(space)
        found.append(asked)
        made.tell(number, COMPLETE, [value_of(asked)], {})
    return found


@pytest.mark.parametrize(
    ("sampler", "entries"),
    [("tpe", SPACE), ("random", SPACE), ("cmaes", PLAIN), ("gp", PLAIN), ("grid", GRID)],
)
def test_an_interruption_leaves_no_trace_in_what_is_asked(tmp_path, sampler, entries):
    """Also beyond the ten trials that samplers draw at random before they use what they know."""
    count = 12 if sampler in ("grid", "gp") else 15
    folders = [tmp_path / name for name in ("one", "many", "other")]
    for folder in folders:
        folder.mkdir()
    space = make_space(entries, HICS)
    at_once = asked_for(study(folders[0], sampler=sampler), space, count)
    in_pieces = asked_for(None, space, count, folders[1], sampler=sampler)
    assert at_once == in_pieces
    assert len({repr(asked) for asked in at_once}) == count
    other = asked_for(study(folders[2], sampler=sampler, seed=1), space, 3)
    assert other != at_once[:3]


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "gp", "grid"])
def test_samplers_suggest_values_of_the_space_without_a_word(tmp_path, sampler, capfd):
    space = make_space(GRID if sampler == "grid" else PLAIN, HICS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for asked in asked_for(study(tmp_path, sampler=sampler), space, 12):
            assert all(d.holds(asked[d.key]) for d in space.dimensions)
    assert capfd.readouterr() == ("", "")


def test_tpe_learns(tmp_path):
    """Its later trials are better than the first ones, which are drawn at random."""
    space, made, errors = make_space(PLAIN, HICS), study(tmp_path), []
    for _ in range(30):
        number, asked = made.ask(space)
        errors.append(abs(asked["selector.lam"] - 0.9) + abs(asked["selector.gamma0"] / 8 - 0.1))
        made.tell(number, COMPLETE, [-errors[-1]], {})
    assert median(errors[20:]) < 0.7 * median(errors[:10])


def test_a_grid_is_searched_whole_and_once(tmp_path):
    space = make_space(GRID, HICS)
    made = study(tmp_path, sampler="grid")
    found = asked_for(made, space, 18)
    product = itertools.product([0, 0.5, 1], [2, 4, 6], ["bias", "layer"])
    assert sorted(tuple(asked[d] for d in GRID) for asked in found) == sorted(product)
    assert not made.exhausted
    assert made.ask(space) is None
    assert made.exhausted
    assert study(tmp_path, sampler="grid").ask(space) is None


def test_a_grid_gives_no_point_to_two_trials_at_a_time(tmp_path):
    made, space = study(tmp_path, sampler="grid"), make_space(GRID, HICS)
    running = [made.ask(space)[1] for _ in range(18)]
    assert len({repr(asked) for asked in running}) == 18
    assert made.ask(space) is None


def test_known_points_come_first(tmp_path):
    made, space = study(tmp_path), make_space(SPACE, HICS)
    made.enqueue(space.first_points(HICS))
    assert made.trials() == []
    assert asked_for(made, space, 2) == [
        {"selector": "HiCS", "local.batch_size": 10, "selector.lam": 0.1},
        {"selector": "FedCor", "local.batch_size": 10, "selector.beta": 0.95},
    ]
    assert [trial.number for trial in made.trials()] == [0, 1]


def test_how_trials_ended_is_told(tmp_path):
    made, space = study(tmp_path), make_space(PLAIN, HICS)
    for _ in range(4):
        made.ask(space)
    made.report(1, 5, 0.25)
    made.tell(0, COMPLETE, [0.5], {"status": "complete"})
    made.tell(1, PRUNED, [0.25], {"status": "pruned"})
    made.tell(2, FAIL, [math.nan], {"status": "diverged"})
    again = study(tmp_path)
    assert [trial.state for trial in again.trials()] == [COMPLETE, PRUNED, FAIL, TrialState.RUNNING]
    assert [trial.value for trial in again.trials()] == [0.5, 0.25, None, None]
    assert [trial.user_attrs.get("result", {}).get("status") for trial in again.trials()] == [
        "complete", "pruned", "diverged", None,
    ]  # fmt: skip
    assert [trial.number for trial in again.trials(COMPLETE, FAIL)] == [0, 2]


def test_the_first_word_counts(tmp_path):
    """Whoever resumes may tell again what the study knows."""
    made, space = study(tmp_path), make_space(PLAIN, HICS)
    made.ask(space)
    made.report(0, 5, 0.25)
    made.report(0, 5, 0.75)
    made.tell(0, COMPLETE, [0.5], {"status": "complete"})
    made.tell(0, FAIL, [], {"status": "failed"})
    made.tell(0, COMPLETE, [0.9], {"status": "again"})
    (trial,) = study(tmp_path).trials()
    assert (trial.state, trial.value, trial.intermediate_values) == (COMPLETE, 0.5, {5: 0.25})
    assert trial.user_attrs["result"] == {"status": "complete"}


def test_values_that_are_not_finite_are_not_reported(tmp_path):
    made = study(tmp_path)
    made.ask(make_space(PLAIN, HICS))
    assert made.report(0, 20, math.nan) is False
    assert made.trials()[0].intermediate_values == {}


def test_what_an_earlier_driver_left_running(tmp_path):
    made, space = study(tmp_path), make_space(PLAIN, HICS)
    asked = [made.ask(space) for _ in range(3)]
    made.tell(1, COMPLETE, [0.5], {})
    made.study.ask()  # killed before it had settings
    assert study(tmp_path).unfinished() == [asked[0], asked[2]]


@pytest.mark.parametrize(
    ("sampler", "entries", "told"),
    [
        ("tpe", SPACE, "distribution"), ("tpe", SPACE, SETTINGS), ("random", SPACE, "distribution"),
        ("cmaes", PLAIN, "distribution"), ("gp", PLAIN, SETTINGS), ("grid", GRID, "distribution"),
    ],
)  # fmt: skip
def test_a_trial_whose_driver_was_killed_while_it_asked_is_asked_again(tmp_path, sampler, entries, told):
    """It gets its number and its settings, also beyond the trials that samplers draw at random."""
    space, journal = make_space(entries, HICS), tmp_path / JOURNAL
    made = study(tmp_path, sampler=sampler)
    asked_for(made, space, 11)
    before = journal.read_bytes()
    expected = made.ask(space)
    lines = journal.read_bytes()[len(before) :].splitlines(keepends=True)
    # Killed after the first setting, or before it had noted them all.
    cut = next(n for n, line in enumerate(lines) if f'"{told}"'.encode() in line)
    journal.write_bytes(before + b"".join(lines[: cut + (told == "distribution")]))
    again = study(tmp_path, sampler=sampler)
    assert (again.unfinished(), again.left(12)) == ([], 1)
    assert again.ask(space) == expected
    assert again.unfinished() == [expected]


def last_round(made, values, number=None):
    """Report values, by round, and return the round at which the trial is stopped."""
    if number is None:
        number, _ = made.ask(make_space(PLAIN, HICS))
    return next((at for at, value in values.items() if made.report(number, at, value)), None)


def test_a_known_point_that_a_killed_driver_lost_is_tried_again(tmp_path):
    made, space = study(tmp_path), make_space(PLAIN, HICS)
    made.enqueue(space.first_points(HICS))
    made.study.ask()
    made = study(tmp_path)
    number, settings = made.ask(space)
    assert (number, settings) == (0, {"selector.lam": 0.1, "selector.gamma0": 4.0})
    for _ in range(30):
        assert not made.report(number, 20, -9.0)


def test_a_stop_that_a_killed_driver_did_not_tell_holds(tmp_path):
    made, space = study(tmp_path, grace_rounds=1, reduction=2), make_space(PLAIN, HICS)
    for value in range(4, 0, -1):
        number, _ = made.ask(space)
        stopped = made.report(number, 1, value)
    assert stopped
    assert study(tmp_path, grace_rounds=1, reduction=2).report(number, 1, value)


def test_a_sweeps_folder_may_be_renamed(tmp_path):
    (tmp_path / "old").mkdir()
    asked_for(study(tmp_path / "old"), make_space(PLAIN, HICS), 2)
    (tmp_path / "old").rename(tmp_path / "new")
    moved = Study(
        tmp_path / "new", "new", metrics=parse_metrics("validation/accuracy", "auto"),
        config=SweepConfig(), rounds=20, seed=0,
    )  # fmt: skip
    assert len(moved.trials(COMPLETE)) == 2


def test_asha_stops_by_round(tmp_path):
    """Rungs at 4, 8 and 16 rounds; each keeps the better half, and the first trial to arrive."""
    settings = {"scheduler": "asha", "grace_rounds": 4, "reduction": 2}
    made = study(tmp_path, **settings)
    assert last_round(made, {2: 0.1, 4: 0.4, 8: 0.5, 16: 0.6, 20: 0.6}) is None
    assert last_round(made, {2: 0.9, 4: 0.3, 8: 0.9}) == 4  # one of two is kept, and 0.4 is better
    made = study(tmp_path, **settings)  # the driver was killed
    assert last_round(made, {2: 0.0, 4: 0.45, 8: 0.45, 16: 0.9}) == 8
    # Fourth at round 4, where two of 0.3, 0.4, 0.45, 0.42 go on; at 8 one of 0.5, 0.45, 0.7.
    assert last_round(made, {4: 0.42, 8: 0.7, 16: 0.55}) == 16
    assert last_round(made, {4: 0.42, 8: 0.7, 16: 0.65}) is None


def test_the_first_known_point_is_never_stopped_and_counts_for_the_others(tmp_path):
    made = study(tmp_path, grace_rounds=4, reduction=2)
    made.enqueue(make_space(SPACE, HICS).first_points(HICS))
    numbers = [made.ask(make_space(SPACE, HICS))[0] for _ in range(2)]
    assert last_round(made, {4: 0.9, 8: 0.9}) is None
    assert last_round(made, {4: 0.5, 8: 0.1}, numbers[0]) is None
    assert last_round(made, {4: 0.4}, numbers[1]) == 4
    # Two of 0.9, 0.5, 0.4, 0.6 go on: the first point's 0.5 is the third.
    assert last_round(made, {4: 0.6}) is None


def test_asha_minimises_what_is_to_be_minimised(tmp_path):
    made = study(tmp_path, metric="validation/loss", grace_rounds=4, reduction=2)
    assert last_round(made, {4: 1.0}) is None
    assert last_round(made, {4: 2.0}) == 4
    assert last_round(made, {4: 0.5}) is None


def test_asha_decides_at_the_first_report_after_a_rung(tmp_path):
    made = study(tmp_path, grace_rounds=4, reduction=2)
    assert last_round(made, {3: 0.1, 6: 0.4, 9: 0.4}) is None
    assert last_round(made, {3: 0.1, 6: 0.3}) == 6


def test_the_grace_is_a_fifth_of_the_rounds(tmp_path):
    made = study(tmp_path, rounds=100)
    assert last_round(made, {20: 0.5}) is None
    assert last_round(made, {19: 0.1, 20: 0.1}) == 20


def test_the_median_stops_what_is_worse_than_half(tmp_path):
    made = study(tmp_path, scheduler="median", grace_rounds=4)
    for value in (0.3, 0.4, 0.5):
        number, _ = made.ask(make_space(PLAIN, HICS))
        assert last_round(made, {4: 0.1, 8: value}, number) is None
        made.tell(number, COMPLETE, [value], {})
    assert last_round(made, {3: 0.0, 4: 0.2, 8: 0.39}) == 8
    assert last_round(made, {3: 0.0, 4: 0.2, 8: 0.41}) is None


def test_nobody_is_stopped_without_a_scheduler(tmp_path):
    made = study(tmp_path, scheduler="none")
    for value in (0.5, 0.4, 0.3, 0.2):
        assert last_round(made, dict.fromkeys(range(1, 21), value)) is None


def test_several_metrics_have_a_front(tmp_path):
    made = study(tmp_path, metric="validation/accuracy, ledger/bytes_up", scheduler="none")
    space = make_space(PLAIN, HICS)
    for values in ((0.5, 10.0), (0.6, 20.0), (0.4, 15.0)):
        number, _ = made.ask(space)
        made.tell(number, COMPLETE, values, {})
    assert sorted(trial.number for trial in made.study.best_trials) == [0, 1]
    assert made.study.metric_names == ["validation/accuracy", "ledger/bytes_up"]


@pytest.mark.parametrize(("sampler", "entries"), [("tpe", SPACE), ("grid", GRID)])
def test_trials_that_failed_are_tried_again_on_request(tmp_path, sampler, entries):
    made, space = study(tmp_path, sampler=sampler), make_space(entries, HICS)
    count = 18 if sampler == "grid" else 4
    asked = [made.ask(space) for _ in range(count)]
    for number, _ in asked[2:]:
        made.tell(number, COMPLETE, [0.5], {})
    made.tell(0, FAIL, [], {"status": "failed", "died": True})
    made.tell(1, FAIL, [], {"status": "failed", "died": False})
    assert (made.left(count), made.repeated()) == (0, set())
    assert (made.retry("machine"), made.retry("failed"), made.retry("failed")) == (0, 2, 0)
    made = study(tmp_path, sampler=sampler)
    assert (made.left(count), made.repeated()) == (2, {0, 1})
    for again in (0, 1):
        assert made.ask(space) == (count + again, asked[again][1])
        made.tell(count + again, COMPLETE, [0.5], {})
    assert made.left(count) == 0


def test_trials_that_the_machine_failed_are_marked_and_tried_again(tmp_path):
    """A full disk is no fault of a trial's; a file that the user's code misses is."""
    made, space = study(tmp_path), make_space(PLAIN, HICS)
    for error in (OSError(errno.ENOSPC, "full"), OSError(errno.EMFILE, "open"), FileNotFoundError(2, "no")):
        with pytest.raises(UserError) as caught, naming(tmp_path / "last.ckpt"):
            raise error
        made.tell(made.ask(space)[0], FAIL, [], outcome(failure(job(tmp_path), caught.value)))
    assert (made.retry("machine"), made.retry("machine")) == (2, 0)
    assert made.repeated() == {0, 1}
    assert made.left(3) == 2
    made.tell(made.ask(space)[0], FAIL, [], outcome(failure(job(tmp_path), DivergedError("all"))))
    assert made.retry("failed") == 1, "what failed by the user's code, once that is mended"


def test_others_can_read_the_journal(tmp_path):
    """As optuna-dashboard does."""
    asked_for(study(tmp_path), make_space(PLAIN, HICS), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
        loaded = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))
    assert [trial.state for trial in loaded.trials] == [COMPLETE, COMPLETE]
    assert set(loaded.trials[0].params) == set(PLAIN)


def test_a_line_that_a_full_disk_cut_costs_that_line(tmp_path):
    space = make_space(PLAIN, HICS)
    asked_for(study(tmp_path), space, 2)
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:9])
    (tmp_path / f"{JOURNAL}.lock").touch()
    repair_journal(tmp_path)
    assert path.read_bytes() == whole
    assert len(study(tmp_path).trials(COMPLETE)) == 2


BINARY = b"\x80\x04\x95" + bytes(range(256)) * 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: BINARY,
        lambda whole: BINARY.replace(b"\n", b""),
        lambda whole: whole + BINARY,
        lambda whole: whole + BINARY.replace(b"\n", b""),
        lambda whole: b'{"a": 1}\n{"op_code": 0',
        lambda whole: whole[100:] + b'{"op_code": 0',
    ],
)
def test_a_journal_that_is_refused_is_left_as_it_is(tmp_path, damage):
    asked_for(study(tmp_path), make_space(PLAIN, HICS), 2)
    (tmp_path / "trials/0000").mkdir(parents=True)
    path = tmp_path / JOURNAL
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"study\.journal (is damaged|holds 0 studies)"):
        repair_journal(tmp_path)
    assert path.read_bytes() == before


DECLARED = {
    "config.yaml": {"rounds": 20, "selector": {"class_path": "a.B", "init_args": {"lam": 0.5}}},
    "space.yaml": {"selector.lam": LAM, "local.steps": {"type": "choice", "values": [1, 2]}},
    "sweep.yaml": {"sampler": "tpe", "seeds": [1, 2]},
}


@pytest.mark.parametrize(
    ("file", "key", "value", "said"),
    [
        ("space.yaml", "selector.lam", {**LAM, "high": 2}, "selector.lam.high 2 instead of 1"),
        ("space.yaml", "selector.lam", None, "selector.lam"),
        ("space.yaml", "local.lr", LAM, "local.lr.type uniform instead of null"),
        ("space.yaml", "local.steps", {"type": "choice", "values": [1, 3]}, "local.steps.values"),
        ("config.yaml", "rounds", 30, "rounds 30 instead of 20"),
        ("sweep.yaml", "seeds", [1, 3], "seeds"),
    ],
)
def test_a_sweep_whose_files_were_edited_is_refused_with_what_changed(tmp_path, file, key, value, said):
    study(tmp_path).hold_to(tmp_path, DECLARED)
    study(tmp_path).hold_to(tmp_path, DECLARED)
    before = (tmp_path / JOURNAL).read_bytes()
    edited = {**DECLARED, file: {**DECLARED[file], key: value}}
    if value is None:
        del edited[file][key]
    with pytest.raises(UserError) as caught:
        study(tmp_path).hold_to(tmp_path, edited)
    assert str(caught.value).startswith(f"{tmp_path / file} was changed since the sweep began ({said}")
    assert (tmp_path / JOURNAL).read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is missing, and with it what the trials were"),
        (b"", "holds 0 studies instead of one"),
        (bytes(range(256)) * 3 + b"\n", "is damaged: restore it, or start a new sweep: "),
        (b'{"a": 1}\n', "is damaged: restore it, or start a new sweep: KeyError: 'op_code'"),
    ],
)
def test_a_sweep_does_not_begin_anew_without_its_journal(tmp_path, content, said):
    (tmp_path / "trials/0000").mkdir(parents=True)
    if content is not None:
        (tmp_path / JOURNAL).write_bytes(content)
    with pytest.raises(UserError, match=said):
        repair_journal(tmp_path)


def test_a_sweep_that_was_killed_before_its_first_trial_begins(tmp_path):
    points = [*make_space(SPACE, HICS).first_points(HICS)]
    for content in (None, b"", b'{"op_code": 0, "worker'):
        (tmp_path / JOURNAL).unlink(missing_ok=True)
        if content is not None:
            (tmp_path / JOURNAL).write_bytes(content)
        repair_journal(tmp_path)
        study(tmp_path).enqueue(points[:1])
        study(tmp_path).enqueue(points)
        waiting = study(tmp_path).study.get_trials()
        assert len(waiting) == len(points) > 1
        assert [trial.user_attrs.get(BASELINE, False) for trial in waiting] == [True] + [False] * (
            len(points) - 1
        )


def test_a_journal_of_other_metrics_is_refused(tmp_path):
    study(tmp_path)
    for metric in ("validation/loss", "validation/loss, validation/accuracy"):
        with pytest.raises(UserError, match="is of a sweep of validation/accuracy, not of validation/loss"):
            study(tmp_path, metric=metric, scheduler="none")
