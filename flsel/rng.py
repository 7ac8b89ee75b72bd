"""Named random generators: every draw of a run is a function of (seed, purpose, index).

No generator is ever stored. Code that needs randomness derives it again from the run's seed, the name of
its purpose and the indices it belongs to (round, client, ...), so a resumed run draws what an
uninterrupted one does, and two selectors under one seed see the same partition, availability and batches.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def generator(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Derive the generator of one purpose.

    Args:
        seed: The run's seed, >= 0.
        purpose: What the draws are for, such as ``"partition"`` or ``"select"``.
        *index: Further coordinates, each >= 0 (round, client, ...).

    Returns:
        A fresh generator: equal arguments give equal draws, different ones independent streams.

    Raises:
        ValueError: If the seed or an index is negative.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(_entropy(seed, purpose, index))))


def dealt(rows: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    """Draw some of a few rows, none a second time while others are left."""
    orders = [rng.permutation(len(rows)) for _ in range(-(-count // len(rows)))]
    return [rows[at] for at in np.concatenate(orders)[:count]]


@functools.lru_cache(maxsize=256)  # each evaluation asks for the same
def torch_seed(seed: int, purpose: str, *index: int) -> int:
    """Derive a 63-bit seed for a torch generator, with the arguments of :func:`generator`."""
    return int(generator(seed, purpose, *index).integers(2**63 - 1))


@contextmanager
def repeatable(seed: int | None, devices: Sequence[Any] = ()) -> Iterator[None]:
    """Let users' code that draws from a global generator draw the same each time; put the generators back.

    Args:
        seed: What the generators of Python, NumPy and torch (on the CPU) start from; None where the block
            seeds them first.
        devices: CUDA devices whose generators are put back, too.
    """
    import torch  # this module is light

    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            if seed is not None:
                torch.default_generator.manual_seed(seed)
                seed_plain(seed)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def seed_plain(seed: int) -> None:
    """Seed the global generators of Python and NumPy with at most 64 bits."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])


def seed_layers(device: Any, seed: int) -> None:
    """Seed the global generators that a model on a device may draw from, with at most 63 bits."""
    import torch  # this module is light

    # torch.manual_seed would also note a stack trace for each kind of device that is not there.
    torch.default_generator.manual_seed(seed)
    seed_plain(seed)
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).manual_seed(seed)


def plain_states() -> tuple[object, object]:
    """Return the states of the global generators of Python and NumPy, to be compared."""
    numpys: Any = np.random.get_state()
    _, keys, *place = numpys
    return random.getstate(), (keys.tobytes(), *place)


def global_states() -> dict[str, object]:
    """Return the states of the global generators by their owners, to be compared."""
    import torch  # this module is light

    python, numpys = plain_states()
    return {"random": python, "numpy.random": numpys, "torch": torch.get_rng_state().numpy().tobytes()}


def _entropy(seed: int, purpose: str, index: tuple[int, ...]) -> list[int] | np.ndarray:
    # The purpose enters as a checksum because Python's hash() differs between processes.
    numbers = [seed, zlib.crc32(purpose.encode()), *index]
    # NumPy turns a list into these words, one by one; larger numbers into several.
    return np.array(numbers, dtype=np.uint32) if min(numbers) >= 0 and max(numbers) < 2**32 else numbers
