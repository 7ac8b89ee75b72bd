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
    """The process that draws died, or could not draw."""


class DiedError(UndrawnError):
    """The process died, as the next one would: the memory is too small, or no process can be started."""


def drawn(spec: Mapping[str, Any], kinds: Sequence[str]) -> list[bytes]:
    """Draw a Vega-Lite specification in formats: ``svg``, ``pdf`` or ``png``.

    Raises:
        UndrawnError: If it cannot be drawn.
        UserError: If vl-convert is missing.
    """
    return _asked({"spec": spec, "kinds": list(kinds)}, "figures need")


def bundle(exposed: str) -> str:
    """Return the library of charts for a page, as one script.

    Args:
        exposed: JavaScript that makes what the page needs of it known.

    Raises:
        UndrawnError: If the process that makes it dies.
        UserError: If vl-convert is missing.
    """
    return _asked({"exposed": exposed}, "report.html needs")[0].decode()


def answer() -> None:
    """Do what standard input asks, and write it to standard output: the child's side."""
    import vl_convert

    asked = json.load(sys.stdin)
    if "exposed" in asked:
        found = [str(vl_convert.javascript_bundle(asked["exposed"])).encode()]
    else:
        spec = asked["spec"]
        svg = str(vl_convert.vegalite_to_svg(spec)) if {"svg", "pdf"} & {*asked["kinds"]} else ""
        make: Mapping[str, Callable[[], bytes]] = {
            "svg": svg.encode,
            # The version up to which LaTeX takes figures without a warning; nothing newer is in them.
            "pdf": lambda: bytes(vl_convert.svg_to_pdf(svg)).replace(b"%PDF-1.7", b"%PDF-1.5", 1),
            "png": lambda: bytes(vl_convert.vegalite_to_png(spec, ppi=_DPI)),
        }
        found = [make[kind]() for kind in asked["kinds"]]
    json.dump([base64.b64encode(each).decode() for each in found], sys.stdout)


def _asked(what: Mapping[str, Any], need: str) -> list[bytes]:
    if sys.modules.get("vl_convert", find_spec) is None or find_spec("vl_convert") is None:
        raise UserError(f"{need} vl-convert: pip install vl-convert-python.")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            input=json.dumps(what).encode(),
            capture_output=True,
        )
    except OSError as error:
        raise DiedError(f"no process for vl-convert could be started ({error.strerror}).") from error
    try:
        return [base64.b64decode(each) for each in json.loads(done.stdout)]
    except ValueError:
        kind = DiedError if done.returncode < 0 else UndrawnError
        raise kind(f"vl-convert {_why(done)}.") from None


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode < 0:
        return (
            f"was ended by {signal.Signals(-done.returncode).name}: often the memory (ulimit -v) is too small"
        )
    said = done.stderr.decode(errors="replace").strip().splitlines() or ["without a word"]
    return f"ended with code {done.returncode}: {short(said[-1], 200)}"
