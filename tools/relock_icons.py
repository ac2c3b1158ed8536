"""Renew versions, hashes and licences of the lock of the icons: ``python -m tools.relock_icons FILE``.

Names and styles stay as they stand in the file; every set is taken in its newest version,
and a licence that is not free enough is refused. Raise the versions in ``benchmark.ARCHIVES`` after it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fedscal.core import files
from fedscal.core.errors import DataRefused
from fedscal.data.icons.npm import Registry, find_registry, integrity_of, members
from fedscal.data.icons.rules import FREE


def renewed(entry: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """Return a lock's entry for the newest version of its package."""
    name = entry["name"]
    version = entry["version"] if not entry["styles"] else registry.newest(name)
    data = registry.tarball(name, version)
    renewed = {**entry, "version": version, "integrity": integrity_of(data)}
    if entry["styles"]:
        info = json.loads(members(data, ("package/info.json",), name)["package/info.json"])
        renewed |= {"licence": info["license"].get("spdx", ""), "title": info["name"]}
        renewed |= {"author": info["author"]["name"]}
    if renewed["licence"] not in FREE:
        raise DataRefused(f"{name} is under {renewed['licence']}: take it out of the lock.")
    return renewed


def main(path: Path) -> None:
    """Renew a lock file in place."""
    registry = Registry(find_registry(None))
    lock = json.loads(path.read_text("utf-8"))
    files.write_json(path, {"packages": [renewed(entry, registry) for entry in lock["packages"]]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
