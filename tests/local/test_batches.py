"""The batch schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flsel.config.groups import LocalConfig
from flsel.errors import UserError
from flsel.local.schedule import BatchSpec, batch_table

EXAMPLES, SIZES = st.integers(1, 60), st.integers(1, 20)


@given(EXAMPLES, SIZES, st.integers(1, 3))
def test_epochs_visit_every_example_once_each(examples: int, size: int, epochs: int) -> None:
    spec = BatchSpec(size, epochs=epochs)
    rows = batch_table(spec, np.arange(examples), seed=0, round=1, client=2)
    assert rows.shape == (spec.num_steps(examples), size)
    per_epoch = rows.reshape(epochs, -1)
    for epoch in per_epoch:
        assert sorted(epoch[epoch >= 0].tolist()) == list(range(examples))
    # Padding stands at the end of a row, and no row is all padding.
    valid = rows >= 0
    assert bool((valid[:, :-1] | ~valid[:, 1:]).all())
    assert bool(valid[:, 0].all())


@given(EXAMPLES, SIZES, st.integers(1, 12), st.sampled_from(["short", "wrap"]))
def test_steps_are_counted_and_wrapped_batches_are_full(
    examples: int, size: int, steps: int, last: str
) -> None:
    spec = BatchSpec(size, steps=steps, last=last)  # type: ignore[arg-type]
    rows = batch_table(spec, np.arange(examples), seed=3, round=0, client=0)
    assert rows.shape == (steps, size)
    assert int(rows.max()) < examples
    if last == "wrap":
        assert int(rows.min()) >= 0
        # The stream is a sequence of passes: after n draws every example was drawn n // examples times.
        stream = rows.reshape(-1)
        counts = np.bincount(stream, minlength=examples)
        assert int(counts.max()) - int(counts.min()) <= 1


@given(EXAMPLES, SIZES, st.integers(1, 3))
def test_wrapped_epochs_take_as_many_steps_as_needed(examples: int, size: int, epochs: int) -> None:
    spec = BatchSpec(size, epochs=epochs, last="wrap")
    steps = spec.num_steps(examples)
    assert (steps - 1) * size < epochs * examples <= steps * size


def test_draws_depend_on_seed_round_and_client() -> None:
    spec = BatchSpec(4, epochs=1)

    def draw(seed: int = 0, round: int = 0, client: int = 0) -> list[int]:
        return batch_table(spec, np.arange(20), seed=seed, round=round, client=client).flatten().tolist()

    assert draw() == draw()
    assert len({tuple(draw()), tuple(draw(seed=1)), tuple(draw(round=1)), tuple(draw(client=1))}) == 4


def test_a_client_without_examples_takes_no_step() -> None:
    assert batch_table(BatchSpec(4, steps=3), np.arange(0), seed=0, round=0, client=0).shape == (0, 4)


@pytest.mark.parametrize("arguments", [{}, {"epochs": 1, "steps": 2}])
def test_exactly_one_of_epochs_and_steps(arguments: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"exactly one of local\.epochs and local\.steps"):
        BatchSpec(4, **arguments)


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"epochs": 0}, {"steps": -1}])
def test_counts_are_positive(given: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"^local\.\w+ must be a whole number >= 1.*, got"):
        LocalConfig(**given)  # type: ignore[arg-type]


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.floats(0, 1.2))
def test_steps_within_a_share_are_the_most_that_fit(examples, size, epochs, share):
    for spec in (
        BatchSpec(size, epochs=epochs),
        BatchSpec(size, steps=epochs),
        BatchSpec(size, epochs=epochs, last="wrap"),
    ):
        steps, total = spec.num_steps(examples), spec.num_examples(examples)
        fits = [s for s in range(steps + 1) if spec.examples_in(s, examples) <= share * total]
        assert spec.steps_within(share, spec.num_steps(examples), examples) == max(fits)
        assert spec.examples_in(steps, examples) == total
