"""A table of text, wherever it is shown: in the terminal, in Markdown or on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A title, a header, rows whose first cell names them, and sentences to stand below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """Return the table as Markdown."""
        ruler = ["---"] + ["---:"] * (len(self.header) - 1)
        lines = ["| " + " | ".join(row) + " |" for row in [self.header, ruler, *self.rows]]
        parts = [f"**{self.title}**", "\n".join(lines), *self.notes]
        return "\n\n".join(parts) + "\n"
