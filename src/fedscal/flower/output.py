"""What people see of a federation: plain lines on the screen. Flower's own messages go to a log file.

A command starts processes, whose output it reads line by line. Lines that are marked are for people; the
others, and the marked ones too, are kept in the file.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedscal.core import files
from fedscal.core.errors import first_line, shown

Say = Callable[[str], None]
MARK = "fedscal: "
"""How a line for people begins."""
_LARGEST, _OLDER = 10_000_000, 2
"""Bytes of a log file, and how many older ones are kept: a server may run for years."""
_LONGEST = 500
_OWN_QUESTIONS = ("ControlServicer.ListNodes", "/v1/control/list-nodes")
"""What SuperLink logs when we ask, every few seconds, which sites are connected."""
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def tell(text: str) -> None:
    """Say something to people, from a process that a command of a federation has started."""
    print(f"{MARK}{text}", flush=True)  # noqa: T201


class Output:
    """Where a command speaks: to people by ``say``, and to a log file, which it names once."""

    def __init__(self, say: Say, path: Path) -> None:
        self.path = path
        self._say = say
        files.make_dir(path.parent)
        with files.writing(path):
            self._file = RotatingFileHandler(path, maxBytes=_LARGEST, backupCount=_OLDER, errors="replace")
        say(f"log: {path}")

    def say(self, text: str) -> None:
        """Tell people, and keep it."""
        self._say(text)
        self.note(text)

    def note(self, text: str) -> None:
        """Keep a line."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self._file.emit(logging.makeLogRecord({"msg": f"{now} {text}"}))

    def pass_on(self, line: str) -> None:
        """Keep a line of a process, and tell people if it is for them."""
        if not any(text in line for text in _OWN_QUESTIONS):
            self.note(line)
        if line.startswith(MARK):
            self._say(line.removeprefix(MARK))


class _Brief(logging.Formatter):
    """One line for people: what happened, and the error without its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        error = record.exc_info[1] if record.exc_info else None
        why = f": {first_line(error)}" if isinstance(error, Exception) else ""
        return f"{MARK}{record.levelname.lower()}: {shown(record.getMessage() + why, _LONGEST)}"


def tell_warnings() -> None:
    """Let what the package warns of be told to people, beside the log that has all of it."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Brief())
    handler.setLevel(logging.WARNING)
    logging.getLogger("fedscal").addHandler(handler)
