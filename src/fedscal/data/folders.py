"""Folders of images as users have them: which files there are, and what their folders say of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedscal.errors import DataRefused

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Endings, in lower case, of files that are taken for images; others are counted and passed over."""
_WRAPPERS = ("images",)
"""Office-31 keeps the classes of a domain one folder deeper, in ``images``."""


@dataclass(frozen=True)
class File:
    """An image file, and the class that its folder names; None where nothing does."""

    path: Path
    label: str | None


@dataclass(frozen=True)
class Tree:
    """What was found below a folder.

    Attributes:
        root: the folder.
        domains: the files of each of its sub-folders, sorted.
        others: how many files were passed over because their ending is no image's.
    """

    root: Path
    domains: Mapping[str, tuple[File, ...]]
    others: int

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, sorted; empty if the folders name none."""
        return tuple(
            sorted({f.label for files in self.domains.values() for f in files if f.label is not None})
        )


def scan(root: Path) -> Tree:
    """Read ``root/<domain>/<class>/*``, ``root/<domain>/images/<class>/*`` or ``root/<domain>/*``.

    Hidden files and folders are not seen. Images may lie deeper inside a class.
    """
    if not root.is_dir():
        raise DataRefused(f"{root} is not a folder.")
    domains: dict[str, tuple[File, ...]] = {}
    others = 0
    for folder in _folders(root):
        files, passed = _domain(folder)
        others += passed
        if files:
            domains[folder.name] = files
    if not domains:
        raise DataRefused(
            f"{root} holds no images below its folders; expected {root}/<domain>/<class>/<image>, or "
            f"{root}/<site>/<image> without classes."
        )
    return Tree(root, domains, others)


def image_files(folder: Path) -> list[Path]:
    """Return every image file below a folder, in a fixed order."""
    return [path for path in _walk(folder) if path.suffix.lower() in IMAGES]


def _domain(folder: Path) -> tuple[tuple[File, ...], int]:
    """Return the files of a domain and the number of files passed over."""
    inner = [folder / name for name in _WRAPPERS if (folder / name).is_dir()]
    top = inner[0] if inner and not _own_images(folder) else folder
    found: list[File] = []
    others = 0
    for path in _walk(top):
        if path.suffix.lower() not in IMAGES:
            others += 1
            continue
        inside = path.relative_to(top).parts
        found.append(File(path, inside[0] if len(inside) > 1 else None))
    _same_kind(folder, found)
    return tuple(found), others


def _same_kind(folder: Path, files: list[File]) -> None:
    labelled = [file for file in files if file.label is not None]
    if labelled and len(labelled) < len(files):
        stray = next(file.path for file in files if file.label is None)
        raise DataRefused(
            f"{folder} holds class folders and also images beside them ({stray.name}): move these away, or "
            "all images into one folder if there are no labels."
        )


def _own_images(folder: Path) -> bool:
    return any(entry.suffix.lower() in IMAGES for entry in folder.iterdir())


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder in a fixed order, hidden ones aside."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(where) / name
