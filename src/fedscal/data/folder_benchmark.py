"""A user's folder as a benchmark: its domains are sub-folders, its classes the folders inside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from fedscal import files
from fedscal.data.benchmark import Benchmark
from fedscal.data.decode import SIDE as SQUARE
from fedscal.data.decoded import Decoded, decoded, refuse_bad
from fedscal.data.folders import Tree, scan
from fedscal.data.pixels import MappedImages
from fedscal.data.views import AugmentedViews
from fedscal.errors import DataRefused

_SIDE = 224
PHOTOGRAPHS = AugmentedViews(
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    crop_area=(0.08, 1.0),
    crop_aspect=(3 / 4, 4 / 3),
    flip=True,
    side=_SIDE,
)
"""The paper's views: ImageNet's normalisation, random resized crops of 224 from 256, mirrored."""


@lru_cache(maxsize=8)
def folder_benchmark(root: str, skip_bad: bool = False, side: int = 0) -> Benchmark:
    """Return the benchmark of a folder; the folder is read once a process.

    Args:
        root: the folder.
        skip_bad: leave out files that cannot be read.
        side: the side of the images that a network sees; 0: 224.
    """
    side = side or _SIDE
    tree = scan(Path(root))
    _check_classes(tree)
    return Benchmark(
        name=root,
        title=Path(root).name,
        classes=tree.classes,
        domains=tuple(tree.domains),
        shape=(3, side, side),
        views=replace(PHOTOGRAPHS, side=side),
        build=_not_built,
        version=1,
        packages=("pillow",),
        extra="folders",
        defaults={},
        folder=Folder(tree, skip_bad, margin(side)),
    )


def margin(side: int) -> int:
    """Return the side of the squares to decode for views of a side: 256 for 224, and in proportion."""
    return round(side * SQUARE / _SIDE)


def _not_built(domain: str) -> tuple[Tensor, Tensor]:
    raise AssertionError(f"the images of {domain} are decoded, not built")


def _check_classes(tree: Tree) -> None:
    """Refuse labelled domains that do not have the same classes: label 3 must mean the same everywhere."""
    named = {
        domain: {file.label for file in found if file.label is not None}
        for domain, found in tree.domains.items()
    }
    for domain, labels in named.items():
        absent = sorted(set(tree.classes) - labels)
        if labels and absent:
            raise DataRefused(
                f"{tree.root}: the domains have different classes; {domain} lacks {', '.join(absent[:5])}"
                + (f" and {len(absent) - 5} more." if len(absent) > 5 else ".")
            )


class Folder:
    """The images of a folder, decoded once, with the labels that its folders name."""

    def __init__(self, tree: Tree, skip_bad: bool, side: int, classes: Sequence[str] = ()) -> None:
        self.tree = tree
        self._skip_bad = skip_bad
        self._side = side
        self._classes = tuple(classes) or tree.classes

    def ordered(self, classes: Sequence[str]) -> Folder:
        """Return the same images with labels numbered as a model numbers its classes."""
        return Folder(self.tree, self._skip_bad, self._side, classes)

    def decoded(self, domain: str, done: Callable[[], None] = lambda: None) -> Decoded:
        """Return a domain's decoded images; broken files are refused or left out, as asked."""
        found = decoded(self.tree.domains[domain], self._side, done)
        refuse_bad(found, self._skip_bad)
        return found

    def images(self, domain: str) -> MappedImages:
        """Return the images of a domain, on disk."""
        return self.decoded(domain).images

    def labels(self, domain: str) -> Tensor | None:
        """Return the labels of a domain in the order of its images; None if its folders name none."""
        number = {name: index for index, name in enumerate(self._classes)}
        found = [file.label for file in self.decoded(domain).files]
        known = [number[label] for label in found if label is not None]
        return torch.tensor(known) if len(known) == len(found) else None

    def digest(self) -> str:
        """Return one hash for all images and labels of the folder."""
        content = {
            domain: [(sha, file.label) for sha, file in zip(found.hashes, found.files, strict=True)]
            for domain in self.tree.domains
            for found in [self.decoded(domain)]
        }
        return files.sha256(json.dumps([self._classes, content], sort_keys=True).encode())
