"""List files: lines ``path label`` that say which images there are, as DomainNet and others come with."""

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
"""How the name of a list ends that is one part of a domain; the parts are joined."""
_LONGEST = 4096
_LARGEST = 500_000_000
"""Bytes of a list, ten times those of the largest data set that is read here."""


@dataclass(frozen=True)
class _Entry:
    """A line of a list: an image, the number of its class, and where that was read."""

    path: Path
    number: int
    where: str


def list_files(root: Path) -> list[Path]:
    """Return the list files in a folder and right below it, sorted."""
    found = [path for pattern in ("*.txt", "*/*.txt") for path in root.glob(pattern)]
    return sorted(path for path in found if not _is_hidden(path, root) and _is_list(path))


def read_lists(root: Path, lists: Sequence[Path]) -> dict[str, tuple[File, ...]]:
    """Return the images that the lists name, by domain and sorted; each file once.

    A list that lies in a folder of images and names them from there is that folder's. Any other is of the
    domain that it is called after: ``clipart_train.txt`` and ``clipart_test.txt`` are clipart. Its
    paths begin at the root.
    """
    domains: dict[str, list[_Entry]] = {}
    for path in lists:
        lines = _lines(path)
        inside = path.parent != root and (path.parent / lines[0][1]).exists()
        base = path.parent if inside else root
        domain = path.parent.name if inside else _PART.sub("", path.stem)
        entries = [_Entry(base / name, number, f"{path}, line {line}") for line, name, number in lines]
        domains.setdefault(domain, []).extend(entries)
    names = _class_names(domains.values())
    return {domain: _files(domains[domain], names) for domain in sorted(domains)}


def refuse_pickles(place: Path) -> None:
    """Say what to do instead of reading a pickle, which may hold code."""
    if place.suffix == ".pkl" or (place.is_dir() and any(place.glob("*.pkl"))):
        raise DataRefused(
            f"{place}: lists in .pkl files are not read, for a pickle may run code; give the folder of the "
            "images, and classes=domainnet-10 for FedBN's ten classes."
        )


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _is_list(path: Path) -> bool:
    """Whether the first line names an image and a number."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        found = _LINE.fullmatch(file.readline(_LONGEST))
    return found is not None and looks_like_an_image(found["path"])


def _lines(path: Path) -> list[tuple[int, str, int]]:
    """Return line number, path and label of every line that is not blank."""
    try:
        text = read_bytes(path, _LARGEST).decode("utf-8-sig")
    except OSError as error:
        raise DataRefused(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataRefused(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    return list(_parsed(path, text))


def _parsed(path: Path, text: str) -> Iterator[tuple[int, str, int]]:
    for number, line in enumerate(text.splitlines(), start=1):
        found = _LINE.fullmatch(line)
        if found:
            yield number, found["path"], int(found["label"])
        elif line.strip():
            raise DataRefused(f"{path}, line {number}: expected 'path label', found '{line[:80]}'.")


def _class_names(domains: Iterable[Sequence[_Entry]]) -> Mapping[int, str]:
    """Return what each number means: the folder of its images, the same in all lists.

    Where all images of a domain lie in one folder, its name is no class's.
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
                known = f"{number} is '{folder}'" if number != entry.number else f"{entry.number} is '{name}'"
                raise DataRefused(
                    f"{entry.where}: label {entry.number} contradicts the folder '{folder}', for {known} in "
                    "an earlier line."
                )
    return names


def _files(entries: Sequence[_Entry], names: Mapping[int, str]) -> tuple[File, ...]:
    """Return each file once; a number without a name is its own."""
    labels: dict[Path, int] = {}
    for entry in entries:
        if labels.setdefault(entry.path, entry.number) != entry.number:
            raise DataRefused(
                f"{entry.where}: {entry.path} has label {entry.number}, and {labels[entry.path]} before."
            )
    return tuple(File(path, names.get(labels[path], str(labels[path]))) for path in sorted(labels))
