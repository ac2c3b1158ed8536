"""Rows of images: cut into the clients' shards, and read from a mapped file one batch at a time."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core.errors import UsageError
from fedscal.core.lazy import np, torch
from fedscal.core.types import Images

if TYPE_CHECKING:
    from torch import Tensor

_MOST_MAPPED = 64_000_000
"""Bytes to read before their pages are released."""


def shards(count: int, parts: int, generator: torch.Generator) -> list[Tensor]:
    """Cut the rows 0..count-1 at random into ``parts`` shards whose sizes differ by at most one.

    The cut uses no labels. With more parts than rows the last shards are empty.
    """
    if parts < 1:
        raise UsageError(f"a domain cannot be cut into {parts} clients; give at least 1 client per domain.")
    return list(torch.randperm(count, generator=generator).tensor_split(parts))


def skewed_shards(labels: Tensor, parts: int, alpha: float, seed: int) -> list[Tensor]:
    """Cut rows so that the parts have unlike classes: shares of every class are drawn from Dirichlet(alpha).

    At a large alpha all parts are alike; at 0.1 a part has few classes, and may have no row at all.
    """
    draws = np.random.default_rng(seed)
    rows: list[list[Tensor]] = [[] for _ in range(parts)]
    for label in sorted(set(labels.tolist())):
        members = torch.from_numpy(draws.permutation((labels == label).nonzero().flatten().numpy()))
        ends = np.cumsum(draws.dirichlet([alpha] * parts)) * len(members)
        pieces = members.tensor_split(torch.from_numpy(ends[:-1].round().astype(np.int64)))
        for part, piece in zip(rows, pieces, strict=True):
            part.append(piece)
    return [torch.cat(part).sort().values for part in rows]


def take(images: Images, rows: Tensor) -> Images:
    """Return some of the images; those on disk stay there."""
    return images.part(rows) if isinstance(images, MappedImages) else images[rows]


class _MappedFile:
    """A file of images (n, C, H, W) or features of them, in as little main memory as its readers need.

    Pages that were read count as the process's memory until they are released; the system's file cache
    keeps them all the same.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._pixels = torch.frombuffer(self._map, dtype=dtype).view(shape)
        self._read = 0

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: Tensor) -> Tensor:
        batch = self._pixels[rows]
        self._read += batch.nbytes
        if self._read > _MOST_MAPPED and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        return batch


class MappedImages:
    """Some rows of a file of images or features; a batch is read when it is indexed."""

    def __init__(self, file: Tensor | _MappedFile, rows: Tensor | None = None) -> None:
        self._file = file
        self._rows = torch.arange(len(file)) if rows is None else rows

    @classmethod
    def open(cls, path: Path, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> MappedImages:
        """Map a file that holds numbers of this shape and type, uint8 if not given, and nothing else."""
        return cls(_MappedFile(path, shape, dtype or torch.uint8))

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
