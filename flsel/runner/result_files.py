"""Read the files of a finished run, and refuse in one sentence what is damaged or of another version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flsel.errors import UserError, going_on, short
from flsel.files import check_regular
from flsel.files.yaml import read_yaml
from flsel.metrics import SCORE, current_name
from flsel.runner.run_log import SUMMARY_FORMAT, JsonLines


@dataclass(frozen=True)
class RecordedRound:
    """One step of a run, a line of ``rounds.jsonl``.

    Attributes:
        round: Communication round the step began with, >= 0.
        plan: Who trained, in paths of client ids; -1 rests for a hop.
        weights: Weight of each path, float64 ``[K]``.
        available: Number of clients that were available.
        dropped: Clients whose model was not finite.
        ledger: What the step cost, by name.
        seconds: Simulated seconds of the step; None without devices.
        questions: Those of them in which the server waited for answers.
        late: Clients that were asked and came too late on their simulated devices, or too stale.
        staleness: Steps of the server since each path started, in an asynchronous run; else empty.
    """

    round: int
    plan: tuple[tuple[int, ...], ...]
    weights: np.ndarray
    available: int
    dropped: tuple[int, ...]
    ledger: dict[str, float]
    seconds: float | None = None
    questions: float | None = None
    late: tuple[int, ...] = ()
    staleness: tuple[int, ...] = ()

    @property
    def clients(self) -> list[int]:
        """The client of every visit; one that was visited twice stands there twice."""
        return [client for path in self.plan for client in path if client >= 0]


def read_summary(path: Path) -> dict[str, Any]:
    """Read ``summary.json``.

    Raises:
        UserError: If it is damaged or of another format.
    """
    check_regular(path)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _damaged(path, "it must hold a JSON object")
    if "format" not in content:
        raise _damaged(path, "format is missing")
    if content["format"] != SUMMARY_FORMAT:
        raise UserError(
            f"{path} has format {str(content['format'])[:20]}, this flsel reads format {SUMMARY_FORMAT}: "
            "read it with the flsel that wrote it, or execute the run again."
        )
    # Not in those of an older flsel.
    content.setdefault("self_check", {})
    content.setdefault("score", dict(vars(SCORE)))
    content.setdefault("privacy", [])
    for name, (right, rule) in _SUMMARY.items():
        if name not in content or not right(content[name]):
            raise _damaged(path, f"{name} must be {rule}")
    for name in ("final", "best"):
        content[name] = {current_name(column): value for column, value in content[name].items()}
    return content


def read_settings(path: Path) -> dict[str, Any]:
    """Read ``config.yaml`` as plain values.

    Raises:
        UserError: If it is damaged.
    """
    try:
        settings = dict(read_yaml(path))
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if type(settings.get("seed")) is not int:
        raise UserError(f"{path} is damaged: seed must be an integer.")
    return settings


def read_rounds(path: Path, summary: Mapping[str, Any]) -> list[RecordedRound]:
    """Read ``rounds.jsonl`` of a run with this summary.

    Raises:
        UserError: If it is damaged, or is not of as many rounds.
    """
    rows = JsonLines(path).rows()
    try:
        steps = [
            RecordedRound(
                round=row["round"],
                plan=tuple(tuple(map(int, path)) for path in row["plan"]),
                weights=np.array(row["weights"], dtype=np.float64),
                available=int(row["available"]),
                dropped=tuple(map(int, row["dropped"])),
                ledger={str(name): float(value) for name, value in row["ledger"].items()},
                seconds=float(row["time"]["seconds"]) if "time" in row else None,
                questions=float(row["time"]["questions"]) if "time" in row else None,
                late=tuple(map(int, row["time"]["late"])) if "time" in row else (),
                staleness=tuple(map(int, row.get("staleness", ()))),
            )
            for row in rows
        ]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise UserError(
            f"{path} is damaged: a line lacks what a round has, or has it of another type."
        ) from None
    hops = sum(max((len(path) for path in step.plan), default=1) for step in steps)
    if hops != summary["rounds"]:
        raise UserError(f"{path} holds {hops} of the run's {summary['rounds']} rounds.")
    if any(client >= summary["clients"] for step in steps for client in step.clients):
        raise UserError(f"{path} is damaged: a plan names a client that the run does not have.")
    return steps


def check_same(
    folder: Path, settings: Mapping[str, Any], summary: Mapping[str, Any], rows: Sequence[Mapping[str, float]]
) -> None:
    """Refuse a folder whose files are of different runs, such as a copy whose settings were edited.

    Raises:
        UserError: If they are.
    """
    selector = settings.get("selector")
    path = selector.get("class_path") if isinstance(selector, Mapping) else None
    stated = {"seed": settings.get("seed"), "selector": str(path).rpartition(".")[2]}
    for name, value in stated.items():
        if value != summary[name]:
            raise UserError(
                f"{folder / 'config.yaml'} has {name} {short(value, 60)}, but the run was executed with "
                f"{summary[name]}: restore it; a copy of a finished run is no new one."
            )
    reached = [row["round"] for row in rows]
    if reached != sorted(set(reached)):
        raise UserError(f"{folder / 'metrics.csv'} is damaged: its rounds do not ascend; restore it.")


def _damaged(path: Path, why: str) -> UserError:
    return UserError(
        f"{path} is damaged ({why}); remove it and write it again: {going_on('train', path.parent)}."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _maps_to(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(right, value.values()))


def _is_score(value: Any) -> bool:
    keys = isinstance(value, dict) and value.keys() == {"column", "better"}
    return keys and isinstance(value["column"], str) and value["better"] in ("max", "min")


def _protects(value: Any) -> bool:
    texts, numbers = ("where", "sampling"), ("epsilon", "delta", "rounds")
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in texts)
        and all(_is_number(value.get(name)) for name in numbers)
        and isinstance(value.get("not_covered"), list)
        and all(isinstance(need, str) for need in value["not_covered"])
    )


_Field = tuple[Callable[[Any], bool], str]
_NAME: _Field = (lambda value: isinstance(value, str), "text")
_COUNT: _Field = (lambda value: type(value) is int and value >= 0, "a whole number >= 0")
_NUMBERS: _Field = (_maps_to(_is_number), "numbers by name")
_SUMMARY: Mapping[str, _Field] = {
    "name": _NAME,
    "selector": _NAME,
    "dataset": _NAME,
    "seed": _COUNT,
    "clients": _COUNT,
    "rounds": _COUNT,
    "planned_rounds": _COUNT,
    "final": _NUMBERS,
    "best": _NUMBERS,
    "score": (_is_score, "a column and max or min"),
    "target": (lambda value: value is None or _is_number(value), "a number or null"),
    "fingerprints": (_maps_to(lambda value: isinstance(value, str)), "texts by name"),
    "self_check": (_maps_to(lambda value: isinstance(value, dict)), "what disagreed, by name"),
    "data": (
        _maps_to(lambda value: value is None or isinstance(value, int | list | dict)),
        "what describes inputs",
    ),
    "privacy": (
        lambda value: isinstance(value, list) and all(map(_protects, value)),
        "reports on noise",
    ),
}
"""What each field of a summary must be."""
