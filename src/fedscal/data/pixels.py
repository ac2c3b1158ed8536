"""Images that stay on disk: rows of a memory-mapped file, read when a batch asks for them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core.lazy import torch
from fedscal.core.types import Images

if TYPE_CHECKING:
    from torch import Tensor

_KEPT = 64_000_000
"""Bytes that may be read before the pages that hold them are given back."""


def take(images: Images, rows: Tensor) -> Images:
    """Return some of the images; those on disk stay there."""
    return images.part(rows) if isinstance(images, MappedImages) else images[rows]


class _MappedFile:
    """A file of uint8 images of shape (n, C, H, W), in as little main memory as its readers need.

    A page that was read once would stay in the process's memory for as long as the system has room, and
    look as if the images had been loaded. Given back, it is still in the system's own cache of the file.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int, int]) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._pixels = torch.frombuffer(self._map, dtype=torch.uint8).view(shape)
        self._read = 0

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: Tensor) -> Tensor:
        taken = self._pixels[rows]
        self._read += taken.numel()
        if self._read > _KEPT and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        return taken


class MappedImages:
    """Some rows of a file of uint8 images; nothing is read until it is asked for."""

    def __init__(self, file: Tensor | _MappedFile, rows: Tensor | None = None) -> None:
        self._file = file
        self._rows = torch.arange(len(file)) if rows is None else rows

    @classmethod
    def open(cls, path: Path, shape: tuple[int, int, int, int]) -> MappedImages:
        """Map a file that holds images of this shape, (n, C, H, W), and nothing else."""
        return cls(_MappedFile(path, shape))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self._file[self._rows[rows]]

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield all images in batches, one at a time in memory."""
        for rows in torch.split(self._rows, size):
            yield self._file[rows]

    def part(self, rows: Tensor) -> MappedImages:
        """Return some of the images, still on disk."""
        return MappedImages(self._file, self._rows[rows])
