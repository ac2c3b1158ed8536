"""A table of text, wherever it is shown: in the terminal, in Markdown or on a page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

Entered = str | float | None
"""What a record has in a column of CSV or JSON; None where it is not known."""
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"})
_MARKS = re.compile(
    r"[\\`*\[\]#~$]|:(?=//)|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])|^[-+=](?=[-+=\s]|$)", re.IGNORECASE
)
"""What Markdown would take for more than text. An underscore inside a word is none of it."""
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def as_markdown(text: str) -> str:
    r"""Return Markdown that shows a text as it is, in one line: names are others' to choose.

    >>> as_markdown("![a](b) <i> snow_man")
    '!\\[a\\](b) &lt;i&gt; snow_man'
    """
    line = "".join(one if one.isprintable() else " " for one in text).strip()
    return _NUMBERED.sub(r"\1\\\2", _MARKS.sub(r"\\\g<0>", line)).translate(_HTML)


@dataclass(frozen=True)
class Table:
    """A title, a header, rows whose first cell names them, and sentences to stand below.

    Attributes:
        title: what it shows.
        header: the names of the columns.
        rows: the cells.
        notes: sentences below.
        headline: the name of the column that counts most, if one does.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    headline: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown."""
        ruler = ["---"] + ["---:"] * (len(self.header) - 1)
        header, *rows = ([as_markdown(cell) for cell in row] for row in [self.header, *self.rows])
        lines = ["| " + " | ".join(row) + " |" for row in [header, ruler, *rows]]
        parts = [f"**{as_markdown(self.title)}**", "\n".join(lines), *map(as_markdown, self.notes)]
        return "\n\n".join(parts) + "\n"

    def text(self) -> str:
        """Return the table as plain lines, its columns aligned."""
        cells = [[_printable(cell) for cell in row] for row in [self.header, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells if row]
        return "\n".join([_printable(self.title), *lines, *map(_printable, self.notes)])

    def html(self) -> str:
        """Return the table as HTML for a notebook, every text escaped: names are others' to choose."""
        header, *rows = ([html.escape(cell) for cell in row] for row in [self.header, *self.rows])
        head = "".join(f"<th>{cell}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        title = f"<p><b>{html.escape(self.title)}</b></p>"
        return f"<div>{title}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}</div>"


def _printable(text: str) -> str:
    """Return a text without what would move a terminal's cursor."""
    return "".join(one if one.isprintable() else " " for one in text)
