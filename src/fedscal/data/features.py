"""Features of a frozen trunk: one pass for each image and view, kept in one mapped file per domain.

Where some of its last blocks are trained, maps (C, H, W) or tokens (places, width) are kept in their place.

A trunk that never changes gives the same features every time. So they take the place of the images: training
draws among the views that are kept, and passes through the small part of the network that it trains.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core import files
from fedscal.core.documents import read_json
from fedscal.core.lazy import torch
from fedscal.core.rng import stream
from fedscal.core.types import Images, Progress, Views
from fedscal.data.pixels import MappedImages

if TYPE_CHECKING:
    from torch import Tensor

_BATCH = 16
_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_BYTES = 4
_MADE_OF = "images.json"
Trunk = Callable[["Tensor"], "Tensor"]
"""From normalised images to features (n, width), or what else the first trained layer takes."""


def images_of(folder: Path) -> tuple[str, str]:
    """Return the name and the key of the images that kept features are of, as far as it is known."""
    try:
        noted = dict(read_json(folder / _MADE_OF))
    except (OSError, ValueError):
        return "", ""
    return str(noted.get("name", "")), str(noted.get("images", ""))


@dataclass(frozen=True)
class FeatureViews:
    """Views of kept features (n, 1 + count, ...): the images as they are, then strong views.

    The images as they are stand for the weak view: crops and mirrors moved these features too little to be
    worth a pass each (docs/methods.md).
    """

    count: int

    def evaluate(self, kept: Tensor) -> Tensor:
        """Return the features of the images as they are."""
        return kept[:, 0]

    def weak(self, kept: Tensor, generator: torch.Generator) -> Tensor:
        """Return the features of the images as they are; nothing is drawn."""
        return kept[:, 0]

    def strong(self, kept: Tensor, generator: torch.Generator) -> Tensor:
        """Return the features of one of each image's strong views."""
        drawn = 1 + torch.randint(self.count, (len(kept),), generator=generator)
        return kept[torch.arange(len(kept)), drawn]


@dataclass(frozen=True)
class FeatureBank:
    """Computes features, and keeps them in the cache.

    Attributes:
        trunk: the frozen network.
        shape: of what it makes of one view of an image.
        views: the views of the images that it sees.
        count: how many strong views of each image are kept.
        identity: all that decides its numbers but the images.
        trunk_sha256: the trunk's weights.
    """

    trunk: Trunk
    shape: tuple[int, ...]
    views: Views
    count: int
    identity: str
    trunk_sha256: str

    def features(self, images: Images, key: str, name: str, progress: Progress | None = None) -> MappedImages:
        """Return the features of the images of a key, from the cache if they are there."""
        shape = (len(images), 1 + self.count, *self.shape)
        folder = files.cache_dir("features", files.sha256(f"{self.identity} {key}".encode())[:20])
        path, size = folder / "features.bin", _BYTES * math.prod(shape)
        with files.one_builder(folder.parent / f".{folder.name}"):
            if not path.exists() or path.stat().st_size != size:
                files.check_room(folder.parent, size, f"the features of {name}")
                self._build(folder, images, name, progress, size)
                files.write_json(folder / _MADE_OF, {"name": name, "images": key})
        files.mark_used(folder)
        return MappedImages.open(path, shape, torch.float32)

    def _build(self, folder: Path, images: Images, name: str, progress: Progress | None, size: int) -> None:
        staging = folder.parent / f".{folder.name}" / "new"
        shutil.rmtree(staging, ignore_errors=True)
        files.make_dir(staging)
        if progress:
            progress.stage(f"features of {name}", len(images))
        with files.writing(staging, size):
            with (staging / "features.bin").open("wb") as out:
                for batch in self._batches(images):
                    out.write(batch.numpy().tobytes())
                    for _ in range(len(batch) if progress else 0):
                        assert progress
                        progress.advance()
                out.flush()
                os.fsync(out.fileno())
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(staging, folder)
            files.sync_dir(folder.parent)

    def _batches(self, images: Images) -> Iterator[Tensor]:
        """Compute batches side by side; yield them in order. Their cut is fixed, and so are the bits."""
        numbered = enumerate(images.split(_BATCH))
        with ThreadPoolExecutor(_THREADS, initializer=lambda: torch.set_num_threads(1)) as pool:
            while some := list(islice(numbered, 2 * _THREADS)):
                yield from pool.map(lambda entry: self._batch(*entry), some)

    def _batch(self, number: int, images: Tensor) -> Tensor:
        draws = stream(0, "feature-views", number)
        seen = [self.views.evaluate(images)]
        seen += [self.views.strong(images, draws) for _ in range(self.count)]
        with torch.inference_mode():
            return torch.stack([self.trunk(view).float().cpu() for view in seen], dim=1)
