"""The contents of a user's folder: image files by domain, with their classes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Suffixes, in lower case, of image files; other files are counted and skipped."""

FOREIGN = {
    ".dcm": "DICOM: dcmj2pnm --write-png of DCMTK",
    ".heic": "HEIF: heif-convert of libheif",
    ".heif": "HEIF: heif-convert of libheif",
    ".avif": "AVIF: avifdec of libavif",
}
"""Suffixes of images that are not read here, and by what they are made into PNG or JPEG."""


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
        foreign: how many files of each suffix of ``FOREIGN`` were skipped.
        nested: the domains whose folders are taken for years or cameras of a site, and not for classes.
    """

    root: Path
    domains: Mapping[str, tuple[File, ...]]
    others: int = 0
    hidden: int = 0
    empty: tuple[str, ...] = ()
    foreign: Mapping[str, int] = field(default_factory=dict)
    nested: tuple[str, ...] = ()

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


def as_sites(tree: Tree, classes: Collection[str]) -> Tree:
    """Read domains without labels if none of their folders is called like one of a model's classes."""
    nested = tuple(
        name
        for name, files in tree.domains.items()
        if all(file.label is not None and file.label not in classes for file in files)
    )
    domains = {
        name: tuple(File(file.path, None) for file in files) if name in nested else files
        for name, files in tree.domains.items()
    }
    return replace(tree, domains=domains, nested=nested)


def told_foreign(foreign: Mapping[str, int]) -> Iterator[str]:
    """Say of image files that are not read how they could be.

    >>> list(told_foreign({".avif": 2}))
    ['2 files end in .avif and are not read; convert them to PNG or JPEG (AVIF: avifdec of libavif)']
    """
    for suffix, count in sorted(foreign.items()):
        start = f"1 file ends in {suffix} and is" if count == 1 else f"{count} files end in {suffix} and are"
        yield f"{start} not read; convert them to PNG or JPEG ({FOREIGN[suffix]})"


def looks_like_an_image(name: str) -> bool:
    """Whether a name has an image's suffix."""
    return Path(name).suffix.lower() in IMAGES
