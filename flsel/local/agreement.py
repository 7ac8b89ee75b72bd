"""State of the self-check of a program, and the largest gap of two answers that rounding explains."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from flsel.params import Params
from flsel.selector.state import Stateful

Check = Literal["auto", "every", "off"]
Question = Literal["train", "losses", "gradients", "evaluation"]


RUN_AGAIN = "run again with --local.backend sequential --local.workers 1"


class Gap(NamedTuple):
    """The largest distance of two answers.

    Attributes:
        size: In lengths of the plain answer, of an update for example.
        tolerance: Largest size that rounding is taken to explain.
        where: Name of the tensor.
    """

    size: float
    tolerance: float
    where: str


class Disagreement(NamedTuple):
    """Where a fast answer of a program disagreed with the plain one.

    Attributes:
        round: Communication round; from it on the answer is computed the plain way.
        gap: Distance of the two answers, in lengths of the plain one.
        tolerance: Largest gap that rounding explains.
        where: What differed most.
        late: Earlier rounds took the fast answer.
    """

    round: int
    gap: float
    tolerance: float
    where: str
    late: bool

    @property
    def doubt(self) -> str:
        """Say which rounds were trained by the fast trainer before, and what to do; empty if none was."""
        if not self.late:
            return ""
        return f"rounds 0 to {self.round - 1} were trained fast, so all numbers may be wrong: {RUN_AGAIN}"


@final
class Agreement(Stateful):
    """State of the self-check of one program; a checkpoint keeps it, and a resume checks in the same rounds.

    Attributes:
        check: ``auto`` compares some answers, ``every`` all of them, ``off`` none.
        compared_: Questions of which an answer was compared.
        shapes_: Shapes of visits that were compared.
        last_: Last round in which a visit was compared because of its number.
        changed_: Whether the program was changed since the last comparison.
        repeated: Last round in which this process trained a visit twice; -1 if there is none.
    """

    def __init__(self, check: Check = "auto") -> None:
        self.check = check
        self.compared_: list[str] = []
        self.shapes_: list[int] = []
        self.last_ = -1
        self.changed_ = False
        self.repeated = -1
        self.found_: dict[str, list[Any]] = {}

    def disagreement(self, question: Question) -> Disagreement | None:
        """Return where the answers to a question disagreed; None if they did not."""
        entry = self.found_.get(question)
        return None if entry is None else Disagreement(*entry)

    def disagreed(self, question: Question, round: int, gap: Gap) -> Disagreement:
        """Note, and return, where the answers to a question disagreed."""
        disagreement = Disagreement(round, *gap, question in self.compared_ and round > 0)
        self.found_[question] = list(disagreement)
        return disagreement

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return where answers disagreed, by question, as ``summary.json`` holds it.

        ``doubt`` says what of a run may be wrong and what to do, where clients were trained wrongly.
        """
        entries = {question: Disagreement(*entry)._asdict() for question, entry in self.found_.items()}
        if training := self.disagreement("train"):
            entries["train"]["doubt"] = training.doubt
        # JSON has no infinity: what raised an error has no distance.
        return {name: entry | {"gap": _finite(entry["gap"])} for name, entry in entries.items()}

    def due(self, question: Question) -> bool:
        """Tell whether the next answer to a question other than ``train`` is to be compared."""
        if self.check == "off" or question in self.found_:
            return False
        return self.check == "every" or question not in self.compared_

    def repeat_due(self, round: int) -> bool:
        """Tell whether one of the clients that train one by one is to train twice, and note that it does."""
        regular = self.repeated < 0 or (is_regular(round) and round > self.repeated)
        due = self.check == "every" or (self.check == "auto" and regular)
        self.repeated = max(self.repeated, round) if due else self.repeated
        return due

    def compared(self, question: Question) -> None:
        """Note that an answer was compared."""
        if question not in self.compared_:
            self.compared_.append(question)

    def changed(self) -> None:
        """Note that something about the program was changed, so that its next answers are compared."""
        self.changed_ = "train" in self.compared_
        self.compared_ = [question for question in self.compared_ if question == "train"]


def is_regular(round: int) -> bool:
    """Tell whether a round is one of 1, 4, 16, ..., in which answers are compared."""
    return round > 0 and round & (round - 1) == 0 and round.bit_length() % 2 == 1


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


# Largest distance, in lengths of a tensor's update, that rounding is taken to explain without a closer look,
# by the precision of the arithmetic (benchmarks/self-check.md has what was measured).
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}
# A tensor that hardly moves is compared with this share of the whole model's update.
_SHARE = 1e-4
# Rounding is taken to move an answer at most so many times as far as a start that is moved by this share.
_MARGIN = 3.0
_MOVES = {torch.float64: 2**-42, torch.float32: 2**-13, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest distance, in lengths of the update, that rounding in a precision explains."""
    return _TOLERANCES.get(dtype, _TOLERANCES[torch.float32])


def answer_gap(
    plain: Params,
    difference: Params,
    units: Params | None,
    dtype: torch.dtype,
    sensitivity: Callable[[], Params],
) -> Gap | None:
    """Judge how far a fast answer is from the plain one, tensor by tensor.

    Where it is further away than the tolerance, the plain way tells how sensitive the answer is. Rounding
    alone may move networks with kinks (ReLU, max pooling) by some per cent: seldom, and then at once. A start
    that is moved by many units in the last place meets such a kink in nearly every visit.

    Args:
        plain: The plain answer: an update, a gradient, a loss.
        difference: The fast answer less the plain one.
        units: Tensors in whose last place both answers were rounded; None if in their own.
        dtype: Precision of the arithmetic.
        sensitivity: Returns how far the plain answer moves when its model goes through :func:`perturb`.

    Returns:
        The largest distance, or None if rounding explains it.
    """
    allowed, floor = tolerance(dtype), _units(plain if units is None else units)
    lengths, distance = _lengths(plain), _lengths(difference)
    diverged = not bool(torch.isfinite(lengths).all())
    if diverged and not bool(torch.isfinite(_lengths(_sum(plain, difference))).all()):
        return None  # both did, and no such number counts
    scale = lengths + _SHARE * lengths.square().sum().sqrt()
    if not diverged and bool((distance <= allowed * scale + floor).all()):
        return None
    sensitive = _lengths(sensitivity())
    if diverged or not bool(torch.isfinite(sensitive).all()):
        explained = not diverged  # rounding decides whether a step overflows
    else:
        explained = bool((distance <= allowed * scale + floor + _MARGIN * sensitive).all())
    if explained:
        return None
    share = ((distance - floor) / scale).nan_to_num(nan=torch.inf)
    worst = int(share.argmax())
    return Gap(float(share[worst]), allowed, list(plain)[worst])


def subtract(one: Params, other: Params) -> Params:
    """Subtract a model from another."""
    return {name: value - other[name] for name, value in one.items()}


def _sum(one: Params, other: Params) -> Params:
    return {name: value + other[name] for name, value in one.items()}


def perturb(start: Params, dtype: torch.dtype) -> Params:
    """Move all numbers of a model up or down by a share that is small, and many times that of rounding."""
    generator = torch.Generator().manual_seed(0)
    share = _MOVES.get(dtype, _MOVES[torch.float32])
    model = {}
    for name, value in start.items():
        signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1)
        model[name] = value + value * signs.to(value) * share
    return model


def _units(model: Params) -> Tensor:
    """Return one unit in the last place of each tensor's numbers, by length, float64 ``[tensors]``."""
    sizes = torch.tensor([torch.finfo(value.dtype).eps for value in model.values()], dtype=torch.float64)
    return _lengths(model) * sizes


def _lengths(model: Params) -> Tensor:
    """Return the length of each tensor of a model, float64 ``[tensors]`` on the CPU."""
    # Apple's GPUs have no float64.
    values = (value.cpu() if value.device.type == "mps" else value for value in model.values())
    return torch.stack([torch.linalg.vector_norm(value, dtype=torch.float64) for value in values]).cpu()
