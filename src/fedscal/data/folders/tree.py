"""The contents of a user's folder: image files by domain, with their classes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fedscal.core.extras import advice
from fedscal.core.lazy import features
from fedscal.data.folders import dicom

_IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Suffixes, in lower case, of image files; other files are counted and skipped."""
_CONVERTED = "convert them to PNG or JPEG"
FOREIGN = {
    **dict.fromkeys(dicom.SUFFIXES, f"{advice('dicom')} reads DICOM, or {_CONVERTED}: dcmj2pnm of DCMTK"),
    ".heic": f"{_CONVERTED}: heif-convert of libheif",
    ".heif": f"{_CONVERTED}: heif-convert of libheif",
    ".avif": f"a newer Pillow reads AVIF (pip install --upgrade pillow), or {_CONVERTED}: avifdec of libavif",
}
"""Suffixes of images that are not read everywhere, and how they can be used where they are not."""


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

    >>> list(told_foreign({".heic": 2}))
    ['2 files end in .heic and are not read; convert them to PNG or JPEG: heif-convert of libheif']
    """
    for suffix, count in sorted(foreign.items()):
        start = f"1 file ends in {suffix} and is" if count == 1 else f"{count} files end in {suffix} and are"
        yield f"{start} not read; {FOREIGN[suffix]}"


def looks_like_an_image(name: str) -> bool:
    """Whether a name has the suffix of an image that is read here."""
    return Path(name).suffix.lower() in read_here()


@cache
def read_here() -> frozenset[str]:
    """Return the suffixes of the images that are read here: of all, and of what is installed beside them."""
    avif = {".avif"} if features.check("avif") else set()
    return _IMAGES | avif | (set(dicom.SUFFIXES) if find_spec("pydicom") else set())
