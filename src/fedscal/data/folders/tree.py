"""The contents of a user's folder: image files by domain, with their classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Suffixes, in lower case, of image files; other files are counted and skipped."""


@dataclass(frozen=True)
class File:
    """An image file, and the class that its folder or its list names, if any."""

    path: Path
    label: str | None


@dataclass(frozen=True)
class Tree:
    """The contents of a folder.

    Attributes:
        root: the folder that holds the domains.
        domains: the files of each of its domains, sorted.
        others: how many files were skipped because their suffix is no image's.
        hidden: how many hidden files and folders were skipped.
        empty: the folders that hold no image.
    """

    root: Path
    domains: Mapping[str, tuple[File, ...]]
    others: int = 0
    hidden: int = 0
    empty: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, sorted; empty if there are none."""
        return tuple(
            sorted({f.label for files in self.domains.values() for f in files if f.label is not None})
        )


def as_one_domain(tree: Tree, name: str) -> Tree:
    """Read an unlabelled folder whose own name is the source's as one domain; its folders are the classes."""
    if tree.classes or name != tree.root.name or name in tree.domains:
        return tree
    files = tuple(File(file.path, label) for label, images in tree.domains.items() for file in images)
    return replace(tree, domains={name: files})


def looks_like_an_image(name: str) -> bool:
    """Whether a name has an image's suffix."""
    return Path(name).suffix.lower() in IMAGES
