"""A checkpoint whose checksum is right and whose content is not, and other odd things a run may meet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import settings

import flsel
from flsel.errors import UserError
from flsel.runner.digest import digest
from flsel.runner.provenance import git_commit


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flsel.run(settings(tmp_path_factory.mktemp("whole"), rounds=2)).folder


def put(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return what sets a value in a checkpoint, by its dotted place."""

    def change(content: dict[str, Any]) -> None:
        *above, last = place.split(".")
        inner = content
        for name in above:
            inner = inner[name]
        inner[last] = value

    return change


def change_model(made: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        model = content["server"]["model"]
        content["server"]["model"] = {name: made(value) for name, value in model.items()}

    return change


ODD = {
    "sparse": change_model(lambda value: value.to_sparse()),
    "no tensors": change_model(lambda value: value.tolist()),
    "another dtype": change_model(lambda value: value.double()),
    "another shape": change_model(lambda value: value[..., None]),
    **{
        f"{place} {value!r}"[:60]: put(place, value)
        for place in (
            "server", "best", "wall", "rounds", "stopped", "files", "callbacks", "data", "server.model",
            "server.round",
            "server.counts", "server.ledger", "server.server_optimizer", "server.selector",
            "server.objective",
            "server.rounds_to_target", "server.total_read",
        )
        for value in ("x", [1], {"a": "b"}, 1.5, torch.zeros(3), -1)
    },
}  # fmt: skip


STRAY = ("select", "weights", "__class__", "needs", "a", 3, "a b_")


@pytest.mark.parametrize("name", STRAY)
@pytest.mark.parametrize("part", ["selector", "objective"])
def test_a_checkpoint_sets_attributes_of_state_alone(
    whole: Path, tmp_path: Path, part: str, name: Any
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    path = run / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    del content["sha256"]
    content["server"][part][name] = torch.zeros(1)
    torch.save({**content, "sha256": digest(content)}, path)
    before = path.read_bytes()
    with pytest.raises(UserError) as caught:
        flsel.resume(run, rounds=3)
    assert f"must be attributes whose names end in _, got {name}" in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_checkpoint_is_one_sentence(whole: Path, tmp_path: Path, kind: str) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    path = run / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    del content["sha256"]
    ODD[kind](content)
    try:
        mark = digest(content)
    except (NotImplementedError, RuntimeError):  # of a sparse tensor there is none
        mark = "none"
    torch.save({**content, "sha256": mark}, path)
    try:
        flsel.resume(run, rounds=3)
    except UserError as error:
        assert "checkpoint" in str(error) or "callback" in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        # What is left is what a run may hold, such as a state of a selector's own.
        free = (
            "wall",
            "rounds",
            "stopped",
            "callbacks",
            "data",
            "best",
        )
        assert kind.startswith(free)
    try:
        flsel.Result.load(whole.parent / "run")
        model = flsel.runner.checkpoint.read_model(run)  # type: ignore[attr-defined]
    except UserError as error:
        assert "is damaged" in str(error)  # noqa: PT017
    else:
        assert all(isinstance(value, torch.Tensor) and not value.is_sparse for value in model.values())


@pytest.mark.parametrize("said", [r"\377\376", "", "fatal: no", "a b", r"\033[2J"])
def test_a_git_that_says_something_else_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    (tmp_path / "git").write_text(f"#!/bin/sh\nprintf '{said}'\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert git_commit() is None
