"""``metrics.jsonl``: one line per round, each with its checksum, on disk before its round counts as done.

The clients of a round, where they are many, are a file of columns beside it, ``clients/round-0007.npz``. It
is on disk before the line, which holds its sha256: what is not as the line says is not read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedscal.core import files
from fedscal.core.convert import Faults, Misfit, convert, dump, in_short
from fedscal.core.documents import is_sealed, sealed, unsealed
from fedscal.core.errors import ModelRefused
from fedscal.experiment.client_table import ClientTable
from fedscal.experiment.records import RoundRecord

_LARGEST = 1_000_000_000
_LONGEST = 16_000_000
"""Bytes of a line, of which a client takes a few hundred."""
_MOST_BROKEN = 20
"""Lines that are no records, after which a file is taken for something else and read no further."""
_LAST_ROUND = 100_000
CLIENTS = "clients"
"""The folder of the files that have the clients of a round each."""
_LARGEST_CLIENTS = 256_000_000


@dataclass(frozen=True)
class Record:
    """The lines of rounds 0, 1, ... up to the first that is missing or damaged.

    Attributes:
        path: where they were read.
        rounds: what the lines say.
        lines: the lines themselves, sealed.
        trouble: what ended the lines before their file did; empty if nothing.
    """

    path: Path
    rounds: Sequence[RoundRecord]
    lines: Sequence[bytes]
    trouble: str

    def sha256(self, count: int) -> str:
        """Return the hash of the first lines."""
        return files.sha256(b"".join(self.lines[:count]))

    def require(self, count: int, sha256: str) -> None:
        """Refuse a round that was saved after other lines than these; old checkpoints do not say which."""
        if count > len(self.lines):
            trouble = self.trouble or f"line {len(self.lines) + 1} is missing"
            raise ModelRefused(f"{self.path}: {trouble}.")
        if sha256 not in ("", self.sha256(count)):
            raise ModelRefused(f"{self.path} is not what it was when a round was saved after line {count}.")


@dataclass
class Journal:
    """The record of one run, to be read and added to."""

    path: Path
    _written: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        """The hash of all lines so far, as this process wrote them."""
        return str(self._written.hexdigest())

    def read(self) -> Record:
        """Read the lines of a run that goes on; a last one that a kill cut off is not there."""
        rounds: list[RoundRecord] = []
        lines: list[bytes] = []
        trouble = ""
        try:
            for raw in _raw_lines(self.path):
                record, line = _strict(raw, len(lines))
                rounds.append(self._with_clients(record))
                lines.append(line)
        except FileNotFoundError:
            trouble = "it is gone"
        except OSError as error:
            trouble = f"it cannot be read, {error.strerror}"
        except ValueError as error:
            trouble = f"line {len(lines) + 1} is damaged, {error}"
        return Record(self.path, rounds, lines, trouble)

    def salvage(self, notes: list[str], growing: bool = False) -> Sequence[RoundRecord]:
        """Return every round that can be read, the latest line of each; note what cannot.

        The last line of a file that is growing may be cut off: the rest is on its way.
        """
        rounds: dict[int, RoundRecord] = {}
        broken: list[str] = []
        try:
            for place, raw in enumerate(_raw_lines(self.path), start=1):
                faults: list[Misfit] = []
                try:
                    record = _round(unsealed(raw), faults)
                    rounds[record.round] = self._as_far_as_whole(record, notes)
                except ValueError:
                    coming = growing and not raw.endswith(b"\n")
                    broken += (
                        [f"line {place}: not a whole record, left out"] if raw.strip() and not coming else []
                    )
                if faults:
                    notes.append(f"{self.path.name}, line {place}: {in_short(faults)}.")
                if len(broken) == _MOST_BROKEN:
                    break
        except FileNotFoundError:
            notes.append(f"{self.path.name} is missing.")
        except OSError as error:
            notes.append(f"{self.path.name} was left out: {error.strerror}.")
        notes += [f"{self.path.name}, {text}." for text in broken]
        return [rounds[index] for index in sorted(rounds)]

    def restart(self, lines: Sequence[bytes]) -> None:
        """Hold these lines and no others, nor the clients of other rounds."""
        data = b"".join(lines)
        files.write_bytes(self.path, data)
        self._written = hashlib.sha256(data)
        kept = {self._clients_file(index) for index in range(len(lines))}
        for path in (self.path.parent / CLIENTS).glob("round-*.npz"):
            if path not in kept:
                path.unlink()

    def append(self, record: RoundRecord) -> None:
        """Add a round; it is on disk when this returns."""
        if isinstance(record.clients, ClientTable):
            rows = record.clients.data
            files.write_bytes(self._clients_file(record.round), rows)
            record = replace(record, clients={}, clients_sha256=files.sha256(rows))
        data = sealed(dump(record))
        with files.writing(self.path, len(data)), self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._written.update(data)

    def _clients_file(self, round_: int) -> Path:
        return self.path.parent / CLIENTS / f"round-{round_:04}.npz"

    def _with_clients(self, record: RoundRecord) -> RoundRecord:
        """Return a round with the clients that its line leaves to a file; the columns are read when used."""
        if not record.clients_sha256:
            return record
        path = self._clients_file(record.round)
        try:
            data = files.read_bytes(path, _LARGEST_CLIENTS)
        except OSError as error:
            raise ValueError(f"{CLIENTS}/{path.name} cannot be read, {error.strerror}") from error
        if files.sha256(data) != record.clients_sha256:
            raise ValueError(f"{CLIENTS}/{path.name} is not what it was when the line was written")
        return replace(record, clients=ClientTable(data))

    def _as_far_as_whole(self, record: RoundRecord, notes: list[str]) -> RoundRecord:
        try:
            return self._with_clients(record)
        except ValueError as error:
            notes.append(f"{error}; the clients of round {record.round} were left out.")
            return record


def _raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a record as they are; the last, and one that is too long, has no end."""
    with files.reading(path, _LARGEST) as file:
        while line := file.readline(_LONGEST):
            yield line
            if not line.endswith(b"\n"):
                return


def _round(value: dict[str, Any], faults: Faults = None) -> RoundRecord:
    record = convert(value, RoundRecord, faults=faults)
    if not 0 <= record.round <= _LAST_ROUND:
        raise ValueError(f"it is of round {record.round}")
    return record


def _strict(raw: bytes, number: int) -> tuple[RoundRecord, bytes]:
    """Return what a line says, and the line with a seal, which those of earlier versions do not have."""
    if not raw.endswith(b"\n"):
        raise ValueError("it is cut off")
    value = unsealed(raw)
    record = _round(value)
    if record.round != number:
        raise ValueError(f"it is of round {record.round}")
    if record.selected_round is None:
        raise ValueError("it has no selected_round")
    return record, raw if is_sealed(raw) else sealed(value)
