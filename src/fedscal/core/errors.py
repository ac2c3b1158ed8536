"""Errors that a user can mend, each kind with the exit code that the command line returns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_MOST_LISTED = 100
_LONGEST_ECHO = 200
"""Characters of what a user gave that a message repeats: enough to know it again."""
_LONGEST_REASON = 500
_LONGEST_WORD = 1000
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")
_LONGEST_MESSAGE = 4000


def shown(given: object, most: int = _LONGEST_ECHO) -> str:
    r"""Return what a user gave as a message may repeat it: in one line, printable, and cut if it is long.

    >>> shown("a" * 20, most=8), shown("two\nlines")
    ('aaaa...aaaa (20 characters)', 'two\\nlines')
    """
    # Python does not write numbers of thousands of digits in decimals.
    text = hex(given) if isinstance(given, int) and given.bit_length() > 1000 else str(given)
    kept = text if len(text) <= most else f"{_ends(text, most)} ({len(text):,} characters)"
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in kept)


def shortened(message: str) -> str:
    """Return a message that no input can make longer than a screen."""
    message = _LONG_WORD.sub(lambda word: _ends(word[0], _LONGEST_WORD), message)
    return message if len(message) <= _LONGEST_MESSAGE else _ends(message, _LONGEST_MESSAGE)


def _ends(text: str, most: int) -> str:
    return f"{text[: most // 2]}...{text[-(most // 2) :]}"


class FedscalError(Exception):
    """What went wrong, where, and how to mend it, in one or two lines."""

    exit_code = 1

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))


class UsageError(FedscalError):
    """An option, key or value that cannot be used."""

    exit_code = 2


class DataRefused(FedscalError):
    """Images or data sets that cannot be used."""

    exit_code = 3


class ModelRefused(FedscalError):
    """A model or checkpoint file that cannot be trusted."""

    exit_code = 4


class TooFewClients(FedscalError):
    """Not enough usable clients to go on."""

    exit_code = 5


class DirectoryBusy(FedscalError):
    """Another process works in the same directory."""

    exit_code = 6


class OutOfSpace(FedscalError):
    """A file that cannot be written, or memory that cannot be had."""

    exit_code = 7


def first_line(error: Exception) -> str:
    """Return what an error of another package says, as far as it fits into a sentence."""
    return shown((str(error).strip() or type(error).__name__).splitlines()[0], _LONGEST_REASON)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known word, or list the known words, unless many.

    >>> nearest("rouns", ["rounds", "seed"])
    "; did you mean 'rounds'?"
    """
    known = sorted(known)
    close = difflib.get_close_matches(word[:_LONGEST_ECHO], known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {some(known, _MOST_LISTED)}"


def some(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first names, and how many more there are.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more
