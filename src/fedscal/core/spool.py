"""The models of one round, however many: the first ones in memory, the others in a file without a name.

They are added up when all are there, in the order of the clients, and never as they come: shares, screens and
robust rules need to know who replied, and a sum in another order has other bits. All that a sum needs at a
time is one tensor of one model. An exact sum that no order can move would save the disk, but only for
averages, at several times the work of each addition. The file has no name: a process that is killed leaves
none.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedscal.core import files
from fedscal.core.lazy import torch
from fedscal.core.types import Weights
from fedscal.core.weights import OnDisk, byte_count

if TYPE_CHECKING:
    from torch import Tensor

ROOM = 4 * 2**20
"""Bytes of models that a round keeps in memory: a few of a small network."""


@dataclass(frozen=True)
class Place:
    """Where a tensor begins in its model, and what it is."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


class Spool:
    """Keeps the models of one round until they are merged."""

    def __init__(self, folder: Path | None = None, room: int = ROOM) -> None:
        """Begin empty.

        Args:
            folder: where the file is made, if it is needed; the system's place for such files if not given.
            room: how many bytes of models stay in memory.
        """
        self._folder = folder
        self._left = room
        self._lock = threading.Lock()
        self._layouts: dict[tuple[tuple[str, tuple[int, ...], torch.dtype], ...], dict[str, Place]] = {}
        self._file: BinaryIO | None = None

    def keep(self, model: Weights) -> Weights:
        """Return the model itself while there is room in memory, then one that is read from the disk."""
        self._left -= byte_count(model)
        return model if self._left >= 0 else self._written(model)

    def read(self, position: int, dtype: torch.dtype, count: int) -> Tensor:
        """Return so many numbers from a position of the file; they are the caller's."""
        assert self._file, "a model says where it is only after it was written"
        buffer = bytearray(count * dtype.itemsize)
        with self._lock:
            self._file.seek(position)
            if self._file.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
                raise OSError(f"the models of this round in {self._folder} are no longer whole")
        return torch.frombuffer(buffer, dtype=dtype) if count else torch.empty(0, dtype=dtype)

    def _written(self, model: Weights) -> SpooledModel:
        layout = self._layout(model)
        with files.writing(self._folder or Path(tempfile.gettempdir()), byte_count(model)), self._lock:
            self._file = self._file or _nameless(self._folder)
            start = self._file.seek(0, 2)
            for tensor in model.values():
                self._file.write(_bytes(tensor))
        return SpooledModel(self, start, layout)

    def _layout(self, model: Weights) -> dict[str, Place]:
        """Return where the tensors of such a model are; all models of a kind share one."""
        kind = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in model.items())
        if kind not in self._layouts:
            start, layout = 0, {}
            for name, shape, dtype in kind:
                layout[name] = Place(start, shape, dtype)
                start += layout[name].count * dtype.itemsize
            self._layouts[kind] = layout
        return self._layouts[kind]


def _nameless(folder: Path | None) -> BinaryIO:
    return tempfile.TemporaryFile(dir=files.make_dir(folder) if folder else None)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


class SpooledModel(OnDisk):
    """A model in the file of a round, which may have thousands."""

    __slots__ = ("_layout", "_spool", "_start")

    def __init__(self, spool: Spool, start: int, layout: dict[str, Place]) -> None:
        self._spool, self._start, self._layout = spool, start, layout

    def __getitem__(self, name: str) -> Tensor:
        place = self._layout[name]
        return self.part(name, 0, place.count).reshape(place.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout)

    def __len__(self) -> int:
        return len(self._layout)

    @property
    def bytes(self) -> int:
        """How many bytes its tensors take."""
        return sum(place.count * place.dtype.itemsize for place in self._layout.values())

    def part(self, name: str, start: int, stop: int) -> Tensor:
        """Read only the numbers from ``start`` to ``stop``."""
        place = self._layout[name]
        first = min(start, place.count)
        stop = max(first, min(stop, place.count))
        position = self._start + place.start + first * place.dtype.itemsize
        return self._spool.read(position, place.dtype, stop - first)
