"""Scan a user's folder: its image files, their domains and their classes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from fedscal.core.errors import DataRefused, UsageError
from fedscal.core.files import fault
from fedscal.data.folders.lists import list_files, read_lists, refuse_pickles
from fedscal.data.folders.tree import FOREIGN, File, Tree, looks_like_an_image, told_foreign

_WRAPPERS = ("images",)
"""Office-31 keeps the classes of a domain one folder deeper, in ``images``."""
_LITTER = "__MACOSX"
"""What archives that were packed on a Mac contain beside the data."""
_Passed = Counter[str]
"""How many files were skipped: ``hidden`` ones, images by a suffix of ``FOREIGN``, and ``others``."""


def scan(root: Path) -> Tree:
    """Read what is below a folder, whichever of these it holds.

    ``root/<domain>/<class>/*``, ``root/<domain>/images/<class>/*``, ``root/<domain>/*``, each also inside
    one more folder, or list files ``path label``. Hidden files and folders are skipped. Images may
    be deeper inside a class.
    """
    if not root.is_dir():
        raise DataRefused(fault(root, "folder", "is not a folder."))
    for folder in (root, _unwrapped(root)):
        lists = list_files(folder)
        if lists:
            return Tree(folder, read_lists(folder, lists))
    return _walked(folder)


def image_files(folder: Path) -> list[Path]:
    """Return every image file below a folder, in a fixed order."""
    return [path for path in _walk(folder, Counter()) if looks_like_an_image(path.name)]


def _walked(root: Path) -> Tree:
    passed: _Passed = Counter()
    folders = _folders(root, passed)
    _refuse_twice(folders)
    contents = {folder.name: _domain(folder, passed) for folder in folders}
    domains = {name: files for name, files in contents.items() if files}
    foreign = {suffix: passed[suffix] for suffix in FOREIGN if suffix in passed}
    if not domains:
        refuse_pickles(root)
        _refuse_foreign(root, foreign)
        raise DataRefused(
            f"{root} holds no images below its folders; expected {root}/<domain>/<class>/<image>, or "
            f"{root}/<site>/<image> without classes."
        )
    empty = tuple(name for name, files in contents.items() if not files)
    return Tree(root, domains, passed["others"], passed["hidden"], empty, foreign)


def _refuse_foreign(root: Path, foreign: Mapping[str, int]) -> None:
    for sentence in told_foreign(foreign):
        raise DataRefused(f"{root}: {sentence}.")


def _unwrapped(root: Path) -> Path:
    """Step into a lone folder that holds the domains, as archives are unpacked.

    It does if two folders in it have a folder of the same name: domains share their classes.
    """
    folders = _folders(root)
    if len(folders) != 1:
        return root
    inner = Counter(entry.name for domain in _folders(folders[0]) for entry in _folders(domain))
    return folders[0] if max(inner.values(), default=0) > 1 else root


def _refuse_twice(folders: list[Path]) -> None:
    """Refuse two names of one folder: its images would be two clients' or two domains'."""
    real: dict[Path, Path] = {}
    for folder in folders:
        other = real.setdefault(folder.resolve(), folder)
        if other != folder:
            raise UsageError(f"{other} and {folder} are the same folder: remove one of them.")


def _domain(folder: Path, passed: _Passed) -> tuple[File, ...]:
    """Return the files of a domain."""
    inner = [folder / name for name in _WRAPPERS if os.path.isdir(folder / name)]
    top = inner[0] if inner and not any(map(looks_like_an_image, os.listdir(folder))) else folder
    files: list[File] = []
    for path in _walk(top, passed):
        if not looks_like_an_image(path.name):
            suffix = path.suffix.lower()
            passed[suffix if suffix in FOREIGN else "others"] += 1
            continue
        inside = path.relative_to(top).parts
        files.append(File(path, inside[0] if len(inside) > 1 else None))
    _same_kind(folder, files)
    return tuple(files)


def _same_kind(folder: Path, files: list[File]) -> None:
    labelled = [file for file in files if file.label is not None]
    if labelled and len(labelled) < len(files):
        stray = next(file.path for file in files if file.label is None)
        raise DataRefused(
            f"{folder} holds class folders and also images beside them ({stray.name}): move these away, or "
            "all images into one folder if there are no labels."
        )


def _folders(root: Path, passed: _Passed | None = None) -> list[Path]:
    """Return the folders in a folder, sorted."""
    try:
        entries = sorted(root.iterdir())
    except OSError as error:
        _refuse(error)
    if passed is not None:
        passed["hidden"] += sum(_hidden(entry.name) for entry in entries)
    return [entry for entry in entries if not _hidden(entry.name) and entry.is_dir()]


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == _LITTER


def _walk(folder: Path, passed: _Passed) -> Iterator[Path]:
    """Yield every file below a folder in a fixed order, without hidden ones; links to folders are followed.

    A folder that is named like an image is yielded too, so that it is reported as bad.
    """
    visited: set[str] = set()
    for where, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(where)
        if real in visited:
            raise DataRefused(f"{where} leads to a folder that is there already, {real}: remove the link.")
        visited.add(real)
        passed["hidden"] += sum(map(_hidden, (*folders, *names)))
        odd = [name for name in folders if looks_like_an_image(name)]
        folders[:] = sorted(name for name in folders if not _hidden(name) and name not in odd)
        for name in sorted([*names, *odd]):
            if not _hidden(name):
                yield Path(where) / name


def _refuse(error: OSError) -> NoReturn:
    raise DataRefused(f"{error.filename} cannot be read: {error.strerror}.") from error
