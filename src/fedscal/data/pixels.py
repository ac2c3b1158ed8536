"""Images that stay on disk: rows of a memory-mapped file, read when a batch asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedscal.types import Images


def take(images: Images, rows: Tensor) -> Images:
    """Return some of the images; those on disk stay there."""
    return images.part(rows) if isinstance(images, MappedImages) else images[rows]


class MappedImages:
    """Some rows of a file of uint8 images; nothing is read until it is asked for."""

    def __init__(self, file: Tensor, rows: Tensor | None = None) -> None:
        self._file = file
        self._rows = torch.arange(len(file)) if rows is None else rows

    @classmethod
    def open(cls, path: Path, shape: tuple[int, int, int, int]) -> MappedImages:
        """Map a file that holds images of this shape, (n, C, H, W), and nothing else."""
        count = shape[0] * shape[1] * shape[2] * shape[3]
        return cls(torch.from_file(str(path), shared=False, size=count, dtype=torch.uint8).view(shape))

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
