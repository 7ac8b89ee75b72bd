"""Callbacks on rounds: Lightning's own classes, and what a user's may do wrong."""

from __future__ import annotations

import inspect
import logging
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, callbacks
from mymodels import Logs
from runs import InterruptIn, left_behind, same, settings
from torch import Tensor

from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.errors import Interrupted, UserError
from flsel.execution.job import Job
from flsel.execution.run import execute, run
from flsel.runner.callbacks import CALLED, OF_A_STEP, check_callbacks
from flsel.runner.result import Result

ROOT = Path(__file__).resolve().parents[1]
# A loss that cannot improve on a threshold of nats: three evaluations without one end the run.
STOP = partial(callbacks.EarlyStopping, monitor="test/loss", min_delta=100.0, patience=3)


@pytest.mark.parametrize(("every", "ends"), [(1, 4), (2, 8)])
def test_early_stopping_counts_evaluations(tmp_path: Path, every: int, ends: int) -> None:
    result = run(settings(tmp_path, rounds=12, callbacks=(STOP,), evaluation=EvaluationConfig(every=every)))
    assert result.summary["rounds"] == ends
    assert result.summary["planned_rounds"] == 12


@pytest.mark.parametrize("stop", [0, 2, 3])
def test_a_resumed_run_stops_where_an_uninterrupted_one_does(tmp_path: Path, stop: int) -> None:
    config = settings(tmp_path, rounds=12, callbacks=(STOP,))
    run(config)
    whole = left_behind(tmp_path / "run")
    broken = replace(config, callbacks=(STOP, partial(InterruptIn, stop)))
    broken = replace(broken, output=replace(config.output, name="broken"))
    if stop < 3:
        with pytest.raises(Interrupted):
            run(broken)
    else:  # the signal comes in the round that the callback makes the last
        run(broken)
    assert execute(Job(config, tmp_path / "broken", tracked=False).session()).summary["rounds"] == 4
    assert same(left_behind(tmp_path / "broken"), whole)


def test_a_run_that_a_callback_ended_stays_ended(tmp_path: Path) -> None:
    config = settings(tmp_path, rounds=12, callbacks=(STOP,))
    first = run(config)
    again = execute(Job(config, tmp_path / "run", tracked=False).session())
    assert again.summary == first.summary
    with pytest.raises(UserError, match=r"cannot have 20 rounds instead of 12: .*a callback ended it"):
        execute(Job(replace(config, rounds=20), tmp_path / "run", tracked=False).session())


def test_a_timer_ends_a_run_after_its_time(tmp_path: Path) -> None:
    timer = partial(callbacks.Timer, duration={"seconds": 0.01}, interval="epoch")
    result = run(settings(tmp_path, rounds=1000, callbacks=(timer, partial(Sleeping, 0.02))))
    assert result.summary["rounds"] < 1000


class Sleeping(Callback):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_round_start(self, server: Any) -> None:
        time.sleep(self.seconds)


REFUSED = {
    "ModelCheckpoint": "output.checkpoint_every",
    "LearningRateMonitor": "local.lr_schedule",
    "StochasticWeightAveraging": "on_round_end",
    "Timer": "interval: epoch",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_on_rounds_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    given = {"StochasticWeightAveraging": {"swa_lrs": 0.1}, "Timer": {"duration": {"days": 1}}}
    made = partial(getattr(callbacks, name), **given.get(name, {}))
    with pytest.raises(UserError, match=rf"^callbacks.* {name}.*{re.escape(REFUSED[name])}"):
        run(settings(tmp_path, callbacks=(made,)))
    assert list(tmp_path.iterdir()) == []


class Asking(Callback):
    """Reads what the documentation says a trainer has."""

    seen: list[Any] = []  # noqa: RUF012 (a run makes the instance, the test reads the class)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        names = documented()
        self.seen.append({name: getattr(trainer, name) for name in names})


def documented() -> list[str]:
    table = (ROOT / "docs/callbacks.md").read_text().partition("## What `trainer` has")[2]
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert "current_epoch" in names
    return names


def test_the_trainer_has_what_the_documentation_lists(tmp_path: Path) -> None:
    Asking.seen = []
    result = run(settings(tmp_path, callbacks=(Asking,), evaluation=EvaluationConfig(every=2)))
    assert [seen["current_epoch"] for seen in Asking.seen] == list(range(6))
    assert [seen["global_step"] for seen in Asking.seen] == list(range(1, 7))
    assert {seen["max_epochs"] for seen in Asking.seen} == {6}
    losses = [float(seen["callback_metrics"]["test/loss"]) for seen in Asking.seen]
    curve = result.history["test/loss"]
    assert losses == pytest.approx([curve[(n + 1) // 2] for n in range(6)])
    assert Path(Asking.seen[0]["default_root_dir"]) == result.folder


class AsksModule(Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        Asking.seen.append((pl_module.trainer is trainer, pl_module.current_epoch, pl_module.global_step))


def test_the_module_has_the_trainer_in_a_hook_only(tmp_path: Path) -> None:
    Asking.seen = []
    result = run(settings(tmp_path, callbacks=(AsksModule, callbacks.ModelSummary), rounds=2))
    assert Asking.seen == [(True, 0, 0), (True, 1, 1)]
    assert result.history["round"][-1] == 2


class Failing(Callback):
    def on_round_end(self, server: Any, record: Any) -> None:
        if record.round == 3:
            raise KeyError("mine")


class Nosy(Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        assert trainer.datamodule


class Hoarder(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"mine": object()}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Failing, r"callback Failing failed in on_round_end: Failing.on_round_end raised KeyError: .mine. "
                  r"\(test_callbacks.py, line \d+\)"),
        (Nosy, r"callback Nosy asks in on_train_epoch_end for the trainer's datamodule, .*docs/callbacks.md"),
        (Hoarder, r"callback Hoarder: state_dict must hold tensors and plain values"),
    ],
)  # fmt: skip
def test_what_a_callback_raises_is_one_sentence(tmp_path: Path, made: type, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(settings(tmp_path, callbacks=(made,)))


def test_a_run_whose_callback_failed_goes_on(tmp_path: Path) -> None:
    config = settings(tmp_path)
    run(config)
    whole = left_behind(tmp_path / "run")
    with pytest.raises(UserError, match="Failing"):
        run(replace(config, callbacks=(Failing,)))
    execute(Job(config, tmp_path / "run-2", tracked=False).session())
    assert same(left_behind(tmp_path / "run-2"), whole)
    assert Result.load(tmp_path / "run-2").summary["rounds"] == 6


def test_local_steps_know_no_epochs(tmp_path: Path) -> None:
    """However long a visit is, an epoch stays a round."""
    Asking.seen = []
    run(settings(tmp_path, rounds=2, callbacks=(Asking,), local=LocalConfig(epochs=3)))
    assert [seen["current_epoch"] for seen in Asking.seen] == [0, 1]


class Nameless(Callback):
    """Name the arguments of a hook as one likes, which Lightning allows."""

    def on_train_epoch_end(self, *given: Any) -> None:
        assert len(given) == 2

    def setup(self, owner: Any, module: Any, phase: str) -> None:
        assert phase == "fit"


def test_hooks_are_called_by_position(tmp_path: Path) -> None:
    assert run(settings(tmp_path, callbacks=(Nameless,))).final


class Annealed(Logs):
    """Its step reads what a callback writes."""

    factor = 1.0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * self.factor


class Anneals(Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.factor = 0.5**trainer.current_epoch


class Freezes(Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.layer.bias.requires_grad_(False)


def test_what_a_callback_writes_to_the_module_counts(tmp_path: Path) -> None:
    found = []
    for backend in ("compiled", "sequential"):
        local = LocalConfig(5, steps=3, last_batch="wrap", backend=backend)
        config = settings(tmp_path, model=Annealed, callbacks=(Anneals,), local=local, rounds=3)
        found.append(run(config).final["test/loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_callback_cannot_freeze_parameters(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Freezes must not change in on_train_epoch_start which parameters"):
        run(settings(tmp_path, model=Logs, callbacks=(Freezes,)))


def norms(server: Any) -> dict[str, Any]:
    norm = sum(value.square().sum() for value in server.params.values()).sqrt()
    return {"model/norm": norm, "my, odd name": server.round}


ADDED: dict[str, Any] = {
    "norms": norms,
    "text": lambda server: {"mine": "high"},
    "list": lambda server: {"mine": [1]},
    "number": lambda server: {3: 4},
    "round": lambda server: {"round": 4},
    "loss": lambda server: {"test/loss": 0.0},
    "changing": lambda server: {f"mine{server.round // 2}": 1.0},
}


class Adds(Callback):
    """Adds metrics to evaluations."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def on_evaluation(self, server: Any, metrics: dict[str, Any]) -> None:
        metrics.update(ADDED[self.kind](server))


def test_what_a_callback_adds_to_an_evaluation_is_written_and_may_be_monitored(tmp_path: Path) -> None:
    stop = partial(
        callbacks.EarlyStopping, monitor="my, odd name", mode="max", stopping_threshold=2.5, patience=100
    )
    config = settings(tmp_path, callbacks=(partial(Adds, "norms"), stop))
    result = run(config)
    assert result.history["my, odd name"].tolist() == [0, 1, 2, 3]
    assert (result.history["model/norm"] >= 0).all()
    assert result.final["my, odd name"] == 3
    assert set(result.best) <= {"test/loss", "test/accuracy", "validation/loss", "validation/accuracy"}
    plain = run(replace(config, callbacks=(), rounds=3))
    assert [step.plan for step in plain.rounds] == [step.plan for step in result.rounds]


def test_a_resumed_run_goes_on_with_what_a_callback_adds(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(settings(tmp_path, callbacks=(partial(Adds, "norms"), partial(InterruptIn, 2))))
    config = settings(tmp_path, callbacks=(partial(Adds, "norms"),))
    result = execute(Job(config, tmp_path / "run", tracked=False).session())
    assert result.history["my, odd name"].tolist() == [*range(7)]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("text", "must add numbers by name to metrics, got mine: 'high'."),
        ("list", "must add numbers by name to metrics, got mine: [1]."),
        ("number", "must add numbers by name to metrics, got 3: 4."),
        ("round", "must add numbers by name to metrics, got round: 4."),
        ("loss", "must leave test/loss as it was measured; it may add metrics of other names."),
    ],
)
def test_what_is_no_metric_is_refused(tmp_path: Path, kind: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        run(settings(tmp_path, callbacks=(partial(Adds, kind),)))
    assert f"on_evaluation of Adds {sentence}" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_metrics_that_come_and_go_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"same metrics to every evaluation .*, got mine1 instead of mine0\."):
        run(settings(tmp_path, callbacks=(partial(Adds, "changing"),)))


LAMBDAS = set(inspect.signature(callbacks.LambdaCallback).parameters)


def hooks_of_lightning() -> list[str]:
    return [name for name in dir(Callback) if not name.startswith("_") and name not in CALLED]


@pytest.mark.parametrize("hook", hooks_of_lightning())
def test_a_hook_of_lightnings_that_is_not_called_is_refused_or_told_of(hook: str, caplog: Any) -> None:
    def nothing(self: Any, *given: Any, **named: Any) -> None: ...

    made = type(f"Hooked_{hook}", (Callback,), {hook: nothing})
    lambdas = callbacks.LambdaCallback(**{hook: nothing}) if hook in LAMBDAS else made()
    with caplog.at_level(logging.WARNING, "flsel"):
        for callback in (made(), lambdas):
            if hook in OF_A_STEP:
                with pytest.raises(UserError, match=f" has {hook}, which clients do not call: "):
                    check_callbacks([callback])
            else:
                check_callbacks([callback])
                check_callbacks([callback])
    told = [record.getMessage() for record in caplog.records]
    assert told.count(
        f"callback Hooked_{hook}: {hook} will not be called; docs/callbacks.md lists what is"
    ) == (hook not in OF_A_STEP)


@pytest.mark.parametrize("name", ["EarlyStopping", "Timer", "RichProgressBar", "TQDMProgressBar"])
def test_lightnings_own_that_work_are_taken(name: str, caplog: Any) -> None:
    given = {"EarlyStopping": {"monitor": "test/loss"}, "Timer": {"interval": "epoch"}}
    with caplog.at_level(logging.WARNING, "flsel"):
        check_callbacks([getattr(callbacks, name)(**given.get(name, {}))])
    assert not caplog.records
