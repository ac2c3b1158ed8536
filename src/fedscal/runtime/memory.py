"""Clients' memories on disk, each with its sha256: of all clients of a run, or of the client of a site."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from fedscal.core import files, weights
from fedscal.core.types import ClientId, Memory
from fedscal.models.store import read_json, read_tensors

_KEEP = 3
"""A server that resumes goes back at most two rounds, and the round that it was killed in may have begun."""


@dataclass(frozen=True)
class MemoryFile:
    """Where a client's memory, or a model of its own, is kept."""

    file: str
    sha256: str

    def within(self, folder: Path) -> Path:
        """Return its path; an entry that somebody else wrote names nothing outside the folder."""
        return folder / Path(self.file).name


@dataclass
class MemoryStore(ABC):
    """Memories as files of a folder, so that main memory does not grow with the number of clients."""

    folder: Path

    def get(self, client: ClientId, before: int) -> Memory:
        """Return the memory that a client had before a round; empty before its first participation."""
        entry = self._find(client, before)
        return weights.unflatten(read_tensors(*entry)) if entry else {}

    def put(self, client: ClientId, round_: int, memory: Memory) -> None:
        """Write a client's memory of a round beside the older ones, which a resumed run may still need."""
        data = weights.to_bytes(weights.flatten(memory))
        self._save(client, round_, data, files.sha256(data))

    @abstractmethod
    def _find(self, client: ClientId, before: int) -> tuple[Path, str | None] | None:
        """Return the file of a memory and its sha256."""

    @abstractmethod
    def _save(self, client: ClientId, round_: int, data: bytes, sha256: str) -> None:
        """Write a memory, and its sha256."""


@dataclass
class RunMemories(MemoryStore):
    """Memories of a run's clients, one file per client and round; the run's checkpoint holds the index."""

    index: dict[ClientId, MemoryFile] = field(default_factory=dict)
    """File and sha256 of every client's memory."""

    def path(self, entry: MemoryFile) -> Path:
        """Return the file of an entry."""
        return entry.within(self.folder)

    def keep_only(self, names: set[str]) -> None:
        """Delete the files that no checkpoint names any more."""
        files.keep_only(self.folder, names)

    def _find(self, client: ClientId, before: int) -> tuple[Path, str | None] | None:
        entry = self.index.get(client)
        return (self.path(entry), entry.sha256) if entry else None

    def _save(self, client: ClientId, round_: int, data: bytes, sha256: str) -> None:
        name = f"{client}-{round_:04}.safetensors"
        files.write_bytes(self.folder / name, data)
        self.index[client] = MemoryFile(name, sha256)


class SiteMemories(MemoryStore):
    """The memory of a site's client for one run: a folder with a manifest per round that it took part in."""

    def _find(self, client: ClientId, before: int) -> tuple[Path, str | None] | None:
        earlier = [number for number in self._rounds() if number < before]
        if not earlier:
            return None
        folder = self._round(earlier[-1])
        sha256 = read_json(folder / "manifest.json").get("sha256")
        return folder / "memory.safetensors", sha256 if isinstance(sha256, str) else None

    def _save(self, client: ClientId, round_: int, data: bytes, sha256: str) -> None:
        """Write a round; a round that is done again replaces what came of it and after it."""
        manifest = json.dumps({"round": round_, "sha256": sha256}).encode()
        files.write_dir(self._round(round_), {"memory.safetensors": data, "manifest.json": manifest})
        rounds = self._rounds()
        for number in [*rounds[:-_KEEP], *(later for later in rounds if later > round_)]:
            shutil.rmtree(self._round(number), ignore_errors=True)

    def _round(self, number: int) -> Path:
        return self.folder / f"round-{number:04}"

    def _rounds(self) -> list[int]:
        names = (path.name.removeprefix("round-") for path in self.folder.glob("round-*"))
        return sorted(int(name) for name in names if name.isdecimal())
