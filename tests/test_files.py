import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from flsel.errors import UserError
from flsel.files import RUN_ID_FILE, check_regular, naming, new_run_dir, run_id, write_atomic


def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"{path} is a pipe or a device; give a regular one"):
            check_regular(path)
    for path in (tmp_path, Path(__file__), tmp_path / "missing"):
        check_regular(path)


@pytest.fixture
def small_files():
    """Let no file grow beyond 64 KiB: a write that fails half-way, in the operating system."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "data", ["héllo\n", "héllo\n".encode(), lambda stream: stream.write("héllo\n".encode())]
)
def test_write_atomic_takes_text_bytes_and_a_function(tmp_path, data):
    write_atomic(tmp_path / "a", "old and longer")
    write_atomic(tmp_path / "a", data)
    assert (tmp_path / "a").read_text(encoding="utf-8") == "héllo\n"
    assert names(tmp_path) == ["a"]


def test_write_atomic_respects_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_failing_function_leaves_the_old_file_and_nothing_else(tmp_path):
    write_atomic(tmp_path / "a", "old")

    def fail(stream):
        stream.write(b"half")
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        write_atomic(tmp_path / "a", fail)
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    "data",
    [b"x" * 200_000, lambda stream: torch.save({"a": torch.zeros(100_000)}, stream)],
    ids=["bytes", "torch.save"],
)
def test_a_write_that_the_system_refuses_is_one_sentence(tmp_path, small_files, data):
    write_atomic(tmp_path / "a", "old")
    with pytest.raises(UserError, match=r"^cannot write .*/a: file too large\.$"):
        write_atomic(tmp_path / "a", data)
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_naming_finds_the_full_disk_behind_torch_save():
    with (
        pytest.raises(UserError, match="cannot write ckpt: the disk is full") as caught,
        naming("ckpt"),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        torch.save({"a": torch.zeros(300_000)}, full)
    assert "--resume" in str(caught.value)


@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.EACCES, "permission denied"), (errno.EROFS, "read-only"), (errno.EIO, "error")],
)
def test_naming_tells_why_a_path_cannot_be_written(number, text):
    with pytest.raises(UserError, match=f"cannot write somewhere: .*{text}"), naming("somewhere"):
        raise OSError(number, os.strerror(number))


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file or directory"):
        write_atomic(tmp_path / "gone" / "a", "x")


def test_a_kill_during_the_write_leaves_the_old_file(tmp_path):
    write_atomic(tmp_path / "a", "old")
    code = (
        "import os, signal, sys; from flsel.files import write_atomic\n"
        "def kill(stream): stream.write(b'half'); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomic(sys.argv[1], kill)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")])
    assert done.returncode == -9
    assert (tmp_path / "a").read_text() == "old"
    write_atomic(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    assert names(tmp_path) == ["a"]  # the killed writer's temporary file was taken over


def test_new_run_dir_counts_up_past_folders_with_files(tmp_path):
    root = tmp_path / "deep" / "runs"
    made = [new_run_dir(root, "x") for _ in range(3)]
    assert [path.relative_to(root).as_posix() for path in made] == ["x", "x-2", "x-3"]
    assert [names(path) for path in made] == [[RUN_ID_FILE]] * 3


def test_new_run_dir_takes_an_empty_folder_and_leaves_others_alone(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "mine").write_text("precious")
    (tmp_path / "z").write_text("a file")
    assert new_run_dir(tmp_path, "x") == tmp_path / "x"
    assert new_run_dir(tmp_path, "y") == tmp_path / "y-2"
    assert new_run_dir(tmp_path, "z") == tmp_path / "z-2"
    assert names(tmp_path / "y") == ["mine"]
    assert (tmp_path / "z").read_text() == "a file"


def test_new_run_dir_gives_everybody_a_folder_of_their_own(tmp_path):
    (tmp_path / "x").mkdir()
    made, start = [], threading.Barrier(8)

    def make():
        start.wait()
        made.extend(new_run_dir(tmp_path, "x") for _ in range(5))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 40
    assert len({run_id(path) for path in made}) == 40


@pytest.mark.parametrize("blocked", ["file", "link"])
def test_a_root_that_is_no_folder_names_the_key(tmp_path, blocked):
    root = tmp_path / "runs"
    if blocked == "file":
        root.write_text("")
    else:
        root.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"set `output\.dir` to a writable folder\.$"):
        new_run_dir(root, "x")


def test_an_unwritable_root_names_the_key(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"cannot create the run folder .*permission denied.*output\.dir"):
        new_run_dir(tmp_path / "runs", "x")


def test_run_id_stays_with_the_folder(tmp_path):
    made = new_run_dir(tmp_path, "x")
    first = run_id(made)
    moved = made.rename(tmp_path / "moved")
    assert run_id(moved) == first
    assert run_id(new_run_dir(tmp_path, "x")) != first


def test_run_id_is_given_to_a_folder_that_lost_it(tmp_path):
    assert run_id(tmp_path) == run_id(tmp_path)
    (tmp_path / RUN_ID_FILE).write_text("")
    assert len(run_id(tmp_path)) == 8
