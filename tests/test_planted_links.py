"""Nothing that lies in a shared run folder makes flsel write to a file outside."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from runs import settings

import flsel
from flsel.comparison.grid import Cell
from flsel.errors import UserError
from flsel.files import make_folder, open_own, write_atomic
from flsel.runner.run_files import FILES

FOLDERS = [name for name, kind in FILES.items() if kind == "folder"]
WRITTEN = [name for name in FILES if name not in FOLDERS] + [
    "checkpoints/last.ckpt",
    "checkpoints/previous.ckpt",
]
TEMPORARY = [str(Path(name).with_name(f".{Path(name).name}.tmp")) for name in WRITTEN]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flsel.run(settings(tmp_path_factory.mktemp("whole"), rounds=2)).folder


def plant(where: Path, kind: str, outside: Path) -> None:
    """Put a link to a file outside in the place of a file, which holds the same."""
    outside.write_bytes(where.read_bytes() if where.is_file() else b"precious\n")
    where.unlink(missing_ok=True)
    if kind == "hard link":
        os.link(outside, where)
    else:
        where.symlink_to(outside)


@pytest.mark.parametrize("kind", ["link", "hard link"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_planted_link_is_not_followed(whole: Path, tmp_path: Path, name: str, kind: str) -> None:
    run, outside = Path(shutil.copytree(whole, tmp_path / "run")), tmp_path / "outside"
    plant(run / name, kind, outside)
    before = outside.read_bytes()
    try:
        flsel.resume(run, rounds=3, pictures=name.endswith(".png"))
    except UserError as error:
        assert str(run / name) in str(error)  # noqa: PT017
    else:
        assert not (run / name).is_symlink() or FILES.get(name) != "grows"
        assert flsel.Result.load(run).summary["rounds"] == 3
    assert outside.read_bytes() == before


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_what_is_planted_for_temporary_files_is_neither_followed_nor_waited_for(
    whole: Path, tmp_path: Path, kind: str
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for number, name in enumerate(TEMPORARY):
        if kind == "pipe":
            os.mkfifo(run / name)
        else:
            plant(run / name, kind, tmp_path / f"outside-{number}")
    assert flsel.resume(run, rounds=3, pictures=True).summary["rounds"] == 3
    assert {path.read_bytes() for path in tmp_path.glob("outside-*")} <= {b"precious\n"}


def test_checkpoints_are_not_written_through_a_link(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    outside = shutil.move(run / "checkpoints", tmp_path / "outside")
    (run / "checkpoints").symlink_to(outside)
    before = {path.name: path.read_bytes() for path in Path(outside).iterdir()}
    with pytest.raises(UserError, match="checkpoints must be a folder, and is a link"):
        flsel.resume(run, rounds=3)
    assert {path.name: path.read_bytes() for path in Path(outside).iterdir()} == before


def test_a_run_folder_may_be_a_link(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "mine").symlink_to(tmp_path / "run")
    assert flsel.resume(tmp_path / "mine", rounds=3).summary["rounds"] == 3


@pytest.mark.parametrize(
    "flags", [os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_RDWR | os.O_CREAT, os.O_WRONLY]
)
def test_what_is_no_file_of_its_own_is_not_opened(tmp_path: Path, flags: int) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "dangling").symlink_to(tmp_path / "made")
    os.link(tmp_path / "other", tmp_path / "hard")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "hard", "pipe"):
        with pytest.raises(UserError, match=f"cannot write .*{name}, which is"):
            open_own(tmp_path / name, flags)
    assert not (tmp_path / "made").exists()
    assert (tmp_path / "other").read_text() == "kept"
    with pytest.raises(UserError, match="cannot write /dev/null, which is a link, a pipe or a device"):
        open_own(Path("/dev/null"), flags)


def test_a_file_that_is_written_whole_takes_the_place_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "file").symlink_to(tmp_path / "other")
    write_atomic(tmp_path / "file", "new")
    assert not (tmp_path / "file").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("file", "other")] == ["new", "kept"]
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(UserError, match="folder must be a folder, and is a link"):
        make_folder(tmp_path / "folder")


def test_a_run_with_a_link_is_not_copied(whole: Path, tmp_path: Path) -> None:
    run, outside = Path(shutil.copytree(whole, tmp_path / "run")), tmp_path / "outside"
    outside.write_text("precious")
    (run / "notes.txt").symlink_to(outside)
    with pytest.raises(UserError, match=r"notes\.txt is a link, which a run's folder never has"):
        flsel.Result.load(run).save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_link_in_the_place_of_a_comparisons_run_is_refused(tmp_path: Path, depth: int) -> None:
    cell = Cell("PowD", "all", 1)
    place = tmp_path / "comparison" / Path(*cell.folder.parts[: depth + 1])
    place.parent.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match=f"{place.name} must be a folder, and is a link"):
        cell.place(tmp_path / "comparison")
