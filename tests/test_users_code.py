"""Users' code that raises: one sentence that names class, method, file and line; nothing lost or half-written."""

# ruff: noqa: E501 (sentences are quoted whole)

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import left_behind, same
from test_bad_input import fails
from test_cli import TINY, call

from flsel.selectors import Uniform

pytestmark = pytest.mark.usefixtures("here", "figures_where_they_are_tested")


def at(sentence: str) -> str:
    """The sentence as a pattern: any line number stands for N."""
    return re.escape(sentence).replace("line\\ N", r"line \d+").replace("line N", r"line \d+")


@pytest.mark.parametrize(
    ("key", "name", "sentence"),
    [
        ("selector", "Resets", "the run cannot start: Resets.reset raised KeyError: 'reset' (usercode.py, line N)."),
        ("selector", "Returns", "selector Returns cannot be built: TypeError: __init__() should return None, not 'int'."),
        ("selector", "Selects", "round 0 failed: Selects.select raised ZeroDivisionError: division by zero (usercode.py, line N)."),
        ("selector", "Asks", "round 0 failed: Asks.select raised IndexError: "),
        ("selector", "Hides", "the run stopped: Hides.__getattribute__ raised LookupError: hidden (usercode.py, line N)."),
        ("selector", "Halves", "clients must be whole numbers, got [0.5, 1.5]."),
        ("selector", "Masks", "clients must be given by their numbers, got true and false: take np.flatnonzero of the mask."),
        ("selector", "Flat", "a plan must have a list of paths of clients, got tensor([0, 1])."),
        ("selector", "AsksStrangers", "the selector asked client -1, and the clients are 0 to 3."),
        ("selector", "Needy", "Needy.needs must be a Need, such as Need.LABELS, got 'LABELS'."),
        ("selector", "Imagines", "Imagines.weigh must return 2 finite weights >= 0, got [1j, (1+0j)] of shape (2,)."),
        ("selector", "Weighs", "round 0 failed: Weighs.weigh raised RuntimeError: "),
        ("selector", "Remembers", "Remembers.values_ must be made of tensors, numbers, texts, lists, sets and dictionaries, which checkpoints keep, got numpy.ndarray."),
        ("selector", "Queues", "Queues.queue_ must be made of tensors, numbers, texts, lists, sets and dictionaries, which checkpoints keep, got collections.deque."),
        ("partition", "Deals", "the data cannot be partitioned: Deals.split raised IndexError: list index out of range (usercode.py, line N)."),
        ("availability", "Comes", "the run cannot start: Comes.formula raised RuntimeError: formula (usercode.py, line N)."),
        ("partition", "DealsFew", "DealsFew.split must return a list of 4 arrays of positions, one for each client, got 3 of them."),
        ("partition", "DealsOwners", "DealsOwners.split must return a list of 4 arrays of positions, one for each client, got ndarray."),
        ("availability", "ComesTwice", "ComesTwice.formula must give probabilities in [0, 1] of shape (1, 4), got [[2. 2. 2. 2.]] of shape (1, 4)."),
        ("availability", "ComesShort", "ComesShort.formula must give probabilities in [0, 1] of shape (1, 4), got [1.] of shape (1,)."),
        ("objective", "CorrectsCopies", "CorrectsCopies.correct must change the gradients that it is given, and return nothing."),
        ("objective", "CorrectsAway", "CorrectsAway.correct must leave a gradient of every parameter."),
        ("objective", "ObservesMore", "ObservesMore.observe writes to what the view or the updates show it; change a copy (tensor.clone())."),
        ("objective", "Corrects", "round 0 failed: Corrects.correct raised NotImplementedError (usercode.py, line N)."),
        ("objective", "Aggregates", "round 0 failed: Aggregates.aggregate raised KeyError: 'nothing' (usercode.py, line N)."),
        ("objective", "AggregatesNothing", "AggregatesNothing.aggregate must return tensors by the names and of the shapes that it was given."),
        ("objective", "NamesModels", "NamesModels.models must return a tuple of models like starts, got models."),
        ("objective", "HasNoContrast", "HasNoContrast.models names models, and HasNoContrast.contrast is not defined."),
        ("availability", "ComesNever", "ComesNever.formula must return a function of rounds, got 0.5."),
        ("callbacks", "[usercode.Starts]", "callback Starts failed in on_train_epoch_start: Starts.on_train_epoch_start raised RecursionError: callback (usercode.py, line N)."),
        ("callbacks", "[usercode.StartsWithLess]", "callback StartsWithLess failed in on_train_epoch_start: TypeError: StartsWithLess.on_train_epoch_start() takes 1 positional argument but 3 were given."),
        ("model", "StepsWithMore", "model StepsWithMore cannot compute its loss of examples 0 [8] float32, 1 [] int64: TypeError: StepsWithMore.training_step() missing 1 required positional argument: 'more'."),
        ("availability", "ComesUncalled", "round 0 failed: TypeError: ComesUncalled.formula.<locals>.<lambda>() takes 0 positional arguments but 1 was given."),
        ("model", "Steps", "model Steps cannot compute its loss of examples 0 [8] float32, 1 [] int64: Steps.training_step raised AttributeError: 'Steps' object has no attribute 'nothing' (usercode.py, line N)."),
        ("model", "Configures", "the run cannot start: Configures.configure_optimizers raised OSError: configure (usercode.py, line N)."),
        ("model", "Strays", "configure_optimizers of Strays must be of the model's own parameters, and it has others too."),
        ("model", "Forwards", "model Forwards does not accept inputs of shape (8,): Forwards.forward raised AssertionError: no examples please (usercode.py, line N)."),
        ("model", "Centres", "model Centres writes to its inputs, which are the dataset: change a copy (x = x.clone())."),
        ("model", "Grows", "model Grows makes, drops or freezes parameters in forward: do it in __init__."),
        ("model", "Freezes", "model Freezes makes, drops or freezes parameters in forward: do it in __init__."),
        ("model", "Whole", "model Whole must return logits that are real numbers, got torch.int64."),
        ("model", "Complex", "model Complex must return logits that are real numbers, got torch.complex64."),
        ("model", "Phases", "model Phases must have parameters that are real numbers."),
        ("model", "Unmade", "model Unmade must have parameters that are real numbers."),
        ("model", "made", "model must be a class or a function, and usercode.made is a Linear."),
        ("data.name", "negative", "usercode.negative: the training set has no length: __len__() should return >= 0."),
        ("model", "Detached", "round 0 failed: RuntimeError: element 0 of tensors does not require grad"),
        ("model", "WholeLoss", "training_step must return a scalar loss, or a mapping with one under 'loss', got torch.int64 []."),
        ("local.optimizer", "LBFGS", "local.optimizer must step with one gradient, and LBFGS needs a closure"),
        ("local.optimizer", "usercode.NeverSteps", "round 0 failed: NeverSteps.step raised NotImplementedError."),
        ("local.optimizer", "SparseAdam", "round 0 failed: RuntimeError: SparseAdam does not support dense gradients"),
        ("server_optimizer", "LBFGS", "server_optimizer must step with one gradient, and LBFGS needs a closure"),
    ],
)  # fmt: skip
def test_one_sentence(key: str, name: str, sentence: str, capfd: Any) -> None:
    path = name if key.endswith("optimizer") or name.startswith("[") else f"usercode.{name}"
    said = fails(capfd, *TINY, f"--{key}", path)
    assert re.match(at(sentence), said), said


MISFITS = {
    "selector": ("Selector", "select(self)", "SELECT must take (self, view) as Selector.select does, got (self)"),
    "partition": ("Partition", "split(self, y, n, rng, more)", "SPLIT must take (self, labels, clients, rng) as Partition.split does, got (self, y, n, rng, more)"),
    "availability": ("Availability", "formula(self, *, counts)", "FORMULA must take (self, counts, rng) as Availability.formula does, got (self, counts)"),
    "objective": ("Objective", "correct(self, grads)", "CORRECT must take (self, grads, params, starts, clients) as Objective.correct does, got (self, grads)"),
}  # fmt: skip


@pytest.mark.parametrize("key", MISFITS)
def test_a_method_that_does_not_take_what_it_is_called_with(key: str, capfd: Any) -> None:
    base, method, sentence = MISFITS[key]
    Path(f"misfit_{key}.py").write_text(
        f"from usercode import {base}\n\nclass Mine({base}):\n    def {method}:\n        pass\n"
    )
    said = fails(capfd, *TINY, f"--{key}", f"misfit_{key}.Mine")
    told = re.sub("^[A-Z]+", f"Mine.{method.partition('(')[0]}", sentence)
    assert (
        said
        == f"{key} cannot be misfit_{key}.Mine, whose import failed: TypeError: {told} (misfit_{key}.py, line 3)."
    )


def test_a_method_may_take_more_than_it_is_called_with() -> None:
    class Mine(Uniform):
        def select(self, *given: Any, more: int = 0) -> Any:
            return super().select(*given)

    assert issubclass(Mine, Uniform)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Logs",
            "precision bf16-true trains plain networks, and Logs brings a step of its own: use bf16-mixed.",
        ),
        ("Recurrent", "precision bf16-true cannot train GRU: use bf16-mixed."),
    ],
)
def test_models_that_cannot_train_in_bfloat16(name: str, sentence: str, capfd: Any) -> None:
    said = fails(capfd, *TINY, "--model", f"usercode.{name}", "--precision", "bf16-true")
    assert said == sentence


def test_a_selector_that_python_takes_for_a_function() -> None:
    assert call("train", *TINY, "--selector", "usercode.NoRoutine", "--quiet") == 0


def test_sparse_inputs_are_filled_in() -> None:
    words = ["--data.name", "usercode.sparse", "--partition", "IID", "--data.server", "0"]
    assert call("train", *TINY, *words, "--quiet") == 0


def test_a_batch_that_a_layer_refuses(capfd: Any) -> None:
    said = fails(capfd, *TINY, "--model", "usercode.Normed", "--local.batch_size", "1")
    assert said.startswith("round 0 failed: batch normalisation takes no batch of one example (Expected"), (
        said
    )


@pytest.mark.parametrize(
    ("key", "name", "sentence"),
    [
        ("selector", "Observes", "round 2 failed: Observes.observe raised SystemExit: observe (usercode.py, line N)"),
        ("selector", "HidesLater", "the run stopped: HidesLater.__getattribute__ raised LookupError: hidden (usercode.py, line N)"),
        ("availability", "ComesLate", "round 2 failed: schedule raised TypeError: "),
    ],
)  # fmt: skip
def test_a_later_round_that_fails_can_be_executed_again(
    key: str, name: str, sentence: str, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import usercode

    arguments = [*TINY, "--rounds", "4", f"--{key}", f"usercode.{name}", "--quiet"]
    assert call("train", *arguments) == 2
    said = capfd.readouterr().err.removeprefix("flsel: error: ")
    assert re.match(at(sentence), said), said
    assert said.endswith(
        "once your code or files are corrected, resume with: flsel train --resume runs/run\n"
    )
    assert said.count("\n") == 1
    # Mended, the run goes on to where it would have come.
    if name == "HidesLater":
        monkeypatch.delattr(usercode.HidesLater, "__getattribute__")
    elif name == "Observes":
        monkeypatch.setattr(usercode.Observes, "observe", usercode.Uniform.observe)
    else:
        monkeypatch.setattr(
            usercode.ComesLate,
            "formula",
            lambda self, counts, rng: lambda r: torch.ones(1, len(counts)).double().numpy() / 2,
        )
    assert call("train", "--resume", "runs/run") == 0
    assert call("train", *arguments, "--output.name", "whole") == 0
    assert same(left_behind(Path("runs/run")), left_behind(Path("runs/whole")))


def test_a_model_that_is_unusual_trains(capfd: Any) -> None:
    assert call("train", *TINY, "--model", "usercode.Odd") == 0
    shown = capfd.readouterr()
    assert "a step" in shown.out
    assert "Traceback" not in shown.err
    first = left_behind(Path("runs/run"))
    assert call("train", *TINY, "--model", "usercode.Odd", "--output.name", "again", "--quiet") == 0
    assert same(first, left_behind(Path("runs/again")))


def test_a_function_without_annotations_builds_a_model(capfd: Any) -> None:
    assert call("train", *TINY, "--model", "usercode.builds", "--model.width", "3", "--quiet") == 0
    model = torch.load("runs/run/checkpoints/last.ckpt", weights_only=True)["server"]["model"]
    assert model["0.weight"].shape == (3, 8)
    said = fails(capfd, *TINY, "--model", "usercode.builds", "--model.wdith", "3")
    assert said.startswith("model.wdith is not an argument of builds"), said
    said = fails(capfd, *TINY, "--model", "torchvision.models.resnet18", "--model.num_classes", "4")
    assert said.startswith("model ResNet does not accept inputs of shape (8,): RuntimeError: "), said
