"""Checkpoints: written whole or not at all, checksummed, bound to a config, loaded without running code."""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flsel.config import RunConfig
from flsel.config.fingerprint import PRESENTATION, fingerprint
from flsel.errors import UserError, going_on
from flsel.files import check_regular, make_folder, naming, open_new, sync_files, sync_folder
from flsel.runner.digest import digest
from flsel.runner.run_log import Mark

VERSION = 3


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Attributes:
        server: The server's state.
        best: Best metrics so far, by name.
        wall: Wall-clock seconds of all processes so far.
        rounds: Communication rounds that the run was to have.
        stopped: Whether a callback ended it.
        files: How far the files that grow had grown, by name.
        callbacks: What the callbacks keep.
        data: What tells its data from others.
    """

    server: dict[str, Any]
    best: dict[str, float]
    wall: float
    rounds: int
    stopped: bool
    files: dict[str, Mark]
    callbacks: dict[str, Any]
    data: dict[str, Any]


class Checkpoints:
    """The last two checkpoints of a run: ``last.ckpt`` and, in case that is damaged, ``previous.ckpt``.

    Args:
        run: The run's folder.
        settings: The settings that the states belong to, as plain values; where a run is shown is no matter.
    """

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        self.last, self.previous = _places(run)
        self._run = run
        self._settings = {key: value for key, value in settings.items() if key not in PRESENTATION}
        self._fingerprint = fingerprint(settings)

    def save(self, checkpoint: Checkpoint, counts_on: Sequence[Path] = ()) -> None:
        """Write the last checkpoint under a temporary name, then rename; the one before it is kept.

        Args:
            checkpoint: The checkpoint.
            counts_on: The files that it marks; they are on the disk before it has its name.

        Raises:
            UserError: If the file cannot be written; the checkpoints before it are then untouched.
        """
        content = vars(checkpoint) | {
            "files": {name: asdict(mark) for name, mark in checkpoint.files.items()}
        }
        content |= {"version": VERSION, "fingerprint": self._fingerprint}
        content["settings"] = json.dumps(self._settings)
        make_folder(self.last.parent)
        temporary = self.last.with_name(f".{self.last.name}.tmp")
        try:
            with naming(self.last):
                with open_new(temporary) as stream:
                    stream.write(_bytes({**content, "sha256": digest(content)}))
                sync_files([*counts_on, temporary])
                # A kill between these two leaves the older one alone, with which load() is content.
                with suppress(FileNotFoundError):
                    os.replace(self.last, self.previous)
                os.replace(temporary, self.last)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self.last.parent)

    def load(self) -> Checkpoint | None:
        """Load the last checkpoint, or the one before it where the last is missing; None without any.

        Raises:
            UserError: If the file is damaged, of another format, or belongs to another config.
        """
        path = next((path for path in (self.last, self.previous) if path.exists()), None)
        if path is None:
            return None
        content = _read(path)
        if content["fingerprint"] != self._fingerprint and not self._means_the_same(content.get("settings")):
            raise UserError(
                f"checkpoint {path} belongs to another config than {self._run / 'config.yaml'}; restore "
                "that file, or start a new run with --config."
            )
        fields = {name: content[name] for name in Checkpoint.__dataclass_fields__}
        files = {name: Mark(**mark) for name, mark in content["files"].items()}
        return Checkpoint(**{**fields, "files": files})

    def _means_the_same(self, stored: Any) -> bool:
        """Tell whether settings differ only in some that are newer than the checkpoint, at their defaults."""
        try:
            before = RunConfig.from_dict(json.loads(stored)).to_dict()
        except (TypeError, ValueError):  # none, or none that this flsel understands
            return False
        return fingerprint({key: before[key] for key in self._settings}) == self._fingerprint


def belongs(run: Path, settings: dict[str, Any]) -> bool:
    """Tell whether a run's last checkpoint was written with settings, without importing what they name.

    Args:
        run: The run's folder.
        settings: The settings as plain values; the number of rounds is no matter.
    """
    last, _ = _places(run)
    known = {key: value for key, value in settings.items() if key != "rounds"}
    with suppress(UserError):
        return last.exists() and bool(_read(last)["fingerprint"] == fingerprint(known))
    return False


def _places(run: Path) -> tuple[Path, Path]:
    """Return where a run's last checkpoint lies, and the one before it."""
    folder = run / "checkpoints"
    return folder / "last.ckpt", folder / "previous.ckpt"


def _bytes(content: dict[str, Any]) -> memoryview:
    # Given a path, torch reports a full disk as an error of its own kind.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def go_back(run: Path, round: int) -> bool:
    """Go back to a round, if the run's last checkpoint or the one before it was written after that round.

    A run without a checkpoint is at round 0.

    Returns:
        Whether one of them was; otherwise nothing has changed.
    """
    last, previous = _places(run)
    if round == 0 and not last.exists() and not previous.exists():
        return True
    for path in (last, previous):
        with suppress(UserError):  # the code that resumes the run reports it
            if path.exists() and _read(path)["server"]["round"] == round:
                if path != last:
                    with naming(last):
                        os.replace(path, last)
                return True
    return False


def read_model(run: Path) -> dict[str, Tensor]:
    """Return the trained parameters in a run's last checkpoint, by name, on the CPU.

    Raises:
        UserError: If there is no checkpoint, or it is damaged.
    """
    path, _ = _places(run)
    if not path.exists():
        raise UserError(f"checkpoint {path} is missing, and with it the trained model.")
    model: dict[str, Tensor] = _read(path)["server"]["model"]
    return model


def _read(path: Path) -> dict[str, Any]:
    """Read a file's fields, once its format and its checksum are right."""
    check_regular(path)
    try:
        content = dict(torch.load(path, map_location="cpu", weights_only=True))
        version, claimed = content["version"], content.pop("sha256", None)
        sound = claimed == digest(content) if version == VERSION else True
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        raise _damaged(path) from error
    if version != VERSION:
        raise UserError(
            f"checkpoint {path} has format {str(version)[:20]}, this flsel reads format {VERSION}: go on "
            f"with the flsel that wrote it, or start a new run with --config {path.parents[1]}/config.yaml."
        )
    if not sound or not _has_fields(content):
        raise _damaged(path)
    return content


def _has_fields(content: dict[str, Any]) -> bool:
    """Tell whether a file holds what a checkpoint does: fields of their types, a model of dense tensors."""
    kinds = {
        "server": dict, "best": dict, "wall": float, "rounds": int, "stopped": bool, "files": dict,
        "callbacks": dict, "data": dict, "fingerprint": str,
    }  # fmt: skip
    if not all(type(content.get(name)) is kind for name, kind in kinds.items()):
        return False
    marks = [mark if isinstance(mark, dict) else {} for mark in content["files"].values()]
    marked = all(
        {name: type(value) for name, value in mark.items()} == {"lines": int, "bytes": int, "sha256": str}
        and min(mark["lines"], mark["bytes"]) >= 0
        for mark in marks
    )
    model = content["server"].get("model")
    dense = isinstance(model, dict) and all(isinstance(v, Tensor) and not v.is_sparse for v in model.values())
    best = all(isinstance(value, float | int) for value in content["best"].values())
    return marked and best and dense and bool(model) and content["rounds"] > 0


def check_state(state: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    """Refuse a server's state that is not of the form of a fresh server's.

    Args:
        state: What a checkpoint holds.
        fresh: The state of the server that is to take it, before its first round.

    Raises:
        ValueError: Naming what has another type, shape or dtype.
    """
    # Newer than some checkpoints; their classes check them.
    for name in fresh.keys() - {"agreement"}:
        if name not in state:
            raise ValueError(f"{name} is missing")
    for name in ("round", "total_read"):
        if type(state[name]) is not type(fresh[name]) or state[name] < 0:
            raise ValueError(f"{name} has another type")
    reached = state["rounds_to_target"]
    if reached is not None and (type(reached) is not int or reached < 0):
        raise ValueError("rounds_to_target has another type")
    for name in ("server_optimizer", "selector", "objective", "ledger"):
        if not isinstance(state[name], Mapping):
            raise ValueError(f"{name} is no mapping")
    if not all(isinstance(value, int | float) for value in state["ledger"].values()):
        raise ValueError("ledger holds what is no number")
    if _forms(state["model"]) != _forms(fresh["model"]):
        raise ValueError("the model's parameters have other names or shapes")
    if _forms({"counts": state["counts"]}) != _forms({"counts": fresh["counts"]}):
        raise ValueError("counts has another shape or type")


def _forms(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: (value.shape, value.dtype, value.layout) if isinstance(value, Tensor) else type(value)
        for name, value in tensors.items()
    }


def _damaged(path: Path) -> UserError:
    run = path.parents[1]
    last, older = _places(run)
    if path == last and older.exists():
        effect = f"go on from the one before it, {older.name}"
        command = f"rm {shlex.quote(str(path))} && {going_on('train', run)}"
    else:
        effect, command = "start again", f"flsel train --config {shlex.quote(str(run / 'config.yaml'))}"
    return UserError(f"checkpoint {path} is damaged or not a checkpoint of flsel; to {effect}: {command}")
