"""Train a case by each backend, and compare the ends with those of the plain loop."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flsel.data.population import Normalize, Population
from flsel.errors import UserError
from flsel.local.agreement import Agreement
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.compiled.refusals import why_not_compiled
from flsel.local.judge import CheckedTrainer
from flsel.local.plain import PlainFabric
from flsel.local.program import Program
from flsel.local.sequential import SequentialTrainer
from flsel.local.tasks import as_task, make_optimizer
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import from_rows
from flsel.params import Params, row
from zoo.cases import Case
from zoo.reference import SEED, trained

BACKENDS: dict[str, Callable[[], LocalTrainer]] = {
    "sequential": SequentialTrainer,
    "compiled": CompiledTrainer,
}
# Distance from the plain loop's end in lengths of its update.
_CLOSE = {torch.float64: 1e-8, torch.float32: 1e-3}
# By how much starts are moved to see how far rounding may move each tensor.
_MOVED = {torch.float64: 2.0**-44, torch.float32: 2.0**-17}


class Outcome(NamedTuple):
    """How a backend did.

    Attributes:
        gap: Largest distance from the plain loop, in lengths of the update; infinite for an error.
        right: Whether that is rounding.
        how: ``compiled`` or ``sequential``: what trained in the end; ``refused``, or the error.
    """

    gap: float
    right: bool
    how: str


def program_of(case: Case, check: Any = "off") -> Program:
    """Make a case's program as flsel makes it of its settings."""
    model = case.model()
    fabric = PlainFabric(case.precision)
    task = as_task(model, case.make_optimizer)  # type: ignore[arg-type]
    fabric.setup_module(task)
    population = Population(case.x, case.y, tuple(case.shards), 4, Normalize().to(case.dtype))
    return Program(
        task=task,
        model=model,
        population=population,
        spec=case.batches(),
        objective=case.objective(),
        lr_factors=[1.0] * case.rounds,
        seed=SEED,
        optimizer=make_optimizer(task, case.make_optimizer),  # type: ignore[arg-type]
        fabric=fabric,
        agreement=Agreement(check),
    )


def starts_of(case: Case) -> Params:
    """Return where clients start, each somewhere else, ``[clients, ...]``."""
    live = program_of(case).state()
    draw = torch.Generator().manual_seed(case.seed)
    there = [
        {n: v.detach() + 0.1 * torch.rand(v.shape, generator=draw).to(v) for n, v in live.items()}
        for _ in case.sizes
    ]
    return {name: torch.stack([model[name] for model in there]) for name in live}


def expected(case: Case, starts: Params) -> list[Params]:
    """Return the plain loop's ends in each round, ``[clients, ...]``."""
    found = []
    for round in range(case.rounds):
        ends = [trained(case, {n: v[c] for n, v in starts.items()}, c, round) for c in range(len(case.sizes))]
        found.append({name: torch.stack([end[name] for end in ends]) for name in starts})
    return found


class Untrainable(Exception):
    """A case that the plain loop cannot train."""


class Plain:
    """The plain loop's ends of a case, and how far they move when the starts do.

    Args:
        case: The case.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.starts = case, starts_of(case)
        self.ends = expected(case, self.starts)
        self._moves: Tensor | None = None

    def explains(self, gaps: Tensor) -> bool:
        """Tell whether rounding explains the gap of each tensor.

        Under Adam, a bias whose gradient is zero moves by noise alone: that far, and no other tensor.
        """
        if bool((gaps < _CLOSE[self.case.dtype]).all()):
            return True
        if self._moves is None:
            draw = torch.Generator().manual_seed(1)
            share = _MOVED[self.case.dtype]
            moved = {
                name: value * (1 + share * torch.randn(value.shape, generator=draw).to(value))
                for name, value in self.starts.items()
            }
            others = expected(self.case, moved)
            pairs = zip(others, self.ends, strict=True)
            self._moves = torch.stack([gaps_of(self.starts, *pair) for pair in pairs]).amax(dim=0)
        allowed = _CLOSE[self.case.dtype] + 3 * self._moves
        return bool((gaps < allowed).all())


def outcome(plain: Plain, backend: str, check: Any = "off") -> Outcome:
    """Train a case by a backend.

    Args:
        plain: The plain loop's ends.
        backend: Key of ``BACKENDS``.
        check: As ``local.check``.
    """
    case = plain.case
    program, clients = program_of(case, check), list(range(len(case.sizes)))
    trainer = BACKENDS[backend]()
    used: LocalTrainer = trainer if check == "off" else CheckedTrainer(trainer, backend)
    worst, how = torch.zeros(len(plain.starts), dtype=torch.float64), ""
    try:
        for round in range(case.rounds):
            _measure(program, row(plain.starts, 0))
            ends = used.train(from_rows(plain.starts, clients, round, program))
            worst = torch.maximum(worst, gaps_of(plain.starts, ends, plain.ends[round]))
    except UserError as refusal:
        # What it trained before was right.
        how = f"refused: {refusal}"
    except Exception as error:
        return Outcome(float("inf"), False, f"{type(error).__name__}: {error}"[:200])
    told = any(words in how for words in ("state outside the module", "cannot train this model"))
    right = plain.explains(worst) and (told or not how)
    return Outcome(float(worst.max()), right, how or _how(backend, trainer, program))


def _measure(program: Program, model: Params) -> None:
    """Measure a model, as a run does before clients train: it stays in the module."""
    # A network whose outputs need gradients gets them from what asks for it first.
    with suppress(RuntimeError), program.measuring(model):
        program.task(program.batch(torch.arange(2))[0])


def gaps_of(starts: Params, ends: Params, plain: Params) -> Tensor:
    """Return each tensor's largest distance in two stacks of ends, in lengths of the plain one's updates."""
    apart = _lengths({name: ends[name] - plain[name] for name in plain})
    moved = _lengths({name: plain[name] - starts[name] for name in plain})
    if not bool(torch.isfinite(moved).all()):
        alike = all(torch.allclose(ends[name], plain[name], equal_nan=True) for name in plain)
        return torch.full((len(plain),), 0.0 if alike else torch.inf, dtype=torch.float64)
    units = _lengths(starts) * float(torch.finfo(next(iter(plain.values())).dtype).eps)
    scale = moved + 1e-3 * moved.norm(dim=0) + 1e-30
    return ((apart - 4 * units).clamp(min=0) / scale).nan_to_num(nan=torch.inf).amax(dim=1)


def _lengths(stack: Params) -> Tensor:
    return torch.stack([v.detach().double().reshape(len(v), -1).norm(dim=1) for v in stack.values()])


def _how(backend: str, trainer: LocalTrainer, program: Program) -> str:
    if not isinstance(trainer, CompiledTrainer):
        return backend
    return "sequential" if program in trainer._sized or trainer.one_by_one(program) else "compiled"


def outcomes(case: Case, check: Any = "off") -> dict[str, Outcome]:
    """Train a case by every backend; ``auto`` is what flsel takes by default."""
    logger = logging.getLogger("flsel")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                plain = Plain(case)
            # Of parts that do not go together: torch has no such derivative, or no export of what needs one.
            except (RuntimeError, BufferError) as error:
                raise Untrainable from error
            found = {backend: outcome(plain, backend, check) for backend in BACKENDS}
            stacks = why_not_compiled(program_of(case)) is None
            return {**found, "auto": found["compiled" if stacks else "sequential"]}
    finally:
        logger.setLevel(level)
