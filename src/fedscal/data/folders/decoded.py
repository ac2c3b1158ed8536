"""The cache of decoded images: squares of pixels in one mapped file per domain.

The key is a hash of every file's path, size and modification time, so a second run only stats the files.
The directory is written atomically, by one process while others wait.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fedscal.core import files
from fedscal.core.convert import convert, dump
from fedscal.core.documents import read_json
from fedscal.core.errors import DataRefused, some
from fedscal.core.lazy import np, torch
from fedscal.core.types import Progress
from fedscal.data.folders.decode import SIDE, Pixels, Unreadable, decode
from fedscal.data.folders.tree import File
from fedscal.data.pixels import MappedImages

_RULES = 2
"""To be raised whenever decoding gives other pixels, or other rows of the index."""
_NAMED = 20
_AHEAD = 64
"""Decoded images that wait in memory to be written."""


@dataclass(frozen=True)
class _Row:
    """A file in the index: its hash if it is a usable image, else what is wrong with it."""

    path: str
    sha256: str | None
    even: bool
    bad: str | None


@dataclass(frozen=True)
class Bad:
    """A file that is no usable image, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Decoded:
    """The images of some files.

    Attributes:
        key: their cache key.
        images: the pixels, on disk.
        files: the files that they are from, in order.
        hashes: the sha256 of each file's bytes.
        even: how many of them are of a single colour.
        bad: the files that were left out.
    """

    key: str
    images: MappedImages
    files: Sequence[File]
    hashes: Sequence[str]
    even: int
    bad: Sequence[Bad]


def decoded(
    sources: Sequence[File], side: int = SIDE, progress: Progress | None = None, name: str = "images"
) -> Decoded:
    """Return the files as decoded squares, from the cache if they are there; ``name`` is for the progress."""
    folder = files.cache_dir("images", _key(sources, side))
    with files.one_builder(folder.parent / f".{folder.name}"):
        if not (folder / "index.json").exists():
            _build(folder, sources, side, progress, name)
    files.mark_used(folder)
    pairs = list(zip(sources, _index(folder), strict=True))
    good = [(file, row) for file, row in pairs if row.bad is None]
    return Decoded(
        key=folder.name,
        images=_mapped(folder, (len(good), 3, side, side)),
        files=[file for file, _ in good],
        hashes=[row.sha256 or "" for _, row in good],
        even=sum(row.even for _, row in good),
        bad=[Bad(file.path, row.bad) for file, row in pairs if row.bad is not None],
    )


def refuse_bad(images: Decoded, skip: bool) -> None:
    """Refuse unusable files by name; if they may be skipped, only if no image is left."""
    bad, total = images.bad, len(images.bad) + len(images.files)
    if not bad or (skip and images.files):
        return
    named = some([f"{file.path}: {file.reason}" for file in bad], _NAMED, "; ")
    raise DataRefused(f"{len(bad)} of {total} files cannot be used: {named}. Mend them, or pass on_bad=skip.")


def changes(key: str, now: Decoded) -> Iterator[str]:
    """Name the files that changed since the images under a key were decoded.

    Names none if those images are no longer in the cache.
    """
    try:
        before = {row.path: row.sha256 for row in _index(files.cache_dir("images", key))}
    except OSError:
        return
    after: dict[str, str | None] = {str(bad.path.absolute()): None for bad in now.bad}
    after |= {str(f.path.absolute()): sha for f, sha in zip(now.files, now.hashes, strict=True)}
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            yield f"{path} is gone"
        elif path not in before:
            yield f"{path} is new"
        elif before[path] != after[path]:
            yield f"{path} was changed"


def made_from(folder: Path) -> tuple[str, bool]:
    """Return the folder that cached images are from, and whether its files would find them again."""
    try:
        rows, size = _index(folder), (folder / "pixels.bin").stat().st_size
    except (OSError, DataRefused):
        return "", False
    good = sum(row.bad is None for row in rows)
    side = math.isqrt(size // (3 * good)) if good else 0
    where = os.path.commonpath([os.path.dirname(row.path) for row in rows]) if rows else ""
    return where, folder.name == _key([File(Path(row.path), None) for row in rows], side)


def known_hashes(key: str) -> frozenset[str] | None:
    """Return the sha256 of the files whose images are under a key; None if the cache does not have them."""
    try:
        rows = _index(files.cache_dir("images", key))
    except (OSError, DataRefused):
        return None
    return frozenset(row.sha256 for row in rows if row.sha256)


def _index(folder: Path) -> tuple[_Row, ...]:
    path = folder / "index.json"
    try:
        return convert(read_json(path), tuple[_Row, ...])
    except ValueError as error:
        raise DataRefused(f"{path} is damaged: {error}. Remove {folder}.") from error


def _key(sources: Sequence[File], side: int) -> str:
    sha = hashlib.sha256(f"rules {_RULES}, side {side}\n".encode())
    for file in sources:
        try:
            entry = file.path.stat()
            state = f"{entry.st_size} {entry.st_mtime_ns}"
        except OSError:
            state = "unreadable"
        sha.update(f"{file.path.absolute()}\0{state}\n".encode(errors="surrogateescape"))
    return sha.hexdigest()[:20]


def _build(folder: Path, sources: Sequence[File], side: int, progress: Progress | None, name: str) -> None:
    """Decode all files into a new directory; an interrupted one is built again."""
    staging = folder.parent / f".{folder.name}" / "new"
    shutil.rmtree(staging, ignore_errors=True)
    files.make_dir(staging)
    if progress:
        progress.stage(f"decoding {name}", len(sources))
    with files.writing(staging, len(sources) * 3 * side * side):
        rows: list[_Row] = []
        with (staging / "pixels.bin").open("wb") as out:
            for pixels, row in _decode_all(sources, side):
                if pixels is not None:
                    out.write(pixels.tobytes())
                rows.append(row)
                if progress:
                    progress.advance()
            out.flush()
            os.fsync(out.fileno())
        files.write_bytes(staging / "index.json", json.dumps([dump(row) for row in rows]).encode())
        os.replace(staging, folder)
        files.sync_dir(folder.parent)


def _decode_all(sources: Sequence[File], side: int) -> Iterator[tuple[Pixels | None, _Row]]:
    """Decode in threads (Pillow releases the GIL); yield in the order of the files."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(sources), _AHEAD):
            yield from pool.map(lambda file: _decode_file(file, side), sources[start : start + _AHEAD])


def _decode_file(file: File, side: int) -> tuple[Pixels | None, _Row]:
    path = str(file.path.absolute())
    try:
        pixels = decode(file.path, side)
        even = bool((np.ptp(pixels, axis=(1, 2)) == 0).all())
        return pixels, _Row(path, files.sha256_of(file.path), even, None)
    except (Unreadable, OSError) as error:
        return None, _Row(path, None, False, str(error))


def _mapped(folder: Path, shape: tuple[int, int, int, int]) -> MappedImages:
    path = folder / "pixels.bin"
    if path.stat().st_size != math.prod(shape):
        raise DataRefused(f"{folder} is damaged: its size is not that of {shape[0]} images. Remove it.")
    return MappedImages.open(path, shape) if shape[0] else MappedImages(torch.empty(shape, dtype=torch.uint8))
