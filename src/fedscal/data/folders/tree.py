"""What was found below a user's folder: image files, domain by domain, and what says their classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Endings, in lower case, of files that are taken for images; others are counted and passed over."""


@dataclass(frozen=True)
class File:
    """An image file, and the class that its folder or its list names; None where nothing does."""

    path: Path
    label: str | None


@dataclass(frozen=True)
class Tree:
    """What was found below a folder.

    Attributes:
        root: the folder that holds the domains.
        domains: the files of each of its domains, sorted.
        others: how many files were passed over because their ending is no image's.
        hidden: how many hidden files and folders were not looked at.
        empty: the folders that hold no image.
    """

    root: Path
    domains: Mapping[str, tuple[File, ...]]
    others: int = 0
    hidden: int = 0
    empty: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, sorted; empty if nothing names any."""
        return tuple(
            sorted({f.label for files in self.domains.values() for f in files if f.label is not None})
        )


def as_one_domain(tree: Tree, name: str) -> Tree:
    """Read an unlabelled folder that is asked for by its own name as one domain whose folders are classes."""
    if tree.classes or name != tree.root.name or name in tree.domains:
        return tree
    files = tuple(File(file.path, label) for label, found in tree.domains.items() for file in found)
    return replace(tree, domains={name: files})


def looks_like_an_image(name: str) -> bool:
    """Whether a name ends like an image's."""
    return Path(name).suffix.lower() in IMAGES
