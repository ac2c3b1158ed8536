"""Checkpoints: the server's state and the clients' memories after a round, whole or not there.

``checkpoints/round-0007/`` holds ``state.safetensors`` and ``manifest.json``, which names every file
that belongs to the round with its sha256, what ``metrics.jsonl`` was when the round was saved, and what the
round's own line is made of when its model has been judged: until then the round is merged and not lost. What
its clients reported is in the manifest too, and where they are many in ``clients.npz``, as columns. The
clients' memories, and the models that single clients have of their own, are files beside it that are written
when they change. The last two rounds are kept: if the newest is damaged, or the record has not the lines that
it presumes, the one before it is used.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

from fedscal.core import files, weights
from fedscal.core.convert import convert, dump
from fedscal.core.documents import LARGEST, sealed, unsealed
from fedscal.core.errors import ModelRefused
from fedscal.core.spool import Spool
from fedscal.experiment.client_table import ClientTable
from fedscal.experiment.records import Manifest, MergedRound
from fedscal.models.store import read_tensors
from fedscal.runtime.memory import RunMemories
from fedscal.runtime.own_models import OwnModels
from fedscal.server.rounds import Storage
from fedscal.server.rule import ServerState

_KEEP = 2
_STATE, _CLIENTS = "state.safetensors", "clients.npz"
_LARGEST = 256_000_000
"""Bytes of the file of clients."""


@dataclass(frozen=True)
class Checkpoint:
    """A round that was merged, and the server's state after it.

    ``merged`` is what its record is made of when its model is judged; None of a round that was saved after
    that, as earlier versions did.
    """

    round: int
    state: ServerState
    merged: MergedRound | None = None


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memories = RunMemories(folder / "memory")
        self.own = OwnModels(folder / "own")
        spare: list[FileIO] = []
        self.storage = Storage(lambda: Spool(folder, spare=spare), self.own.settled)

    def save(self, merged: MergedRound, state: ServerState, record: str = "") -> None:
        """Write the round's checkpoint, then let go of older ones; ``record``: the sha256 of the metrics."""
        round_ = merged.round
        content = {_STATE: weights.to_bytes(weights.flatten(state.groups()))}
        if isinstance(merged.clients, ClientTable):
            content[_CLIENTS] = merged.clients.data
            merged = replace(merged, clients={})
        manifest = Manifest(
            round=round_,
            metrics_sha256=record,
            merged=merged,
            files={name: files.sha256(data) for name, data in content.items()},
            memories=self.memories.index,
            own=self.own.entries(self.own.settled(round_, state)),
        )
        content["manifest.json"] = sealed(dump(manifest))
        files.write_dir(self.folder / f"round-{round_:04}", content)
        self._forget_old()

    def latest(self, require: Callable[[int, str], None] = lambda lines, record: None) -> Checkpoint | None:
        """Return the newest whole checkpoint; None if there never was one.

        A damaged one is named in a warning and passed over; if none is left, that is an error.

        Args:
            require: refuses a round whose record, so many lines with this sha256, is not there.
        """
        damage = []
        for folder in self._folders():
            try:
                manifest = _manifest(folder)
                state, merged = self._state(folder, manifest), _merged(folder, manifest)
                require(manifest.lines, manifest.metrics_sha256)
            except ModelRefused as error:
                damage.append(str(error))
                continue
            for text in damage:
                warnings.warn(f"{text} The checkpoint before it is used.", stacklevel=2)
            self.memories.index = dict(manifest.memories)
            return Checkpoint(manifest.round, state, merged)
        if damage:
            raise ModelRefused(f"no usable checkpoint is left. {damage[0]}")
        return None

    def forget_after(self, round_: int) -> None:
        """Let go of later rounds, which will be done again: beside them a lower number is not the newest."""
        for folder in self._folders():
            if _number(folder) > round_:
                shutil.rmtree(folder)

    def _state(self, folder: Path, manifest: Manifest) -> ServerState:
        """Read the state, and verify the memories."""
        try:
            tensors = read_tensors(folder / _STATE, manifest.files.get(_STATE))
            for entry in manifest.memories.values():
                read_tensors(self.memories.path(entry), entry.sha256)
            return ServerState.of(weights.unflatten(tensors), self.own.read(manifest.own))
        except ValueError as error:
            raise ModelRefused(f"{folder / 'manifest.json'} is not a checkpoint's manifest.") from error

    def _folders(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        rounds = [path for path in self.folder.glob("round-*") if path.name[6:].isdecimal()]
        return sorted(rounds, key=_number, reverse=True)

    def _forget_old(self) -> None:
        folders = self._folders()
        for folder in folders[_KEEP:]:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            manifests = [_manifest(folder) for folder in folders[:_KEEP]]
        except ModelRefused:
            return  # externally corrupted: keep the files that it may refer to
        self.memories.keep_only({entry.file for one in manifests for entry in one.memories.values()})
        self.own.keep_only({entry.file for one in manifests for entry in one.own.values()})


def _number(folder: Path) -> int:
    return int(folder.name[6:])


def _manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    try:
        manifest = convert(_with_domains(unsealed(files.read_bytes(path, LARGEST))), Manifest)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise ModelRefused(f"{path} is not the manifest of its round ({error}).") from error
    if manifest.round != _number(folder):
        raise ModelRefused(f"{path} is not the manifest of its round.")
    return manifest


def _with_domains(manifest: dict[str, object]) -> dict[str, object]:
    """Return a manifest whose clients have the domain "", which those of earlier versions leave out."""
    merged = manifest.get("merged")
    clients = merged.get("clients") if isinstance(merged, dict) else None
    for row in clients.values() if isinstance(clients, dict) else ():
        if isinstance(row, dict):
            row.setdefault("domain", "")
    return manifest


def _merged(folder: Path, manifest: Manifest) -> MergedRound | None:
    """Return what a round left, with the clients that its manifest leaves to a file."""
    if manifest.merged is None or _CLIENTS not in manifest.files:
        return manifest.merged
    path = folder / _CLIENTS
    try:
        data = files.read_verified(path, manifest.files[_CLIENTS], _LARGEST)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read ({error.strerror}).") from error
    if data is None:
        raise ModelRefused(f"{path} is not what it was when its round was saved.")
    return replace(manifest.merged, clients=ClientTable(data))
