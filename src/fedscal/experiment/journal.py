"""``metrics.jsonl``: a line a round, each with its checksum, each on disk before its round counts as done."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedscal.core import files
from fedscal.core.documents import misfit, sealed, unsealed
from fedscal.core.errors import ModelRefused

_LARGEST = 1_000_000_000
_LONGEST = 16_000_000
"""Bytes of a line, of which a client takes a few hundred."""


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a record as they are; the last, and one that is too long, has no end."""
    with files.reading(path, _LARGEST) as file:
        while line := file.readline(_LONGEST):
            yield line
            if not line.endswith(b"\n"):
                return


@dataclass(frozen=True)
class Record:
    """The lines of rounds 0, 1, ... up to the first that is missing or damaged.

    Attributes:
        path: where they were read.
        lines: the lines.
        hashes: the sha256 of the file up to the end of each line.
        trouble: what ended the lines before their file did; empty if nothing.
    """

    path: Path
    lines: list[dict[str, Any]]
    hashes: list[str]
    trouble: str

    def require(self, round_: int, sha256: str) -> None:
        """Refuse a round that was saved after other lines than these; old checkpoints do not say which."""
        if round_ >= len(self.lines):
            trouble = self.trouble or f"line {len(self.lines) + 1} is missing"
            raise ModelRefused(f"{self.path}: {trouble}.")
        if sha256 not in ("", self.hashes[round_]):
            raise ModelRefused(f"{self.path} is not what it was when round {round_} was saved.")


@dataclass
class Journal:
    """The record of one run, to be read and added to.

    Attributes:
        path: the file.
        shape: what a line must be like, see ``documents.misfit``.
    """

    path: Path
    shape: Any
    _written: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        """The hash of all lines so far, as this process wrote them."""
        return str(self._written.hexdigest())

    def read(self) -> Record:
        """Read the lines; a last one that a kill cut off is not there."""
        lines: list[dict[str, Any]] = []
        hashes: list[str] = []
        whole, trouble = hashlib.sha256(), ""
        try:
            for raw in raw_lines(self.path):
                line = self._next(raw, len(lines))
                lines.append(line)
                whole.update(sealed(line))
                hashes.append(whole.hexdigest())
        except FileNotFoundError:
            trouble = "it is gone"
        except OSError as error:
            trouble = f"it cannot be read, {error.strerror}"
        except ValueError as error:
            trouble = f"line {len(lines) + 1} is damaged, {error}"
        return Record(self.path, lines, hashes, trouble)

    def restart(self, lines: list[dict[str, Any]]) -> None:
        """Hold these lines and no others."""
        data = b"".join(map(sealed, lines))
        files.write_bytes(self.path, data)
        self._written = hashlib.sha256(data)

    def append(self, line: dict[str, Any]) -> None:
        """Add a line; it is on disk when this returns."""
        data = sealed(line)
        with files.writing(self.path, len(data)), self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._written.update(data)

    def _next(self, raw: bytes, number: int) -> dict[str, Any]:
        if not raw.endswith(b"\n"):
            raise ValueError("it is cut off")
        line = unsealed(raw)
        wrong = f"it is of round {line['round']}" if line["round"] != number else misfit(line, self.shape)
        if wrong:
            raise ValueError(wrong)
        return line
