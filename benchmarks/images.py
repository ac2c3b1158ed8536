"""What a folder of images costs: images a second from the cache, main memory, and the look at many files.

Run with ``make bench``, or ``python -m benchmarks.images``. Everything is drawn here and removed again. An
epoch from the mapped cache alternates with one that decodes every file anew with Pillow in torch's
DataLoader, as training scripts do; both give the same pixels to the same views. The median ratio is printed,
so that a busy machine slows both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedscal.core.rng import compute_threads, stream
from fedscal.core.types import Images
from fedscal.data.folders.benchmark import PHOTOGRAPHS
from fedscal.data.folders.decode import decode
from fedscal.data.folders.decoded import decoded
from fedscal.data.folders.scan import scan
from fedscal.data.folders.tree import File
from fedscal.data.pixels import MappedImages

_PHOTOS = 512
_BATCH = 64
_REPEATS = 3
_MANY = 20_000
_FILES = 100_000
_console = Console(width=120)


class _Files(Dataset[Tensor]):
    """Decodes a file whenever it is asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int) -> Tensor:
        return torch.from_numpy(decode(self._paths[row]))


def photograph(path: Path, number: int, size: tuple[int, int]) -> Path:
    """Draw smooth colours with some grain: it compresses about as well as a photograph."""
    random = np.random.default_rng(number)
    colours = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    smooth = np.asarray(colours.resize(size, Image.Resampling.BICUBIC), dtype=np.int16)
    grain = random.integers(-12, 13, smooth.shape, dtype=np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return path


def from_cache(images: Images) -> Iterator[Tensor]:
    """Yield an epoch's batches as a client takes them, in random order."""
    for rows in torch.split(torch.randperm(len(images)), _BATCH):
        yield images[rows]


def seconds(epoch: Iterator[Tensor], views: bool) -> float:
    """Return how long an epoch takes, with or without a weak view of every batch."""
    generator, started = stream(0, "bench"), time.perf_counter()
    for batch in epoch:
        if views:
            PHOTOGRAPHS.weak(batch, generator)
    return time.perf_counter() - started


def throughput(root: Path) -> Table:
    """Compare epochs from the cache with epochs that decode."""
    numbers = track(range(_PHOTOS), f"drawing {_PHOTOS} photographs", console=_console)
    paths = [photograph(root / "photographs" / f"{n}.jpg", n, (500, 375)) for n in numbers]
    images = decoded([File(path, None) for path in paths]).images
    table = Table(title=f"{_PHOTOS} JPEG photographs of 500 x 375, squares of 256, a thread for computing")
    for column in ("an epoch of", "decoded by", "images/s decoding", "images/s from the cache", "ratio"):
        table.add_column(column, justify="right")
    cases = [(views, workers) for views in (False, True) for workers in (0, 2)]
    for views, workers in track(cases, "reading", console=_console):
        loader = DataLoader(_Files(paths), batch_size=_BATCH, shuffle=True, num_workers=workers)
        seconds(from_cache(images), views)  # the second epoch counts
        pairs = [(seconds(iter(loader), views), seconds(from_cache(images), views)) for _ in range(_REPEATS)]
        anew, kept = (median(times) for times in zip(*pairs, strict=True))
        ratio = median(slow / fast for slow, fast in pairs)
        what = "pixels and weak views of 224" if views else "pixels"
        who = f"{workers} processes" if workers else "the same process"
        table.add_row(what, who, f"{_PHOTOS / anew:.0f}", f"{_PHOTOS / kept:.0f}", f"{ratio:.1f}")
    return table


def peak_memory(root: Path) -> str:
    """Decode many images and look at each once, in a process of its own; return a line about its memory."""
    drawn = [photograph(root / "drawn" / f"{n}.jpg", n, (256, 256)) for n in range(16)]
    (root / "many").mkdir()
    for number in range(_MANY):
        os.link(drawn[number % 16], root / "many" / f"{number}.jpg")
    program = [sys.executable, "-m", "benchmarks.images", str(root / "many")]
    with _console.status(f"going through {_MANY:,} images"):
        ended = subprocess.run(program, check=True, capture_output=True, text=True)
    start, peak = (int(word) / 1e6 for word in ended.stdout.split())
    size = _MANY * 3 * 256 * 256 / 1e9
    return (
        f"{_MANY:,} images of 256 x 256 ({size:.1f} GB of pixels), decoded and looked at once: peak memory "
        f"{peak:.2f} GB, {start:.2f} GB of it before the first image. Goal: at most 1.5 GB."
    )


def go_through(folder: Path) -> None:
    """Decode a folder, view every image once; print the memory (kB) before, and the peak."""
    start = _memory()
    images = decoded([File(path, None) for path in sorted(folder.iterdir())]).images
    assert isinstance(images, MappedImages)
    for batch in images.split(_BATCH):
        PHOTOGRAPHS.evaluate(batch)
    print(start, _memory())


def _memory() -> int:
    """Return the largest resident size of this process so far, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def index(root: Path) -> str:
    """Look at many files; return a line about the seconds."""
    Image.new("RGB", (2, 2)).save(root / "dot.png")
    dot = (root / "dot.png").read_bytes()
    for number in range(_FILES):
        folder = root / "tree" / f"domain {number % 4}" / f"class {number // 4 % 100}"
        if number < 400:
            folder.mkdir(parents=True)
        (folder / f"{number}.png").write_bytes(dot)
    started = time.perf_counter()
    tree = scan(root / "tree")
    scanned = time.perf_counter() - started
    with _console.status(f"decoding {_FILES:,} dots"):
        for files in tree.domains.values():
            decoded(files, side=8)
    started = time.perf_counter()
    for files in tree.domains.values():
        decoded(files, side=8)
    again = time.perf_counter() - started
    return (
        f"{_FILES:,} files: listed in {scanned:.1f} s, found again in the cache in {again:.1f} s. Goal: 30 s."
    )


def main() -> None:
    """Measure and print."""
    if len(sys.argv) > 1:
        go_through(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as name, compute_threads(1):
        root = Path(name)
        os.environ["FEDSCAL_CACHE"] = str(root / "cache")
        for measure in (throughput, peak_memory, index):
            _console.print(measure(root))


if __name__ == "__main__":
    main()
