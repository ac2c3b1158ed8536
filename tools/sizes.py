"""Print what each extra adds to the core on disk: the files of the distributions that it brings."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from fedscal.core.text import size
from tools.requirements import CORE, brought_by, declared


def added(extra: str) -> dict[str, int]:
    """Return the bytes of every installed distribution that an extra brings and the core does not."""
    names = brought_by(extra) - brought_by(CORE)
    return {name: _bytes(name) for name in names if _bytes(name)}


def _bytes(name: str) -> int:
    """Return the bytes of a distribution, without what Python compiles; 0 of one that is missing."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return 0
    paths = [Path(str(file.locate())) for file in files if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


if __name__ == "__main__":
    for extra in sorted(declared().keys() - {CORE}):
        found = added(extra)
        largest = sorted(found, key=found.__getitem__, reverse=True)[:3]
        print(f"{extra:18} {size(sum(found.values())):>9}  {len(found):3} packages  {', '.join(largest)}")
