"""A run directory that is looked at again and again: while it grows, is left, taken up again or removed."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from fedscal.core import files
from fedscal.core.errors import UsageError
from fedscal.experiment.announcer import read_progress
from fedscal.experiment.answers import ANSWERS
from fedscal.experiment.audits import AUDIT
from fedscal.experiment.load import FILES, Run, load_run
from fedscal.report.status import Seen

_SHOWN = (*FILES, "environment.json", AUDIT, ANSWERS)
"""What a page is made of."""


@dataclass
class Watched:
    """A run directory; it is read again when its files have changed, and what it last told is kept."""

    path: Path
    _fingerprint: str = ""
    _run: Run | None = None
    _one: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> tuple[Seen, str]:
        """Return what is there now, and a fingerprint of what a page would show."""
        with self._one:
            held = files.held(self.path)
            found = self._found(held)
            there = found and self._read(found, held)
            gone = self._run is not None and not there
            now = read_progress(self.path) if held else None
            return Seen(self.path, held, self._run, now, gone), self._fingerprint

    def _read(self, found: str, held: bool) -> bool:
        """Read the directory if it has changed; whether there is a run."""
        if found != self._fingerprint:
            try:
                self._run = load_run(self.path, growing=held)
            except UsageError:
                return False
            self._fingerprint = found
        return True

    def _found(self, held: bool) -> str:
        """Return a fingerprint of the files as they are, taken before they are read; empty without any."""
        entries = [(name, _stat(self.path / name)) for name in _SHOWN]
        present = [(name, entry.st_mtime_ns, entry.st_size) for name, entry in entries if entry]
        return files.sha256(repr((held, present)).encode())[:16] if present else ""


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
