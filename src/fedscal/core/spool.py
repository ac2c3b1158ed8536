"""The models of one round, however many: the first ones in memory, the others in a file without a name.

They are added up when all are there, in the order of the clients, and never as they come: shares, screens and
robust rules need to know who replied, and a sum in another order has other bits. All that a sum needs at a
time is one tensor of one model, or several small ones that lie side by side. An exact sum that no order can
move would save the disk, but only for averages, at several times the work of each addition. The file has no
name: a process that is killed leaves none.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core import files
from fedscal.core.layout import LaidOut, Layout, Run, in_shape, numbers_of
from fedscal.core.lazy import torch
from fedscal.core.types import Weights
from fedscal.core.weights import OnDisk

if TYPE_CHECKING:
    from torch import Tensor

ROOM = 4 * 2**20
"""Bytes of models that a round keeps in memory: a few of a small network."""


class Spool:
    """Keeps the models of one round until they are merged."""

    def __init__(
        self, folder: Path | None = None, room: int = ROOM, *, spare: list[FileIO] | None = None
    ) -> None:
        """Begin empty.

        Args:
            folder: where the file is made, if it is needed; the system's place for such files if not given.
            room: how many bytes of models stay in memory.
            spare: files of earlier rounds that no model is in any more; this one's comes back to them. To
                write over a file takes a seventh of the time that the system needs to find new space for it.
        """
        self._folder = folder
        self._left = room
        self._lock = threading.Lock()
        self._spare = spare
        self._file: FileIO | None = None
        self._end = 0

    def keep(self, model: Weights) -> Weights:
        """Return the model itself while there is room in memory, then one that is read from the disk."""
        layout = Layout.of(model)
        self._left -= layout.bytes
        return model if self._left >= 0 else self._written(model, layout)

    def read(self, position: int, dtype: torch.dtype, count: int) -> Tensor:
        """Return so many numbers from a position of the file; they are the caller's."""
        assert self._file, "a model says where it is only after it was written"
        numbers = torch.empty(count, dtype=dtype)
        rest = _bytes(numbers)
        with self._lock:
            self._file.seek(position)
            while rest:
                done = self._file.readinto(rest)
                if not done:
                    raise OSError(f"the models of this round in {self._folder} are no longer whole")
                rest = rest[done:]
        return numbers

    def _written(self, model: Weights, layout: Layout) -> SpooledModel:
        with files.writing(self._folder or Path(tempfile.gettempdir()), layout.bytes), self._lock:
            self._file = self._file or self._opened()
            start = self._file.seek(self._end)
            for run in layout.runs:
                rest = _bytes(numbers_of(model, run))
                while rest:
                    rest = rest[self._file.write(rest) :]
            self._end += layout.bytes
        return SpooledModel(self, start, layout)

    def _opened(self) -> FileIO:
        file = self._spare.pop() if self._spare else _nameless(self._folder)
        if self._spare is not None:
            # Models hold on to their spool: when it goes, nobody can read the file any more.
            weakref.finalize(self, self._spare.append, file).atexit = False
        return file


def _nameless(folder: Path | None) -> FileIO:
    return tempfile.TemporaryFile(buffering=0, dir=files.make_dir(folder) if folder else None)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


class SpooledModel(LaidOut, OnDisk):
    """A model in the file of a round, which may have thousands."""

    __slots__ = ("_layout", "_spool", "_start")

    def __init__(self, spool: Spool, start: int, layout: Layout) -> None:
        self._spool, self._start, self._layout = spool, start, layout

    @property
    def layout(self) -> Layout:
        """How it lies in the file."""
        return self._layout

    def __getitem__(self, name: str) -> Tensor:
        place = self._layout.places[name]
        return in_shape(self.part(name, 0, place.count), place.shape)

    def part(self, name: str, start: int, stop: int) -> Tensor:
        """Read only the numbers from ``start`` to ``stop``."""
        place = self._layout.places[name]
        first = min(start, place.count)
        stop = max(first, min(stop, place.count))
        position = self._start + place.byte + first * place.dtype.itemsize
        return self._spool.read(position, place.dtype, stop - first)

    def run(self, run: Run) -> Tensor:
        """Read a run at once."""
        place = self._layout.places[run[0]]
        return self._spool.read(self._start + place.byte, place.dtype, self._layout.count(run))
