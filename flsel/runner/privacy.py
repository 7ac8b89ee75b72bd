"""What differential privacy a run gave to its clients."""

from __future__ import annotations

from typing import Any

from flsel.engine.update_steps import UpdateSteps
from flsel.selector import Need, Selector
from flsel.updates import GaussianNoise
from flsel.updates.accountant import epsilon, require_accountant

_PUBLIC = Need.DURATIONS
_NOISED = Need.DELTAS | Need.HEAD


def check_accountant(steps: UpdateSteps) -> None:
    """Refuse to report epsilon without the package that computes it.

    Raises:
        UserError: Saying how to install it.
    """
    for place, step in enumerate(steps.steps):
        if isinstance(step, GaussianNoise) and step.delta is not None:
            require_accountant(f"updates[{place}].delta")


def privacy(steps: UpdateSteps | None, selector: Selector) -> list[dict[str, Any]]:
    """Return epsilon of each step that adds noise, with what it assumes.

    Two federations are neighbours if they differ in all the data of one client.

    Args:
        steps: The steps of the run, if it has some.
        selector: Who chose the clients.
    """
    if steps is None:
        return []
    noisy = [step for step in steps.steps if isinstance(step, GaussianNoise) and step.delta is not None]
    return [_report(step, steps, selector) for step in noisy]


def _report(step: GaussianNoise, steps: UpdateSteps, selector: Selector) -> dict[str, Any]:
    assert step.delta is not None
    most = int(steps.sent.max())
    central = step.where == "server"
    draws = [(*key, rounds) for key, rounds in steps.draws.items()] if central else [(1, 1, most)]
    known = (need for need in Need if need in selector.needs & ~(_PUBLIC if central else _PUBLIC | _NOISED))
    return {
        "where": step.where,
        "multiplier": step.multiplier,
        "delta": step.delta,
        "epsilon": epsilon(step.multiplier, step.delta, draws),
        "rounds": sum(rounds for *_, rounds in draws),
        "sampling": _sampling(steps, selector) if central else "every update of a client counts",
        "not_covered": [str(need.name) for need in known],
    }


def _sampling(steps: UpdateSteps, selector: Selector) -> str:
    if not selector.draws_uniformly:
        return f"no amplification: {type(selector).__name__} does not draw clients uniformly"
    amplified = [key for key in steps.draws if key[0] < key[1]]
    if not amplified:
        return "no amplification: the clients of a round are no random part of those that are available"
    drawn, pool = max(amplified, key=lambda key: key[0] / key[1])
    return f"uniform without replacement, at most {drawn} of {pool} clients"


def privacy_lines(report: list[dict[str, Any]]) -> list[str]:
    """Return the report in sentences, one for each step."""
    lines = []
    for entry in report:
        line = (
            f"differential privacy of clients ({entry['where']}): epsilon {entry['epsilon']:.4g} at delta "
            f"{entry['delta']:g} after {entry['rounds']} rounds; {entry['sampling']}"
        )
        if entry["not_covered"]:
            line += f"; not covered: what the selector learns by {', '.join(entry['not_covered'])}"
        lines.append(line)
    return lines
