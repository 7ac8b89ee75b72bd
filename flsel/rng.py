"""Named random generators: every draw of a run is a function of (seed, purpose, index).

No generator is ever stored. Whoever needs randomness derives it again from the run's seed, the name of
its purpose and the indices it belongs to (round, client, ...), so a resumed run draws what an
uninterrupted one does, and two selectors under one seed see the same partition, availability and batches.
"""

from __future__ import annotations

import zlib

import numpy as np


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


def torch_seed(seed: int, purpose: str, *index: int) -> int:
    """Derive a 63-bit seed for a torch generator, with the arguments of :func:`generator`."""
    return int(generator(seed, purpose, *index).integers(2**63 - 1))


def _entropy(seed: int, purpose: str, index: tuple[int, ...]) -> list[int] | np.ndarray:
    # The purpose enters as a checksum because Python's hash() differs between processes.
    numbers = [seed, zlib.crc32(purpose.encode()), *index]
    # NumPy turns a list into these words, one by one; larger numbers into several.
    return np.array(numbers, dtype=np.uint32) if min(numbers) >= 0 and max(numbers) < 2**32 else numbers
