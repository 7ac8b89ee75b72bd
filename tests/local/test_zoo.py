"""Models as researchers write them: every backend ends where a plain loop ends, with the self-check on.

``make fuzz`` runs random combinations of the zoo's parts: FLSEL_FUZZ is their number.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, example, given, reject, settings
from hypothesis import strategies as st
from zoo.cases import Case, drawn, of_each_part
from zoo.compare import Untrainable, outcomes, program_of
from zoo.registry import PARTS

from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.tasks import convolves
from flsel.local.visit import from_rows

EXAMPLES = int(os.environ.get("FLSEL_FUZZ", "0"))
# What a stack or a recording must take: refusing all would be right, too.
COMPILED = (
    "ridge", "lasso_of_matrices", "Tied", "LayerNorm", "Attention", "FastAttention", "Transformer", "Gated",
    "Dropped", "Tokens", "ProductOfParameters", "Symmetric", "StraightThrough", "Power", "Exponential",
    "Unitary", "Linspace", "InPlace", "Squeeze",
    "ConvolvesByFunction",
)  # fmt: skip
# What is kept outside the module; no other part is refused.
OUTSIDE = (
    "CountsInClass", "CountsInGlobalTable", "CountsInGlobal", "CountsInDefault", "CountsInClosure",
    "CountsInHook",
)  # fmt: skip
CASES = of_each_part()


def check(case: Case) -> dict[str, str]:
    found = outcomes(case, "auto")
    wrong = {backend: found[backend] for backend in found if not found[backend].right}
    assert not wrong, (case, wrong)
    return {backend: outcome.how for backend, outcome in found.items()}


@pytest.mark.parametrize("case", CASES, ids=["+".join(case.parts) for case in CASES])
def test_a_part_is_trained_as_a_plain_loop_trains_it(case: Case) -> None:
    how = check(case)
    refused = {backend for backend, text in how.items() if "state outside the module" in text}
    assert refused == (set(how) if set(case.parts) & set(OUTSIDE) else set()), how
    if set(case.parts) & set(COMPILED):
        assert how["auto"] == "compiled", how


def test_convolutions_by_functions_are_computed_for_one_model_at_a_time() -> None:
    program = program_of(Case(("ConvolvesByFunction",)))
    assert not convolves(program.task)
    starts = {
        name: value.detach().clone()[None].expand(3, *value.shape) for name, value in program.state().items()
    }
    trainer = CompiledTrainer()
    trainer.train(from_rows(starts, [0, 1, 2], 0, program))
    assert convolves(program.task)
    assert not trainer.one_by_one(program)


@settings(
    max_examples=EXAMPLES or 10,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(st.integers(0, 2**32 - 1))
@example(115413)  # Adam moves a bias by noise, since batches are centred behind it.
def test_parts_together_are_trained_as_a_plain_loop_trains_them(seed: int) -> None:
    try:
        check(drawn(seed))
    except Untrainable:
        reject()


def test_the_zoo_has_every_kind() -> None:
    assert {PARTS[name].kind for name in COMPILED} <= {part.kind for part in PARTS.values()}
    assert len({part.kind for part in PARTS.values()}) == 15
