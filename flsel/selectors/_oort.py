"""Oort's rules as pure functions on arrays: utilities, scores, the pool, exploration and the pacer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_UNCERTAINTY = 0.1
_BLOCKED_SHARE = 0.3


def utilities(examples: np.ndarray, squared_loss: np.ndarray) -> np.ndarray:
    """Return the statistical utilities |B| sqrt(mean of squared losses), float64 ``[n]``."""
    found: np.ndarray = examples * np.sqrt(squared_loss)
    return found


def preferred_duration(durations: np.ndarray, percentile: float) -> float:
    """Return T, the duration at a percentile of all clients; infinite at 100 and without durations."""
    if percentile >= 100 or len(durations) == 0:
        return math.inf
    position = min(int(len(durations) * percentile / 100), len(durations) - 1)
    return float(np.sort(durations)[position])


def system(durations: np.ndarray, preferred: float, penalty: float) -> np.ndarray:
    """Return the factors (T / D)^alpha of clients slower than T, 1 of all others, float64 ``[n]``."""
    slow = durations > preferred
    return np.where(slow, (preferred / np.where(slow, durations, 1.0)) ** penalty, 1.0)


def normalised(utility: np.ndarray, clip: float) -> np.ndarray:
    """Clip utilities at a quantile and scale them by the unclipped range, float64 ``[n]``, >= 0."""
    ordered = np.sort(utility)
    cap = ordered[min(int(len(ordered) * clip), len(ordered) - 1)]
    low = 0.999 * ordered[0]
    found: np.ndarray = (np.minimum(utility, cap) - low) / max(ordered[-1] - low, 1e-4)
    return found


def clipped(utility: np.ndarray, clip: float) -> np.ndarray:
    """Clip utilities at a quantile and leave their scale, float64 ``[n]``."""
    ordered = np.sort(utility)
    found: np.ndarray = np.minimum(utility, ordered[min(int(len(ordered) * clip), len(ordered) - 1)])
    return found


def staleness(round: int, last: np.ndarray) -> np.ndarray:
    """Return the bonus sqrt(0.1 ln R / L) of clients that trained last in round L, float64 ``[n]``.

    Args:
        round: R, from 1.
        last: L of each client, >= 1, int64 ``[n]``.
    """
    found: np.ndarray = np.sqrt(_UNCERTAINTY * math.log(round) / last)
    return found


def admitted(scores: np.ndarray, count: int, cutoff: float) -> np.ndarray:
    """Return where the score is at least ``cutoff`` times the ``count``-th largest, int64, ascending."""
    if count < 1:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(scores >= cutoff * np.sort(scores)[-min(count, len(scores))])


def epsilon(round: int, start: float, decay: float, floor: float) -> float:
    """Return the share of explorers in round R, from 1: it decays after each round."""
    return max(floor, start * decay ** (round - 1))


def split(wanted: int, share: float) -> tuple[int, int]:
    """Return how many clients to exploit and to explore."""
    exploit = int(wanted * (1 - share))
    return exploit, wanted - exploit


def explored(weights: np.ndarray, count: int, window: float) -> np.ndarray:
    """Return the positions of the clients that explorers are drawn from, heaviest first, int64."""
    return np.argsort(-weights, kind="stable")[: math.ceil(window * count)]


def blocked(counts: np.ndarray, most: int) -> np.ndarray:
    """Return the clients that were picked more than ``most`` times, at most 30 % of all, int64, ascending."""
    order = np.argsort(-counts, kind="stable")[: int(_BLOCKED_SHARE * len(counts))]
    return np.sort(order[counts[order] > most])


def windows(history: Sequence[float], window: int) -> tuple[float, float] | None:
    """Return the utility achieved in the last window but one and in the last, once there are two."""
    if len(history) < 2 * window:
        return None
    return math.fsum(history[-2 * window : -window]), math.fsum(history[-window:])


def paced(percentile: float, history: Sequence[float], window: int, step: float) -> float:
    """Return the percentile of the preferred duration after a window: the rule of the published code.

    Args:
        percentile: The percentile so far.
        history: Utility achieved in each round.
        window: W, rounds in a window.
        step: Change of the percentile.
    """
    sums = windows(history, window)
    if sums is None or len(history) % window:
        return percentile
    old, new = sums
    if abs(new - old) <= 0.1 * old:
        return min(100.0, percentile + step)
    return max(step, percentile - step) if abs(new - old) >= 5 * old else percentile


def relaxed(preferred: float, history: Sequence[float], window: int, step: float) -> float:
    """Return T after a round: the paper's rule, which adds ``step`` seconds where utility fell."""
    sums = windows(history, window)
    return preferred + step if sums is not None and sums[0] > sums[1] else preferred
