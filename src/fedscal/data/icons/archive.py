"""Makes an archive: every image at 64 px with class, domain, set, licence and icon name, from tarballs.

A directory of one safetensors file per domain, ``index.json`` and ``NOTICE.md``, with their sha256 in
``manifest.json``. The same lock and rules give the same bytes. Sets copy each other, and one drawing must not
count twice in a class of a domain: of drawings whose 64-bit hashes (is each of 8 x 8 patches brighter
than the one to its left) differ in few bits, only the first is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedscal.core import files, weights
from fedscal.core.documents import parse_json
from fedscal.core.lazy import F, torch
from fedscal.core.types import Progress
from fedscal.data.icons import draw
from fedscal.data.icons.benchmark import (
    DOMAINS,
    INDEX,
    MANIFEST,
    NOTICE,
    Archive,
    file_name,
    folder,
)
from fedscal.data.icons.npm import Registry, fetch_all, find_registry, members, missing
from fedscal.data.icons.rules import Package, Rules, packages

if TYPE_CHECKING:
    from torch import Tensor

_DRAWINGS = "package/src/drawings/{}.ndjson.gz"
_ICONS = "package/icons.json"
SAME_BITS = 2
"""Two drawings are the same if at most this many bits differ."""
_STEP = 2.0
"""Grey levels below which two patches count as equally bright, so that no bit depends on rounding."""
_HEAD = """# Notice

The images of the icons benchmark are made from the packages below: rasterised at 64 px, cropped to their
ink and centred; sketches are enlarged from 28 px. The drawings belong to their authors, and each is under
the licence of its set. fedscal ships none of them.

| set | package | version | author | licence |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Picture:
    """One image and where it comes from; ``group`` is its set, or the sketch itself."""

    label: int
    domain: str
    package: Package
    name: str
    group: str
    pixels: Tensor


def make(archive: Archive, registry: str | None, progress: Progress) -> None:
    """Download the packages that are not here yet and draw their icons; the caller holds the lock."""
    draw.check_tools()
    tarballs = files.make_dir(folder() / "tarballs")
    files.remove_unfinished(tarballs)
    lock = packages()
    if absent := missing(lock, tarballs):
        source = Registry(find_registry(registry))
        progress.stage("fetching icon sets", len(absent))
        fetch_all(absent, tarballs, source, progress.advance)
    progress.stage("drawing icons", len(lock))
    made = contents(
        archive, lock, lambda package: (tarballs / package.tarball).read_bytes(), progress.advance
    )
    files.write_dir(archive.directory, made)


def pictures(package: Package, tarball: bytes, rules: Rules) -> Iterator[Picture]:
    """Yield every image that a package gives, in the order of the names."""
    yield from (_icons if package.styles else _sketches)(package, tarball, rules)


def _icons(package: Package, tarball: bytes, rules: Rules) -> Iterator[Picture]:
    icons = parse_json(members(tarball, (_ICONS,), package.name)[_ICONS])
    for name, drawing in sorted(icons["icons"].items()):
        match = None if drawing.get("hidden") else rules.match(package.prefix, name, package.styles)
        pixels = draw.icon(drawing, icons) if match else None
        if match and pixels is not None:
            yield Picture(*match, package, name, package.prefix, pixels)


def _sketches(package: Package, tarball: bytes, rules: Rules) -> Iterator[Picture]:
    wanted = [_DRAWINGS.format(category) for category in rules.sketches]
    drawings = members(tarball, wanted, package.name)
    for label, member in enumerate(wanted):
        for number, pixels in enumerate(draw.sketches(drawings[member])):
            name = f"{rules.sketches[label]}-{number}"
            yield Picture(label, "sketch", package, name, name, pixels)


def distinct(drawn: Sequence[Picture], rules: Rules) -> dict[str, list[Picture]]:
    """Return the pictures of each domain, class after class, without near-duplicates inside a class."""
    domains: dict[str, list[Picture]] = {domain: [] for domain in DOMAINS}
    for domain, chosen in domains.items():
        for label in range(len(rules.classes)):
            same = [picture for picture in drawn if (picture.domain, picture.label) == (domain, label)]
            chosen.extend(same[position] for position in first_of_each([p.pixels for p in same]))
    return domains


def contents(
    archive: Archive,
    packages: Sequence[Package],
    read: Callable[[Package], bytes],
    on_each: Callable[[], None] = lambda: None,
) -> dict[str, bytes]:
    """Return every file of an archive by name; ``read`` returns the tarball of a package."""
    rules = archive.rules
    drawn: list[Picture] = []
    for package in packages:
        drawn.extend(pictures(package, read(package), rules))
        on_each()
    domains = distinct(drawn, rules)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(p.group for p in drawn))}
    made = {file_name(domain): _tensors(chosen, numbers) for domain, chosen in domains.items()}
    made[INDEX] = json.dumps(_index(domains, rules), indent=0, ensure_ascii=False).encode()
    made[NOTICE] = notice(packages).encode()
    hashes = {name: files.sha256(data) for name, data in made.items()}
    manifest = {"version": archive.version, "sha256": hashes}
    return made | {MANIFEST: json.dumps(manifest, indent=2).encode()}


def _tensors(drawn: Sequence[Picture], numbers: dict[str, int]) -> bytes:
    blank = torch.empty(0, 3, draw.SIDE, draw.SIDE, dtype=torch.uint8)
    tensors = {
        "images": torch.stack([picture.pixels for picture in drawn]) if drawn else blank,
        "labels": torch.tensor([picture.label for picture in drawn], dtype=torch.int64),
        "groups": torch.tensor([numbers[picture.group] for picture in drawn], dtype=torch.int64),
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
            for picture in drawn
        ]
        for domain, drawn in domains.items()
    }


def hashes(images: Tensor) -> Tensor:
    """Return the hashes (n, 64) of uint8 images (n, 3, H, W) as booleans."""
    grey = images.double().mean(dim=1, keepdim=True)
    patches = F.adaptive_avg_pool2d(grey, (8, 9)).squeeze(1)
    return (patches[:, :, 1:] - patches[:, :, :-1] > _STEP).flatten(1)


def first_of_each(images: Sequence[Tensor]) -> list[int]:
    """Return the positions of the images that are no near-duplicate of an earlier one."""
    kept: list[int] = []
    codes = hashes(torch.stack(list(images))) if images else torch.empty(0, 64)
    for position, code in enumerate(codes):
        if all(int((code ^ codes[other]).sum()) > SAME_BITS for other in kept):
            kept.append(position)
    return kept


def notice(packages: Sequence[Package]) -> str:
    """Return the notice as Markdown."""
    rows = [
        f"| {package.title} | {package.name} | {package.version} | {package.author} | {package.licence} |\n"
        for package in packages
    ]
    return _HEAD + "".join(rows)
