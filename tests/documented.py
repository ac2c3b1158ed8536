"""The commands that README and the documentation print, as somebody would type them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
_NOT_RUN = re.compile(r"<!-- not run: (?P<why>.+?) -->")
_PROGRAM = re.compile(r"^(?:\S*/bin/)?(fedscal|make|python)$")
_ASSIGNED = re.compile(r"^([A-Z_]+)=(.*)$", re.DOTALL)
_LANGUAGES = {"", "sh", "bash", "console"}


@dataclass(frozen=True)
class Command:
    """One command of a page.

    Attributes:
        words: the program's name and what follows it.
        environment: what stands before it, ``NAME=value``.
        where: page and line.
        inline: whether it stands in a sentence, where it may be shortened.
        why_not: why no test runs it, as the comment before its block says.
    """

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    where: str
    inline: bool = False
    why_not: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.words)}"


def commands(page: Path) -> list[Command]:
    """Return every command of a page: those of its code blocks, then those in its sentences."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    blocks = [
        replace(found, why_not=_reason(before))
        for before, token in pairwise([Token("", "", 0), *tokens])
        if token.type in {"fence", "code_block"} and token.info in _LANGUAGES
        for found in _of_text(token.content, _where(page, token))
    ]
    inline = [
        replace(found, inline=True)
        for token in tokens
        for child in token.children or ()
        if child.type == "code_inline"
        for found in _of_text(child.content, _where(page, token))
    ]
    return blocks + inline


def of_makefile() -> list[Command]:
    """Return what the targets run of the program."""
    lines = re.findall(r"\$\(BIN\)/(fedscal .*)", (ROOT / "Makefile").read_text())
    return [found for line in lines for found in _of_text(line, "Makefile")]


def _where(page: Path, token: Token) -> str:
    return f"{page.relative_to(ROOT)}:{(token.map or [0])[0] + 1}"


def _reason(before: Token) -> str:
    found = _NOT_RUN.search(before.content) if before.type == "html_block" else None
    return found["why"] if found else ""


def _of_text(text: str, where: str) -> Iterator[Command]:
    """Yield the commands of a text, with the values of the variables that it sets."""
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        for words in _simple_commands(line):
            matches = map(_ASSIGNED.match, takewhile(_ASSIGNED.match, words))
            assigned: dict[str, str] = {found[1]: found[2] for found in matches if found}
            called = words[len(assigned) :]
            called = called[3:] if called[:2] == ["sudo", "-u"] else called
            if not called:
                variables |= assigned
            elif program := _PROGRAM.match(called[0]):
                yield Command((program[1], *called[1:]), tuple(assigned.items()), where)


def _simple_commands(line: str) -> list[list[str]]:
    """Split a line as a shell does, at ; and && too; a line that is no shell gives nothing."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return []
    return [
        list(group)
        for operator, group in groupby(words, lambda word: set(word) <= set(";&|"))
        if not operator
    ]
