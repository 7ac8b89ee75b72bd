"""Call vl-convert in a process of its own, which may die of too little memory without the report."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from flsel.errors import UserError, short

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from flsel.comparison.reporting.draw import answer; answer()"
)
_DPI = 300


class UndrawnError(UserError):
    """What the process could not draw, since it failed or died."""


def drawn(specs: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> list[list[bytes] | UndrawnError]:
    """Draw Vega-Lite specifications in formats: ``svg``, ``pdf`` or ``png``.

    One process draws them all, since it takes longer to start than to draw.

    Returns:
        For each its formats, or why it could not be drawn.

    Raises:
        UserError: If vl-convert is missing.
    """
    return _asked([{"spec": spec, "kinds": list(kinds)} for spec in specs], "figures need")


def bundle(exposed: str) -> str:
    """Return the library of charts for a page, as one script.

    Args:
        exposed: JavaScript that makes what the page needs of it known.

    Raises:
        UndrawnError: If the process that makes it dies.
        UserError: If vl-convert is missing.
    """
    (made,) = _asked([{"exposed": exposed}], "report.html needs")
    if isinstance(made, UndrawnError):
        raise made
    return made[0].decode()


def answer() -> None:
    """Make each part that standard input asks for, and write a line for it: the child's side."""
    for part in json.load(sys.stdin):
        try:
            line: list[str] | str = [base64.b64encode(content).decode() for content in _made(part)]
        except Exception as error:  # vl-convert's own; the next figure may be fine
            line = " ".join(str(error).splitlines()[:2])  # the rest is where in its JavaScript
        print(json.dumps(line), flush=True)


def _made(part: Mapping[str, Any]) -> list[bytes]:
    import vl_convert

    if "exposed" in part:
        return [str(vl_convert.javascript_bundle(part["exposed"])).encode()]
    spec, kinds = part["spec"], part["kinds"]
    svg = str(vl_convert.vegalite_to_svg(spec)) if {"svg", "pdf"} & {*kinds} else ""
    make: Mapping[str, Callable[[], bytes]] = {
        "svg": svg.encode,
        # The version up to which LaTeX takes figures without a warning; nothing newer is in them.
        "pdf": lambda: bytes(vl_convert.svg_to_pdf(svg)).replace(b"%PDF-1.7", b"%PDF-1.5", 1),
        "png": lambda: bytes(vl_convert.vegalite_to_png(spec, ppi=_DPI)),
    }
    return [make[kind]() for kind in kinds]


def _asked(parts: Sequence[Mapping[str, Any]], need: str) -> list[list[bytes] | UndrawnError]:
    if sys.modules.get("vl_convert", find_spec) is None or find_spec("vl_convert") is None:
        raise UserError(f"{need} vl-convert: pip install vl-convert-python.")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            input=json.dumps(parts).encode(),
            capture_output=True,
        )
    except OSError as error:
        return [UndrawnError(f"no process for vl-convert could be started ({error.strerror}).")] * len(parts)
    lines = done.stdout.decode().splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("\n")]  # no line of a dying process
    answers = [
        UndrawnError(f"vl-convert failed: {short(line, 200)}")
        if isinstance(line, str)
        else [base64.b64decode(content) for content in line]
        for line in found
    ]
    return answers + [UndrawnError(f"vl-convert {_why(done)}.")] * (len(parts) - len(answers))


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode < 0:
        return (
            f"was ended by {signal.Signals(-done.returncode).name}: often the memory (ulimit -v) is too small"
        )
    said = done.stderr.decode(errors="replace").strip().splitlines() or ["without a word"]
    return f"ended with code {done.returncode}: {short(said[-1], 200)}"
