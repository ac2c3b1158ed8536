"""The archive: every image at 64 px with class, domain, set, licence and icon name, built once from tarballs.

A directory of one safetensors file a domain, ``index.json`` and ``NOTICE.md``, with their sha256 in
``manifest.json``. The same lock and rules give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscal.core import files, weights
from fedscal.core.documents import parse_json, read_json
from fedscal.core.errors import DataRefused
from fedscal.core.lazy import torch
from fedscal.data.icons import draw
from fedscal.data.icons.duplicates import first_of_each
from fedscal.data.icons.lock import Package
from fedscal.data.icons.notice import notice
from fedscal.data.icons.rules import Rules
from fedscal.data.icons.tarball import members

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
"""To be raised whenever lock, rules or drawing give other bytes."""
DOMAINS = ("outline", "solid", "color", "sketch")
_MANIFEST, _INDEX, _NOTICE = "manifest.json", "index.json", "NOTICE.md"
_DRAWINGS = "package/src/drawings/{}.ndjson.gz"
_ICONS = "package/icons.json"


@dataclass(frozen=True)
class Picture:
    """One image and where it comes from; ``group`` is its set, or the sketch itself."""

    label: int
    domain: str
    package: Package
    name: str
    group: str
    pixels: Tensor


def folder() -> Path:
    """Return where the archive and the tarballs are kept."""
    return files.cache_dir("icons")


def directory() -> Path:
    """Return where the archive is, or would be."""
    return folder() / f"archive-v{VERSION}"


def pictures(package: Package, tarball: bytes, rules: Rules) -> Iterator[Picture]:
    """Yield every image that a package gives, in the order of the names."""
    yield from (_icons if package.styles else _sketches)(package, tarball, rules)


def _icons(package: Package, tarball: bytes, rules: Rules) -> Iterator[Picture]:
    icons = parse_json(members(tarball, (_ICONS,), package.name)[_ICONS])
    for name, drawing in sorted(icons["icons"].items()):
        found = None if drawing.get("hidden") else rules.match(package.prefix, name, package.styles)
        pixels = draw.icon(drawing, icons) if found else None
        if found and pixels is not None:
            yield Picture(*found, package, name, package.prefix, pixels)


def _sketches(package: Package, tarball: bytes, rules: Rules) -> Iterator[Picture]:
    wanted = [_DRAWINGS.format(category) for category in rules.sketches]
    found = members(tarball, wanted, package.name)
    for label, member in enumerate(wanted):
        for number, pixels in enumerate(draw.sketches(found[member])):
            name = f"{rules.sketches[label]}-{number}"
            yield Picture(label, "sketch", package, name, name, pixels)


def distinct(found: Sequence[Picture], rules: Rules) -> dict[str, list[Picture]]:
    """Return the pictures of each domain, class after class, without near-duplicates inside a class."""
    domains: dict[str, list[Picture]] = {domain: [] for domain in DOMAINS}
    for domain, kept in domains.items():
        for label in range(len(rules.classes)):
            same = [picture for picture in found if (picture.domain, picture.label) == (domain, label)]
            kept.extend(same[position] for position in first_of_each([p.pixels for p in same]))
    return domains


def contents(
    packages: Sequence[Package],
    read: Callable[[Package], bytes],
    rules: Rules,
    on_each: Callable[[], None] = lambda: None,
) -> dict[str, bytes]:
    """Return every file of the archive by name.

    Args:
        packages: The lock.
        read: Returns the tarball of a package.
        rules: What to take from it, and as what.
        on_each: Called after each package.
    """
    found: list[Picture] = []
    for package in packages:
        found.extend(pictures(package, read(package), rules))
        on_each()
    domains = distinct(found, rules)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(p.group for p in found))}
    made = {_file(domain): _tensors(kept, numbers) for domain, kept in domains.items()}
    made[_INDEX] = json.dumps(_index(domains, rules), indent=0, ensure_ascii=False).encode()
    made[_NOTICE] = notice(packages).encode()
    hashes = {name: files.sha256(data) for name, data in made.items()}
    return made | {_MANIFEST: json.dumps({"version": VERSION, "sha256": hashes}, indent=2).encode()}


def _tensors(kept: Sequence[Picture], numbers: dict[str, int]) -> bytes:
    blank = torch.empty(0, 3, draw.SIDE, draw.SIDE, dtype=torch.uint8)
    tensors = {
        "images": torch.stack([picture.pixels for picture in kept]) if kept else blank,
        "labels": torch.tensor([picture.label for picture in kept], dtype=torch.int64),
        "groups": torch.tensor([numbers[picture.group] for picture in kept], dtype=torch.int64),
    }
    return weights.to_bytes(tensors)


def _index(domains: dict[str, list[Picture]], rules: Rules) -> dict[str, list[dict[str, str]]]:
    return {
        domain: [
            {
                "class": rules.classes[picture.label],
                "set": picture.package.prefix,
                "icon": picture.name,
                "licence": picture.package.licence,
            }
            for picture in kept
        ]
        for domain, kept in domains.items()
    }


def _file(domain: str) -> str:
    return f"{domain}.safetensors"


def is_whole() -> bool:
    """Tell whether the archive is there and every file of it is what was built."""
    names = (*(_file(domain) for domain in DOMAINS), _INDEX, _NOTICE)
    return all(_intact(name) is not None for name in names)


def tensors(domain: str) -> dict[str, Tensor]:
    """Return ``images`` (n, 3, 64, 64), ``labels`` and ``groups`` of a domain, class after class."""
    name = _file(domain)
    return weights.from_bytes(_read(name), str(directory() / name))


def index(domain: str) -> list[dict[str, str]]:
    """Return ``class``, ``set``, ``icon`` and ``licence`` of every image of a domain, in the same order."""
    entries: dict[str, list[dict[str, str]]] = parse_json(_read(_INDEX))
    return entries[domain]


def _read(name: str) -> bytes:
    data = _intact(name)
    if data is None:
        state = "damaged" if directory().is_dir() else "not there yet"
        raise DataRefused(f"the icons in {directory()} are {state}: fedscal data get icons")
    return data


def _intact(name: str) -> bytes | None:
    try:
        manifest: Any = read_json(directory() / _MANIFEST)
        data = (directory() / name).read_bytes()
        return data if manifest["sha256"][name] == files.sha256(data) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
