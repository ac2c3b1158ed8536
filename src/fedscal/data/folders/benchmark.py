"""A user's folder as a benchmark: its domains are sub-folders, its classes the folders inside them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core import files
from fedscal.core.errors import DataRefused, UsageError, nearest, shown, some
from fedscal.core.lazy import torch
from fedscal.core.types import Progress
from fedscal.data.benchmark import Benchmark
from fedscal.data.folders.decode import SIDE as SQUARE
from fedscal.data.folders.decoded import Decoded, changes, decoded, refuse_bad
from fedscal.data.folders.examine import findings
from fedscal.data.folders.lists import refuse_pickles
from fedscal.data.folders.scan import scan
from fedscal.data.folders.tree import Tree, as_one_domain, as_sites
from fedscal.data.pixels import MappedImages
from fedscal.data.views import AugmentedViews

if TYPE_CHECKING:
    from torch import Tensor

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
_LARGEST_LIST = 10_000_000
SUBSETS = {
    "domainnet-10": (
        *("bird", "feather", "headphones", "ice_cream", "teapot"),
        *("tiger", "whale", "windmill", "wine_glass", "zebra"),
    )
}
"""Named subsets; the ten classes of DomainNet are those of FedBN (Li et al., ICLR 2021)."""


def folder_benchmark(
    root: str, skip_bad: bool = False, side: int = 0, classes: str = "", source: str = ""
) -> Benchmark:
    """Return the benchmark of a folder as it is now; its options are those of ``registry.benchmark``.

    A side of 0 is 224. A folder named like the source, whose folders hold images, is that domain itself.
    """
    side = side or _SIDE
    tree = with_classes(as_one_domain(scan(Path(root)), source), classes)
    return Benchmark(
        name=root,
        title=Path(root).name,
        classes=tree.classes,
        domains=tuple(tree.domains),
        shape=(3, side, side),
        views=replace(PHOTOGRAPHS, side=side),
        build=_not_built,
        version=1,
        defaults={},
        folder=Folder(tree, skip_bad, margin(side)),
    )


def margin(side: int) -> int:
    """Return the side of the squares to decode for views of a side: 256 for 224, and in proportion."""
    return round(side * SQUARE / _SIDE)


def _not_built(domain: str) -> tuple[Tensor, Tensor]:
    raise AssertionError(f"the images of {domain} are decoded, not built")


class Folder:
    """The images of a folder, decoded once, with the labels that its folders or lists name.

    The files are read once: later changes are not part of the run.
    """

    def __init__(self, tree: Tree, skip_bad: bool, side: int) -> None:
        self.tree = tree
        self._skip_bad = skip_bad
        self._side = side
        self._classes = tree.classes
        self._decoded: dict[str, Decoded] = {}

    @property
    def empty(self) -> tuple[str, ...]:
        """The folders that hold no image."""
        return self.tree.empty

    def ordered(self, classes: Sequence[str]) -> Folder:
        """Return the same images with labels numbered as a model numbers its classes."""
        other = copy.copy(self)
        other._classes = tuple(classes)
        return other

    def of_sites(self, classes: Sequence[str]) -> Folder:
        """Return the same images for a model; sites whose folders are none of its classes have no labels."""
        return Folder(as_sites(self.tree, classes), self._skip_bad, self._side)

    def prepare(self, progress: Progress | None = None) -> None:
        """Decode what is not in the cache; broken files are refused or skipped."""
        for domain in self.tree.domains:
            self.decoded(domain, progress)

    def decoded(self, domain: str, progress: Progress | None = None) -> Decoded:
        """Return a domain's decoded images."""
        if domain not in self._decoded:
            images = decoded(self.tree.domains[domain], self._side, progress, domain)
            refuse_bad(images, self._skip_bad)
            self._decoded[domain] = images
        return self._decoded[domain]

    def images(self, domain: str) -> MappedImages:
        """Return the images of a domain, on disk."""
        return self.decoded(domain).images

    def file_name(self, domain: str, row: int) -> str:
        """Return the file of an image, from its domain's folder on."""
        path, folder = self.decoded(domain).files[row].path, self.tree.root / domain
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name

    def labels(self, domain: str) -> Tensor | None:
        """Return the labels of a domain in the order of its images; None if it has none."""
        number = {name: index for index, name in enumerate(self._classes)}
        names = [file.label for file in self.decoded(domain).files]
        numbers = [number[label] for label in names if label is not None]
        return torch.tensor(numbers) if len(numbers) == len(names) else None

    def digest(self) -> str:
        """Return one hash for all images, at the size that they have here, and labels of the folder."""
        content = {
            domain: [(sha, file.label) for sha, file in zip(images.hashes, images.files, strict=True)]
            for domain in self.tree.domains
            for images in [self.decoded(domain)]
        }
        return files.sha256(json.dumps([self._side, self._classes, content], sort_keys=True).encode())

    def keys(self) -> dict[str, str]:
        """Return the cache key of each domain's images."""
        return {domain: self.decoded(domain).key for domain in self.tree.domains}

    def changes(self, keys: Mapping[str, str]) -> list[str]:
        """Name the files that changed since the images under these keys were decoded."""
        pairs = [(key, self.decoded(domain)) for domain, key in keys.items() if domain in self.tree.domains]
        return [change for key, images in pairs for change in changes(key, images)]

    def warnings(self) -> list[str]:
        """Say what is odd about the images, though they can be used."""
        images = {domain: self.decoded(domain) for domain in self.tree.domains}
        return list(findings(self.tree, images).warnings())

    def require_same_classes(self) -> None:
        """Refuse labelled domains whose classes differ: label 3 must mean the same in all."""
        for domain, images in self.tree.domains.items():
            named = {file.label for file in images if file.label is not None}
            absent = sorted(set(self.tree.classes) - named)
            if named and absent:
                raise DataRefused(
                    f"{self.tree.root}: the domains have different classes; {domain} lacks {some(absent, 5)}."
                )


def chosen_classes(choice: str) -> tuple[str, ...]:
    """Return the classes of a named subset, or of a text file with one class per line."""
    if choice in SUBSETS:
        return SUBSETS[choice]
    path = Path(choice)
    refuse_pickles(path)
    if not path.is_file():
        raise UsageError(
            f"classes={shown(choice)}: neither a file with one class per line nor a subset; known: "
            f"{', '.join(SUBSETS)}"
        )
    try:
        lines = files.read_bytes(path, _LARGEST_LIST).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"classes={shown(choice)} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"classes={shown(choice)}: the file is not UTF-8 text.") from error
    classes = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not classes:
        raise UsageError(f"classes={shown(choice)}: the file names no class.")
    return classes


def with_classes(tree: Tree, choice: str) -> Tree:
    """Return the images of the chosen classes only; all if none are chosen."""
    if not choice:
        return tree
    chosen, classes = chosen_classes(choice), tree.classes
    for domain, images in tree.domains.items():
        if images[0].label is None:
            raise DataRefused(f"{domain} of {tree.root} has no classes for classes={choice} to choose from.")
    for name in chosen:
        if name not in classes:
            raise DataRefused(
                f"{tree.root} has no class '{shown(name)}' of classes={shown(choice)}{nearest(name, classes)}"
            )
    domains = {
        domain: tuple(file for file in images if file.label in chosen)
        for domain, images in tree.domains.items()
    }
    without = tuple(domain for domain, images in domains.items() if not images)
    return replace(tree, domains={d: f for d, f in domains.items() if f}, empty=(*tree.empty, *without))
