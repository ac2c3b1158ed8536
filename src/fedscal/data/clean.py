"""What the cache holds that will not be used again, and how to be rid of it.

Everything in the cache can be made again, from images, packages or a program; it takes time, no more. An
entry is left over if what it was made from is no longer there as it was, or if nobody has used it for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedscal.core import files
from fedscal.core.documents import read_json
from fedscal.core.text import count
from fedscal.data.cache import entry_name
from fedscal.data.features import images_of
from fedscal.data.folders.decoded import made_from
from fedscal.data.registry import BENCHMARKS

_DAY = 86_400.0


@dataclass(frozen=True)
class Entry:
    """A directory of the cache.

    Attributes:
        what: what it holds, in words.
        path: where it is.
        bytes: the size of its files.
        days: since it was last used.
        why: why it will not be used again; empty if it may be.
    """

    what: str
    path: Path
    bytes: int
    days: float
    why: str


def entries(most_days: float) -> list[Entry]:
    """Return all that the cache holds; what nobody has used for so many days is left over."""
    return list(_judged(most_days))


def remove(left_over: Iterable[Entry]) -> None:
    """Remove entries, each at once."""
    for entry in left_over:
        files.remove_dir(entry.path)
        files.remove_dir(entry.path.with_name(f".{entry.path.name}"))  # its lock


def _judged(most_days: float) -> Iterator[Entry]:
    gone: set[str] = set()  # keys of images, which features are kept for
    for kind, look in _KINDS.items():
        for path in _directories(files.cache_dir(kind)):
            what, why = look(path, gone)
            if why and kind == "images":
                gone.add(path.name)
            days = (time.time() - path.stat().st_mtime) / _DAY
            unused = f"not used for {count(int(days), 'day')}" if days >= most_days else ""
            yield Entry(what, path, files.size_of(path), days, why or unused)


def _directories(folder: Path) -> list[Path]:
    """Return the entries of a folder; locks and links are none."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in found if path.is_dir() and not path.is_symlink() and path.name[0] != "."]


def _images(path: Path, gone: set[str]) -> tuple[str, str]:
    folder, current = made_from(path)
    return f"decoded images of {folder or 'a folder'}", "" if current else "its files are gone or changed"


def _features(path: Path, gone: set[str]) -> tuple[str, str]:
    name, key = images_of(path)
    return f"features of {name or 'images'}", "its images are gone or changed" if key in gone else ""


def _data(path: Path, gone: set[str]) -> tuple[str, str]:
    present = {benchmark.name: entry_name(benchmark) for benchmark in BENCHMARKS.values()}
    name, _, rest = path.name.rpartition("-v")
    old = name in present and path.name != present[name] and rest.isdecimal()
    return f"data set {path.name}", "of an older version" if old else ""


def _model(path: Path, gone: set[str]) -> tuple[str, str]:
    try:
        card = dict(read_json(path / "model.json"))
    except (OSError, ValueError):
        return f"source model {path.name}", "it is damaged"
    source = card.get("source") or card.get("benchmark") or "a module of a program"
    return f"source model of {source}", ""


def _tensors(path: Path, gone: set[str]) -> tuple[str, str]:
    return f"tensors of a program, tensors:{path.name}", ""


_KINDS: Mapping[str, Callable[[Path, set[str]], tuple[str, str]]] = {
    "images": _images,
    "features": _features,  # after the images that they are of
    "data": _data,
    "tensors": _tensors,
    "source": _model,
    "modules": _model,
}
"""Each folder of the cache, and how one of its entries is looked at: what it is, why it is left over."""
