"""Models of single clients on disk, each written when it changes and read when it is used."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors

from fedscal.core import files, weights
from fedscal.core.types import ClientId, Weights
from fedscal.core.weights import OnDisk
from fedscal.models.store import read_tensors
from fedscal.runtime.memory import MemoryFile
from fedscal.server.rule import ServerState

if TYPE_CHECKING:
    from torch import Tensor

_LENGTH = struct.Struct("<Q")
"""A safetensors file begins with the length of its header; the tensors follow without gaps."""


class StoredModel(OnDisk):
    """A client's model in a file of its own."""

    def __init__(self, path: Path, sha256: str) -> None:
        self.path, self.sha256 = path, sha256

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        with safetensors.safe_open(self.path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        with safetensors.safe_open(self.path, framework="pt") as file:
            return tuple(file.keys())

    @cached_property
    def bytes(self) -> int:
        """How many bytes its tensors take."""
        with self.path.open("rb") as file:
            (header,) = _LENGTH.unpack(file.read(_LENGTH.size))
            return os.fstat(file.fileno()).st_size - _LENGTH.size - int(header)


@dataclass(frozen=True)
class OwnModels:
    """The folder of a run's models of single clients; its checkpoints name the files that count."""

    folder: Path

    def settled(self, round_: int, state: ServerState) -> ServerState:
        """Write the models that a round has changed; return the state that reads them from there."""
        changed = {c: model for c, model in state.own.items() if not isinstance(model, StoredModel)}
        if not changed:
            return state
        stored: dict[ClientId, Weights] = {}

        def contents() -> Iterator[tuple[str, bytes]]:
            for client, model in changed.items():
                data = weights.to_bytes(model)
                entry = MemoryFile(f"{client}-{round_:04}.safetensors", files.sha256(data))
                stored[client] = StoredModel(entry.within(self.folder), entry.sha256)
                yield entry.file, data

        files.write_all(self.folder, contents())
        return replace(state, own={**state.own, **stored})

    def entries(self, state: ServerState) -> dict[ClientId, MemoryFile]:
        """Return file and sha256 of the models of a settled state."""
        stored = ((client, model) for client, model in state.own.items() if isinstance(model, StoredModel))
        return {client: MemoryFile(model.path.name, model.sha256) for client, model in stored}

    def read(self, entries: Mapping[ClientId, MemoryFile]) -> dict[ClientId, Weights]:
        """Return the models of a checkpoint; a file that is damaged is refused."""
        found = {
            client: StoredModel(entry.within(self.folder), entry.sha256) for client, entry in entries.items()
        }
        for model in found.values():
            read_tensors(model.path, model.sha256)
        return dict(found)

    def keep_only(self, names: set[str]) -> None:
        """Delete the files that no checkpoint names any more."""
        files.keep_only(self.folder, names)
