"""Decoded once: a folder's images as squares of pixels in one mapped file, found again by what was decoded.

The key is a hash of every file's place, size and time of change, so that a second run looks at the files'
entries only. The directory appears whole or not at all, and one process builds it while others wait.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from fedscal import files
from fedscal.data.decode import SIDE, Pixels, Unreadable, decode
from fedscal.data.folders import File
from fedscal.data.pixels import MappedImages
from fedscal.errors import DataRefused

_RULES = 1
"""To be raised whenever decoding gives other pixels."""
_NAMED = 20


@dataclass(frozen=True)
class Bad:
    """A file that is no usable image, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Decoded:
    """The images of some files.

    Attributes:
        images: the pixels, on disk.
        files: the files that they are from, in order.
        hashes: the sha256 of each file's bytes.
        bad: the files that were left out.
    """

    images: MappedImages
    files: Sequence[File]
    hashes: Sequence[str]
    bad: Sequence[Bad]


def decoded(found: Sequence[File], side: int = SIDE, done: Callable[[], None] = lambda: None) -> Decoded:
    """Return the decoded images of the files, from the cache if they are there.

    Args:
        found: the files.
        side: the side of the squares.
        done: called for every file that was decoded.
    """
    folder = files.cache_dir() / "images" / _key(found, side)
    with files.one_builder(folder.parent / f".{folder.name}"):
        if not (folder / "index.json").exists():
            _build(folder, found, side, done)
    rows = json.loads((folder / "index.json").read_bytes())
    pairs = list(zip(found, rows, strict=True))
    good = [(file, row["sha256"]) for file, row in pairs if row["bad"] is None]
    return Decoded(
        images=_mapped(folder, (len(good), 3, side, side)),
        files=[file for file, _ in good],
        hashes=[sha for _, sha in good],
        bad=[Bad(file.path, row["bad"]) for file, row in pairs if row["bad"] is not None],
    )


def refuse_bad(found: Decoded, skip: bool) -> None:
    """Refuse files that cannot be used, the first by name; if they may be skipped, only if none is left."""
    bad, total = found.bad, len(found.bad) + len(found.files)
    if not bad or (skip and found.files):
        return
    named = "; ".join(f"{one.path}: {one.reason}" for one in bad[:_NAMED])
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    raise DataRefused(
        f"{len(bad)} of {total} files cannot be used: {named}{more}. Mend them, or pass on_bad=skip."
    )


def _key(found: Sequence[File], side: int) -> str:
    sha = hashlib.sha256(f"rules {_RULES}, side {side}\n".encode())
    for file in found:
        try:
            entry = file.path.stat()
            seen = f"{entry.st_size} {entry.st_mtime_ns}"
        except OSError:
            seen = "unreadable"
        sha.update(f"{file.path.absolute()}\0{seen}\n".encode(errors="surrogateescape"))
    return sha.hexdigest()[:20]


def _build(folder: Path, found: Sequence[File], side: int, done: Callable[[], None]) -> None:
    """Decode all files into a new directory; an interrupted one is built again."""
    staging = folder.parent / f".{folder.name}" / "new"
    shutil.rmtree(staging, ignore_errors=True)
    files.make_dir(staging)
    with files.writing(staging, len(found) * 3 * side * side):
        rows: list[dict[str, str | None]] = []
        with (staging / "pixels.bin").open("wb") as out:
            for pixels, row in _each(found, side):
                if pixels is not None:
                    out.write(pixels.tobytes())
                rows.append(row)
                done()
        (staging / "index.json").write_text(json.dumps(rows))
        os.replace(staging, folder)


def _each(found: Sequence[File], side: int) -> Iterator[tuple[Pixels | None, dict[str, str | None]]]:
    """Decode in threads, Pillow works outside the interpreter's lock; yield in the order of the files."""
    ahead = 64
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(found), ahead):  # not all at once: pixels wait in memory
            yield from pool.map(lambda file: _one(file, side), found[start : start + ahead])


def _one(file: File, side: int) -> tuple[Pixels | None, dict[str, str | None]]:
    try:
        pixels = decode(file.path, side)
        return pixels, {"sha256": files.sha256(file.path.read_bytes()), "bad": None}
    except (Unreadable, OSError) as error:
        return None, {"sha256": None, "bad": str(error)}


def _mapped(folder: Path, shape: tuple[int, int, int, int]) -> MappedImages:
    path = folder / "pixels.bin"
    if path.stat().st_size != math.prod(shape):
        raise DataRefused(f"{folder} is damaged: its size is not that of {shape[0]} images. Remove it.")
    return MappedImages.open(path, shape) if shape[0] else MappedImages(torch.empty(shape, dtype=torch.uint8))
