"""The program under random input: what is edited, how it is called, and what must hold.

The property: exit code 0 and a complete run, or one sentence on standard error, exit code 2 and every file
that existed unchanged; never a traceback, and never long.
"""

# ruff: noqa: E501 (what is hostile is written whole)

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from PIL import Image

from flsel.arguments import arguments
from flsel.choosing.choose_config import ChooseConfig
from flsel.commands.cli import main
from flsel.comparison.compare_config import CompareConfig
from flsel.config.schema import explained, keys
from flsel.placing.place_config import PlaceConfig
from flsel_tune.sweep_config import SweepConfig

SECONDS = 30
MEMORY = 6 << 30  # Bytes beyond what the process has: an absurd size must fail, not the machine.
LONGEST = 1500  # Letters of a sentence.

TINY: dict[str, Any] = {
    "rounds": 2, "clients": 4, "clients_per_round": 2, "accelerator": "cpu", "quiet": True,
    "data": {"synthetic": {"size_mean": 1.0, "size_std": 0.5, "size_min": 10, "dimension": 8, "classes": 4}},
    "local": {"steps": 2, "backend": "sequential"},
    "output": {"name": "run", "checkpoint_every": 1},
}  # fmt: skip

# What would write elsewhere, ask the network, or start programs.
_LEFT_OUT = ("output.dir", "data.root", "data.download", "track.", "callbacks")


class Slow(BaseException):
    """A call took too long; no ``except`` of the program takes it for an error of its own."""


# --- calling the program ----------------------------------------------------------------------------------


def check(folder: Path, *words: str) -> int:
    """Call ``flsel train`` in a folder and check what must hold; return its exit code."""
    before = contents(folder)
    code, error = call(folder, "train", *words)
    if code == 0:
        run = next(folder.glob("runs/*/summary.json")).parent
        summary = json.loads((run / "summary.json").read_text())
        rows = (run / "metrics.csv").read_text().splitlines()
        config = yaml.safe_load((run / "config.yaml").read_text())
        groups = {**config, **config["time"]}
        stopped = any(value is not None for key, value in groups.items() if key.startswith("stop_after"))
        whole = summary["rounds"] == config["rounds"]
        assert whole or stopped or summary["rounds_to_target"] is not None, summary
        assert int(rows[-1].split(",")[0]) == summary["rounds"], rows[-1]
        torch.load(run / "checkpoints/last.ckpt", weights_only=True)
        return code
    refused(folder, before, code, error)
    return code


def refused(folder: Path, before: dict[Path, bytes], code: int, error: str) -> None:
    """Check that a call ended in one sentence and changed nothing."""
    said = [line for line in error.splitlines() if not line.startswith(("flsel: warning: ", "flsel: local."))]
    assert code == 2, (code, error)
    assert len(said) == 1, error
    assert said[0].startswith("flsel: error: "), error
    assert len(said[0]) < LONGEST, error
    after = contents(folder)
    changed = [str(path) for path, data in before.items() if after.get(path) != data]
    assert not changed, f"{changed} changed, though the program said {said[0]}"


def call(folder: Path, *words: str) -> tuple[int, str]:
    """Call the program in this process; its exit code and what it said on standard error."""
    error = io.StringIO()
    with (
        contextlib.chdir(folder) if hasattr(contextlib, "chdir") else _chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(error),
        warnings.catch_warnings(),
        limits(),
    ):
        warnings.simplefilter("default")
        try:
            code = main(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, error.getvalue()


@contextlib.contextmanager
def _chdir(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Bound time and memory, where the system can."""

    def stop(*_: Any) -> None:
        raise Slow(f"more than {SECONDS} s of the processor")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = Path("/proc/self/statm")
    # The processor's time, not the clock's: that says more of what else the machine does.
    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    if pages.exists():
        now = int(pages.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder but the locks, which say who came last."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and "lock" not in p.name}


# --- settings ---------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="/~.\0"), max_size=8)
ABSURD = st.sampled_from([10**13, 2**63, 10**30, -(10**13), 1e308, 5e-324, float("nan"), float("inf"), -0.0])
ODD_TEXTS = st.sampled_from(
    ["", " ", "x" * 5000, "null", "1e3", "a\0b", "é\ud7ff", "[", "{a", "1" * 5000, "a.b", "os.abort_"]
)
PLAIN = st.none() | st.booleans() | st.integers(-3, 6) | st.floats(-3, 3) | ABSURD | TEXTS | ODD_TEXTS
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["class_path", "init_args", "x", 3, None]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def classes(draw: Callable[..., Any], key: str) -> Any:
    """A class that fits a setting, with arguments that may not."""
    name = draw(st.sampled_from(sorted(explained()[key].classes())))
    made = explained()[key].classes()[name]
    known = [*arguments(made)] or ["nothing"]
    given = draw(st.dictionaries(st.sampled_from(known), PLAIN, max_size=2))
    return {"class_path": name, "init_args": given} if given else name


@st.composite
def edits(draw: Callable[..., Any]) -> dict[str, Any]:
    """The valid settings with one to three of them changed."""
    settings = yaml.safe_load(yaml.safe_dump(TINY))
    if draw(st.booleans()):
        settings |= {"devices": "Phones", "time": {"deadline": 100.0}}
    for _ in range(draw(st.integers(1, 3))):
        known = [key for key in keys() if not key.startswith(_LEFT_OUT)]
        key = draw(st.sampled_from(known) | TEXTS)
        known_classes = classes(key) | st.lists(classes(key), max_size=2) if key in explained() else PLAIN
        value = draw(known_classes | NESTED)
        *above, last = key.split(".")
        branch = settings
        for name in above:
            branch = branch.setdefault(name, {})
            if not isinstance(branch, dict):
                break
        if isinstance(branch, dict):
            branch[last] = value
    return settings


# What makes a command refuse its words, whatever the others are.
REFUSED = {
    "compare": (CompareConfig, ["--seeds", "0"]),
    "tune": (SweepConfig, ["--trials", "0"]),
    "choose": (ChooseConfig, ["--margin", "0"]),
    "place": (PlaceConfig, ["--seeds", "0"]),
}


@st.composite
def options(draw: Callable[..., Any], command: str) -> list[str]:
    """Options of a command and of its runs, with values that may not fit, and one that does not."""
    made, wrong = REFUSED[command]
    known = [*arguments(made), *keys(), "nothing"]
    values = PLAIN.map(str) | NESTED.map(lambda value: yaml.safe_dump(value, default_flow_style=True))
    given = draw(st.lists(st.tuples(st.sampled_from(known), values), max_size=3))
    first = [draw(st.sampled_from(["Uniform", "nosuch.X", "os.system"]))] if command == "place" else []
    return [command, *first, *(word for key, value in given for word in (f"--{key}", value)), *wrong]


SNIPPETS = st.sampled_from([
    b"a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\n",
    b"rounds: !!python/object/apply:os.abort []\n", b"rounds: !!int x\n", b"rounds: !!binary ????\n",
    b"seed: " + b"9" * 5000 + b"\n", b"model: " + b"[" * 2000 + b"\n", b"model: " + b"{a: " * 300 + b"1" + b"}" * 300 + b"\n",
    b"rounds: !!timestamp 2001-99-99\n", b"rounds: 2001-01-01\n", b"? [a]\n: 3\n", b"<<: {rounds: 1}\n", b"<<: 3\n",
    b"--- \n...\n---\n", b"%YAML 9.9\n---\n", b"\xff\xfe", b"\0", b"\t", b"a: *b\n", b"!!set {a, b}\n",
    b"local: &l {steps: 1, x: *l}\n", b"rounds: 0o17\n", b"rounds: 1_000_000_000_000_000\n", b"rounds: 12:30:45\n", b"rounds: .inf\n",
])  # fmt: skip


@st.composite
def damaged(draw: Callable[..., Any], data: bytes) -> bytes:
    """Bytes with some of them cut, flipped, replaced, doubled or put in between."""
    what = draw(st.sampled_from(["cut", "flip", "replace", "insert", "double", "empty", "zeros"]))
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    match what:
        case "cut":
            return data[:at]
        case "flip":
            bit = 1 << draw(st.integers(0, 7))
            return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] if data else b"x"
        case "replace":
            some = draw(st.binary(min_size=1, max_size=16))
            return data[:at] + some + data[at + len(some) :]
        case "insert":
            return data[:at] + draw(st.binary(min_size=1, max_size=16)) + data[at:]
        case "double":
            return data + data[at:]
        case "zeros":
            return data[:at] + bytes(len(data) - at)
    return b""


# --- data files -------------------------------------------------------------------------------------------


def write_data(folder: Path) -> dict[str, list[str]]:
    """Write small datasets of every kind; the words that train on each."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 8)).astype(np.float32)
    np.savez(
        folder / "plain.npz", x_train=x, y_train=np.arange(40) % 4, x_test=x[:9], y_test=np.arange(9) % 4
    )
    np.savez_compressed(
        folder / "packed.npz", x_train=(x * 20).astype(np.uint8).reshape(40, 2, 4), y_train=np.arange(40) % 4
    )
    for part, users in (("train", "abcd"), ("test", "ab")):
        (folder / "leaf" / part).mkdir(parents=True)
        data = {u: {"x": x[:5].tolist(), "y": [0, 1, 2, 3, 0]} for u in users}
        content = {"users": list(users), "num_samples": [5] * len(users), "user_data": data}
        (folder / "leaf" / part / "all.json").write_text(json.dumps(content))
        for label in "uv":
            (folder / "folder" / part / label).mkdir(parents=True)
            for n, kind in enumerate(("png", "jpg", "bmp", "gif", "tiff") * 2):
                file = (
                    folder
                    / "folder"
                    / part
                    / label
                    / f"{n}.{kind if kind in ('png', 'jpg', 'bmp', 'tiff') else 'webp'}"
                )
                Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(file)
    dealt = ["--partition", "IID", "--data.name"]
    return {
        "plain.npz": [*dealt, "npz", "--data.path", "plain.npz"],
        "packed.npz": [*dealt, "npz", "--data.path", "packed.npz"],
        "leaf": ["--data.name", "leaf", "--data.path", "leaf"],
        "folder": [*dealt, "folder", "--data.path", "folder"],
    }
