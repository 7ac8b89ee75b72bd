"""The files in a run's folder, each declared once: how it is written, and how a resume knows it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from flsel.runner.run_log import JsonLines, Mark, MetricsCsv

Kind = Literal["grows", "whole", "folder"]
FILES: Mapping[str, Kind] = {
    "metrics.csv": "grows",
    "rounds.jsonl": "grows",
    "diagnostics.jsonl": "grows",
    "config.yaml": "whole",
    "summary.json": "whole",
    "labels.csv": "whole",
    "failure.json": "whole",
    ".run-id": "whole",
    ".lock": "whole",
    "curves.png": "whole",
    "partition.png": "whole",
    "participation.png": "whole",
    "checkpoints": "folder",
    "tensorboard": "folder",
    "wandb": "folder",
}
"""By name: it ``grows`` by whole lines while the run goes on, and each checkpoint marks how far, with a hash;
it is written ``whole`` or not at all; or it is a ``folder`` with rules of its own."""


class GrowingFiles:
    """All files of a run that grow, which go back together to what a checkpoint marked.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        growing = [folder / name for name, kind in FILES.items() if kind == "grows"]
        self._files: dict[str, JsonLines | MetricsCsv] = {
            path.name: MetricsCsv(path) if path.suffix == ".csv" else JsonLines(path) for path in growing
        }

    def table(self, name: str) -> MetricsCsv:
        """Return a file of numbers."""
        found = self._files[name]
        assert isinstance(found, MetricsCsv)
        return found

    def objects(self, name: str) -> JsonLines:
        """Return a file of JSON objects."""
        found = self._files[name]
        assert isinstance(found, JsonLines)
        return found

    @property
    def paths(self) -> Sequence[Path]:
        """Their paths, whether or not they exist."""
        return [file.path for file in self._files.values()]

    def marks(self) -> dict[str, Mark]:
        """Return how far they have grown, by name."""
        return {name: file.lines.mark() for name, file in self._files.items()}

    def check(self, marks: Mapping[str, Mark]) -> None:
        """Refuse files that no longer hold what they held.

        Raises:
            UserError: If one does not.
        """
        for name, file in self._files.items():
            file.lines.check(marks.get(name, Mark()))

    def rewind(self, marks: Mapping[str, Mark]) -> None:
        """Drop what was appended after marks that :meth:`check` found in order."""
        for name, file in self._files.items():
            file.lines.rewind(marks.get(name, Mark()))
