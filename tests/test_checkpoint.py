"""Checkpoints that were damaged, and histories that were lost: one sentence, and a way on."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import InterruptIn, left_behind, same, settings, started

from flsel.commands.cli import main
from flsel.config.fingerprint import fingerprint
from flsel.data.sources import load_source
from flsel.errors import Interrupted, UserError
from flsel.execution.run import resume, run
from flsel.runner import load_data
from flsel.runner.checkpoint import read_model
from flsel.runner.digest import digest


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run that was stopped after round 3 of 6, and what it leaves if it goes on."""
    root = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Interrupted):
        run(settings(root, callbacks=(partial(InterruptIn, 2),)))
    text = (root / "run/config.yaml").read_text()
    (root / "run/config.yaml").write_text(text[: text.index("callbacks:")] + text[text.index("output:") :])
    shutil.copytree(root / "run", root / "whole")
    resume(root / "whole")
    return root / "run", left_behind(root / "whole")


@pytest.fixture
def folder(stopped: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    return shutil.copytree(stopped[0], tmp_path / "run")


def last(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda train: replace(train, y=train.y.roll(1)), True),
        (lambda train: replace(train, x=train.x * 1.01), True),
        (lambda train: replace(train, x=train.x * (1 + 1e-7)), False),
    ],
    ids=["labels", "inputs", "rounding"],
)
def test_a_run_goes_on_with_the_data_that_it_began_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Any, refused: bool
) -> None:
    def load(*given: Any, **named: Any) -> Any:
        source = load_source(*given, **named)
        return replace(source, train=change(source.train))

    monkeypatch.setattr(load_data, "load_source", load)
    if refused:
        with pytest.raises(UserError, match="began with other data than it would go on with"):
            resume(folder)
    else:
        resume(folder)


def test_a_checkpoint_has_its_name_once_all_that_it_counts_on_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, before_names = list[int](), list[set[int]]()
    rename = os.replace

    def renaming(source: Path, target: Path) -> None:
        if target.name == "last.ckpt":
            before_names.append({*synced} - {source.stat().st_ino})
            assert source.stat().st_ino in synced
        rename(source, target)

    with started(settings(tmp_path)) as session:
        session.step()
        monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
        monkeypatch.setattr(os, "replace", renaming)
        session.save()
    grown = {(session.folder / name).stat().st_ino for name in ("metrics.csv", "rounds.jsonl")}
    assert before_names == [grown]
    assert last(session.folder).parent.stat().st_ino in synced


def test_no_flipped_byte_changes_what_is_loaded(folder: Path) -> None:
    whole, state = last(folder).read_bytes(), read_model(folder)
    refused = 0
    for position in random.Random(0).sample(range(len(whole)), 150):
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        last(folder).write_bytes(flipped)
        try:
            found = read_model(folder)
        except UserError:
            refused += 1
        else:
            assert same(found, state), f"byte {position}"  # one that nobody reads, such as padding
    assert refused > 50


def test_a_flipped_byte_of_the_model_is_refused_and_the_older_checkpoint_offered(
    folder: Path, stopped: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(last(folder).read_bytes())
    weights = next(iter(read_model(folder).values())).numpy().tobytes()
    content[content.find(weights) + 3] ^= 1
    last(folder).write_bytes(content)
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    assert main(["train", "--resume", str(folder)]) == 2
    message = capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    (command,) = re.findall(
        r"go on from the one before it, previous\.ckpt: rm (\S+) && flsel train --resume", message
    )
    Path(command).unlink()
    assert main(["train", "--resume", str(folder)]) == 0
    assert same(left_behind(folder), stopped[1])


def test_without_an_older_checkpoint_a_new_run_is_offered(folder: Path) -> None:
    (folder / "checkpoints" / "previous.ckpt").unlink()
    last(folder).write_bytes(b"")
    with pytest.raises(UserError, match=r"to start again: flsel train --config .*config\.yaml"):
        resume(folder)
    last(folder).unlink()
    with pytest.raises(UserError, match=r"last\.ckpt is missing"):
        resume(folder)


@pytest.mark.parametrize("changed", [{}, {"seed": 9}])
def test_settings_that_are_newer_than_the_run_are_no_change_at_their_defaults(
    folder: Path, stopped: tuple[Path, dict[str, Any]], changed: dict[str, int]
) -> None:
    content = torch.load(last(folder), weights_only=True)
    written = json.loads(content["settings"]) | changed
    del written["threads"], written["local"]["keep_optimizer"], written["evaluation"]["stop_at_target"]
    del content["sha256"]
    content |= {"settings": json.dumps(written), "fingerprint": fingerprint(written)}
    torch.save({**content, "sha256": digest(content)}, last(folder))
    if changed:
        with pytest.raises(UserError, match="belongs to another config"):
            resume(folder)
    else:
        resume(folder)
        assert same(left_behind(folder), stopped[1])


@pytest.mark.parametrize("version", [1, "x" * 5000])
def test_a_checkpoint_of_another_format_is_refused(folder: Path, version: Any) -> None:
    content = torch.load(last(folder), weights_only=True)
    torch.save({**content, "version": version}, last(folder))
    with pytest.raises(
        UserError, match=r"has format .{1,20}, this flsel reads format 3: go on with the flsel"
    ):
        resume(folder)


def test_digests_tell_types_shapes_and_bits_and_nothing_else() -> None:
    tensor = torch.arange(6, dtype=torch.float32)
    values = [
        tensor, tensor.double(), tensor.view(2, 3), -tensor, tensor / 0, [1, 2], [12], ["1", 2],
        {"a": 1}, {"b": 1}, {"a": {"b": 1}}, None, True, 1, 1.0, [[1], 2], [[1, 2]], {},
    ]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"a": (1, 2), "b": tensor}) == digest({"b": tensor.clone(), "a": [1, 2]})
    assert digest(tensor.view(2, 3).T.contiguous()) == digest(tensor.view(2, 3).T)
    assert digest(tensor.bfloat16()) != digest(tensor)


def test_an_empty_tensor_has_a_checksum_whatever_its_strides() -> None:
    assert digest(torch.empty_strided((0,), (0,))) == digest(torch.empty(0))
