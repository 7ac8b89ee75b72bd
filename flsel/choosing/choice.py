"""A choice: what came of a race, in words, as a page and as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flsel.choosing import choice_words
from flsel.choosing.choice_file import read_declared
from flsel.choosing.choice_page import choice_page
from flsel.choosing.race_result import RaceResult
from flsel.choosing.run_race import follow
from flsel.comparison.reporting.tables import to_csv, to_markdown
from flsel.errors import UserError
from flsel.files import write_atomic
from flsel.files.escaping import markdown_text
from flsel.report import notebook

if TYPE_CHECKING:
    import pandas


class Choice(RaceResult):
    """The outcome of a race, and the ways to show it."""

    @property
    def headline(self) -> str:
        """The choice in one sentence, and what needs least."""
        return choice_words.headline(self)

    @property
    def notes(self) -> list[str]:
        """What the choice rests on, and what it cannot exclude."""
        return choice_words.notes(self)

    @property
    def results(self) -> pandas.DataFrame:
        """One row for each racer.

        Raises:
            UserError: If pandas is missing.
        """
        try:
            import pandas
        except ImportError as error:
            raise UserError('frames need pandas: pip install "flsel[pandas]".') from error
        return pandas.DataFrame(self.rows)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the table in words: headings, and a line for each racer, the winner first."""
        return choice_words.table(self)

    def write(self) -> list[Path]:
        """Write the page, the report, the table and the winner's config.

        Returns:
            Their paths, the page first.

        Raises:
            UserError: If a file cannot be written.
        """
        files = {
            "report.html": choice_page(self),
            "report.md": self.to_markdown(),
            "table.csv": to_csv(self.rows),
            "best.yaml": f"# {self.headline.partition('. ')[0].rstrip('.')}.\n{self.best}",
        }
        for name, text in files.items():
            write_atomic(self.folder / name, text)
        return [self.folder / name for name in files]

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        parts = [f"# {markdown_text(self.folder.name)}", "", f"**{markdown_text(self.headline)}**", ""]
        parts += [to_markdown(*self.table()), "", *(f"- {markdown_text(note)}" for note in self.notes)]
        if self.declared.left_out:
            parts += ["", "## Left out", ""]
            parts += [f"- {markdown_text(f'{name}: {why}')}" for name, why in self.declared.left_out.items()]
        return "\n".join([*parts, "", "````", *self.declared.commands, "````"]) + "\n"

    def _repr_html_(self) -> str:
        return notebook.fragment(self.headline, notebook.table(*self.table()), "", str(self.folder))


def read_choice(folder: Path) -> Choice:
    """Read a race as it lies in its folder; nothing is executed.

    Raises:
        UserError: If the folder is no race's, or has no complete look yet.
    """
    declared = read_declared(folder)
    standing = follow(folder, declared)
    if standing.race.spread is None:
        raise UserError(f"{folder} has no complete look yet: resume it with flsel choose --resume {folder}.")
    return Choice(folder, declared, standing)
