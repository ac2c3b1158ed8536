"""List files: lines ``path label`` that name the images, as DomainNet and others have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedscal.core.errors import DataRefused
from fedscal.core.files import read_bytes
from fedscal.data.folders.tree import File, looks_like_an_image

_LINE = re.compile(r"(?P<path>\S.*?)\s+(?P<label>\d{1,9})\s*")
_PART = re.compile(r"[_-](train|test|val|list)$")
"""Endings of lists that are one part of a domain; the parts are joined."""
_LONGEST = 4096
_LARGEST = 500_000_000
"""Most bytes of a list: ten times the largest of a known data set."""


@dataclass(frozen=True)
class _Entry:
    """A line of a list: an image, the number of its class, and where that was read."""

    path: Path
    number: int
    where: str


def list_files(root: Path) -> list[Path]:
    """Return the list files in a folder and right below it, sorted."""
    paths = [path for pattern in ("*.txt", "*/*.txt") for path in root.glob(pattern)]
    shown = [p for p in paths if not any(part.startswith(".") for part in p.relative_to(root).parts)]
    return sorted(filter(_is_list, shown))


def read_lists(root: Path, lists: Sequence[Path]) -> dict[str, tuple[File, ...]]:
    """Return the images that the lists name, by domain and sorted; each file once.

    A list inside a folder of images, with paths relative to it, is that folder's. Any other list names its
    domain (``clipart_train.txt`` and ``clipart_test.txt`` are clipart), and its paths begin at the root.
    """
    domains: dict[str, list[_Entry]] = {}
    for path in lists:
        lines = list(_lines(path))
        inside = path.parent != root and (path.parent / lines[0][1]).exists()
        base = path.parent if inside else root
        domain = path.parent.name if inside else _PART.sub("", path.stem)
        entries = [_Entry(base / name, number, f"{path}, line {line}") for line, name, number in lines]
        domains.setdefault(domain, []).extend(entries)
    names = _class_names(domains.values())
    return {domain: _files(domains[domain], names) for domain in sorted(domains)}


def refuse_pickles(path: Path) -> None:
    """Refuse pickles, which may hold code, and say what to do instead."""
    if path.suffix == ".pkl" or (path.is_dir() and any(path.glob("*.pkl"))):
        raise DataRefused(
            f"{path}: lists in .pkl files are not read, for a pickle may run code; give the folder of the "
            "images, and classes=domainnet-10 for FedBN's ten classes."
        )


def _is_list(path: Path) -> bool:
    """Whether the first line names an image and a number."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        match = _LINE.fullmatch(file.readline(_LONGEST))
    return match is not None and looks_like_an_image(match["path"])


def _lines(path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield line number, path and label of every line that is not blank."""
    try:
        text = read_bytes(path, _LARGEST).decode("utf-8-sig")
    except OSError as error:
        raise DataRefused(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataRefused(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match:
            yield number, match["path"], int(match["label"])
        elif line.strip():
            raise DataRefused(f"{path}, line {number}: expected 'path label', found '{line[:80]}'.")


def _class_names(domains: Iterable[Sequence[_Entry]]) -> Mapping[int, str]:
    """Return the class name of each number: the folder of its images, the same in all lists.

    Where all images of a domain are in one folder, the folder is not a class.
    """
    names: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for entries in domains:
        if len({entry.path.parent for entry in entries}) == 1:
            continue
        for entry in entries:
            folder = entry.path.parent.name
            name, number = names.setdefault(entry.number, folder), numbers.setdefault(folder, entry.number)
            if (name, number) != (folder, entry.number):
                prior = f"{number} is '{folder}'" if number != entry.number else f"{entry.number} is '{name}'"
                raise DataRefused(
                    f"{entry.where}: label {entry.number} contradicts the folder '{folder}', for {prior} in "
                    "an earlier line."
                )
    return names


def _files(entries: Sequence[_Entry], names: Mapping[int, str]) -> tuple[File, ...]:
    """Return each file once; a number without a name is its own label."""
    labels: dict[Path, int] = {}
    for entry in entries:
        if labels.setdefault(entry.path, entry.number) != entry.number:
            raise DataRefused(
                f"{entry.where}: {entry.path} has label {entry.number}, and {labels[entry.path]} before."
            )
    return tuple(File(path, names.get(labels[path], str(labels[path]))) for path in sorted(labels))
