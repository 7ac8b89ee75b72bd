"""State of the self-check of a program: what was compared, and where fast and plain answers disagreed."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, final

from flsel.selector.state import Stateful

Check = Literal["auto", "every", "off"]
Question = Literal["train", "losses", "gradients", "evaluation"]


RUN_AGAIN = "run again with --local.backend sequential --local.workers 1"


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
        changed_: Something about the program was changed since the last comparison.
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
        found = self.found_.get(question)
        return None if found is None else Disagreement(*found)

    def disagreed(self, question: Question, found: Disagreement) -> None:
        """Note where the answers to a question disagreed."""
        self.found_[question] = list(found)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return where answers disagreed, by question, as ``summary.json`` holds it.

        ``doubt`` says what of a run may be wrong and what to do, where clients were trained wrongly.
        """
        told = {question: Disagreement(*found)._asdict() for question, found in self.found_.items()}
        if found := self.disagreement("train"):
            told["train"]["doubt"] = found.doubt
        # JSON has no infinity: what raised an error has no distance.
        return {name: found | {"gap": _finite(found["gap"])} for name, found in told.items()}

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
