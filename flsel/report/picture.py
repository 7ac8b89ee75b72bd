"""A Matplotlib figure that a notebook shows once, and that saves itself."""

from __future__ import annotations

import io
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from flsel.files import home, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 100


@dataclass(frozen=True)
class Picture:
    """A picture of a result: shows itself in a notebook, and saves itself as PNG, PDF or SVG.

    Attributes:
        figure: Matplotlib's figure.
    """

    figure: Figure

    def save(self, path: str | PathLike[str]) -> Path:
        """Save it in the format of the path's suffix, whole or not at all.

        Raises:
            UserError: If the file cannot be written.
        """
        file = home(path)
        write_atomic(file, self._rendered(file.suffix.removeprefix(".") or "png"))
        return file

    def _repr_png_(self) -> bytes:
        return self._rendered("png")

    def _rendered(self, kind: str) -> bytes:
        stream = io.BytesIO()
        self.figure.savefig(stream, format=kind, dpi=_DPI, bbox_inches="tight")
        return stream.getvalue()
