"""The models of one round, however many: the first ones in memory, the others in a file without a name.

They are added up when all are there, in the order of the clients, and never as they come: shares, screens and
robust rules need to know who replied, and a sum in another order has other bits. All that a sum needs at a
time is one tensor of one model, or several small ones that lie side by side. An exact sum that no order can
move would save the disk, but only for averages, at several times the work of each addition. The file has no
name: a process that is killed leaves none.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedscal.core import files
from fedscal.core.lazy import torch
from fedscal.core.types import Weights
from fedscal.core.weights import OnDisk, run, runs

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


@dataclass(frozen=True)
class Layout:
    """How a model lies in the file: its runs one after the other, and so the tensors of each.

    Attributes:
        runs: tensors that are written and read together.
        places: where each tensor is, in the order of the model.
        bytes: how many there are.
    """

    runs: Sequence[Sequence[str]]
    places: Mapping[str, Place]
    bytes: int

    @classmethod
    def of(cls, model: Weights) -> Layout:
        """Lay out a model."""
        together, start = runs(model), 0
        places: dict[str, Place] = {}
        for name in itertools.chain.from_iterable(together):
            tensor = model[name]
            places[name] = Place(start, tuple(tensor.shape), tensor.dtype)
            start += places[name].count * tensor.element_size()
        return cls(together, {name: places[name] for name in model}, start)


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
        self._layouts: dict[tuple[tuple[str, torch.Size, torch.dtype], ...], Layout] = {}
        self._file: BinaryIO | None = None

    def keep(self, model: Weights) -> Weights:
        """Return the model itself while there is room in memory, then one that is read from the disk."""
        layout = self._layout(model)
        self._left -= layout.bytes
        return model if self._left >= 0 else self._written(model, layout)

    def read(self, position: int, dtype: torch.dtype, count: int) -> Tensor:
        """Return so many numbers from a position of the file; they are the caller's."""
        assert self._file, "a model says where it is only after it was written"
        numbers = torch.empty(count, dtype=dtype)
        with self._lock:
            self._file.seek(position)
            if self._file.readinto(_bytes(numbers)) != count * dtype.itemsize:  # type: ignore[attr-defined]
                raise OSError(f"the models of this round in {self._folder} are no longer whole")
        return numbers

    def _written(self, model: Weights, layout: Layout) -> SpooledModel:
        with files.writing(self._folder or Path(tempfile.gettempdir()), layout.bytes), self._lock:
            self._file = self._file or _nameless(self._folder)
            start = self._file.seek(0, 2)
            for names in layout.runs:
                self._file.write(_bytes(run(model, names)))
        return SpooledModel(self, start, layout)

    def _layout(self, model: Weights) -> Layout:
        """Return where the tensors of such a model are; all models of a kind share one."""
        kind = tuple((name, tensor.shape, tensor.dtype) for name, tensor in model.items())
        if kind not in self._layouts:
            self._layouts[kind] = Layout.of(model)
        return self._layouts[kind]


def _nameless(folder: Path | None) -> BinaryIO:
    return tempfile.TemporaryFile(dir=files.make_dir(folder) if folder else None)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


class SpooledModel(OnDisk):
    """A model in the file of a round, which may have thousands."""

    __slots__ = ("_layout", "_spool", "_start")

    def __init__(self, spool: Spool, start: int, layout: Layout) -> None:
        self._spool, self._start, self._layout = spool, start, layout

    def __getitem__(self, name: str) -> Tensor:
        place = self._layout.places[name]
        return self.part(name, 0, place.count).reshape(place.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.places)

    def __len__(self) -> int:
        return len(self._layout.places)

    @property
    def bytes(self) -> int:
        """How many bytes its tensors take."""
        return self._layout.bytes

    def part(self, name: str, start: int, stop: int) -> Tensor:
        """Read only the numbers from ``start`` to ``stop``."""
        place = self._layout.places[name]
        first = min(start, place.count)
        stop = max(first, min(stop, place.count))
        position = self._start + place.start + first * place.dtype.itemsize
        return self._spool.read(position, place.dtype, stop - first)

    def run(self, names: Sequence[str]) -> Tensor:
        """Read tensors that lie side by side at once."""
        if names not in self._layout.runs:
            return super().run(names)
        places = [self._layout.places[name] for name in names]
        count = sum(place.count for place in places)
        return self._spool.read(self._start + places[0].start, places[0].dtype, count)
