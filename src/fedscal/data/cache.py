"""A benchmark's images and labels as files in the cache: built once, checked at every read.

Each domain has one safetensors file for images, one for labels, and a third if the benchmark has
groups; ``manifest.json`` holds their sha256. The directory is written atomically. A damaged file
is named in the log and the directory is built again; its bytes are never used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedscal.core import files, weights
from fedscal.core.documents import read_record
from fedscal.core.errors import DataRefused, UsageError, nearest, some
from fedscal.core.extras import from_extra
from fedscal.core.lazy import torch
from fedscal.core.types import Images, Progress
from fedscal.data.benchmark import Benchmark

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["images", "labels", "groups"]

_MANIFEST = "manifest.json"
_NAMED = 5
_KEY = 16
"""Hexadecimal digits of a content's hash in a directory's name."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Manifest:
    """What was built: the sha256 of every file and of all of them, and the number of images by domain."""

    content: str
    sha256: Mapping[str, str]
    images: Mapping[str, int]


@dataclass(frozen=True)
class Identity:
    """What identifies a benchmark's data: their hash, and the cache keys of a folder's images by domain."""

    data_sha256: str
    images: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """What the cache holds of a benchmark.

    Attributes:
        directory: Where its files are, or would be.
        built: Whether there is a cache, damaged or not.
        images: The number of images of each domain.
        bytes: The size of all its files.
        damaged: The files that are missing or are not what was built; empty if none is.
    """

    directory: Path
    built: bool
    images: Mapping[str, int]
    bytes: int
    damaged: tuple[str, ...]


def prepare(benchmark: Benchmark, progress: Progress | None = None) -> Path:
    """Return the benchmark's cache directory, building it first if it is not there."""
    directory = _directory(benchmark)
    if benchmark.folder:
        benchmark.folder.prepare(progress)
    elif _manifest(directory) is None:
        _build_unless(lambda: _manifest(directory) is not None, benchmark)
    files.mark_used(directory)
    return directory


def images(benchmark: Benchmark, domain: str) -> Images:
    """Return the uint8 images (n, C, H, W) of a domain; the label files stay closed."""
    return benchmark.folder.images(domain) if benchmark.folder else load(benchmark, domain, "images")


def image_count(benchmark: Benchmark, domain: str) -> int:
    """Return the number of images of a domain, without reading built ones."""
    if benchmark.folder:
        return len(benchmark.folder.images(domain))
    return _require_manifest(benchmark).images[domain]


def images_key(benchmark: Benchmark, domain: str) -> str:
    """Return what identifies the images of a domain."""
    if benchmark.folder:
        return benchmark.folder.keys()[domain]
    return _require_manifest(benchmark).sha256[_file_name(domain, "images")]


def groups(benchmark: Benchmark, domain: str) -> Tensor | None:
    """Return the int64 group of each image of a domain, or None if the benchmark has no groups."""
    return load(benchmark, domain, "groups") if benchmark.groups else None


def load(benchmark: Benchmark, domain: str, kind: Kind) -> Tensor:
    """Return a domain's images, labels or groups, checked against the manifest."""
    if domain not in benchmark.domains:
        raise UsageError(f"{benchmark.name} has no domain '{domain}'{nearest(domain, benchmark.domains)}")
    path = _directory(benchmark) / _file_name(domain, kind)
    data = _intact(path)
    if data is None:
        _build_unless(lambda: _intact(path) is not None, benchmark)
        data = _intact(path)
    if data is None:
        raise DataRefused(
            f"{path} does not keep what is written to it. Check the disk, or set FEDSCAL_CACHE."
        )
    return weights.from_bytes(data, str(path))[kind]


def content_digest(benchmark: Benchmark) -> str:
    """Return one sha256 for all images and labels of the benchmark."""
    if benchmark.folder:
        return benchmark.folder.digest()
    return _require_manifest(benchmark).content


def identity(benchmark: Benchmark) -> Identity:
    """Return what identifies a benchmark's data."""
    return Identity(content_digest(benchmark), dict(benchmark.folder.keys()) if benchmark.folder else {})


def refuse_others(benchmark: Benchmark, recorded: Identity, since: str) -> None:
    """Refuse data whose identity is not the recorded one; name a folder's files that changed since."""
    if recorded.data_sha256 == content_digest(benchmark):
        return
    changed = benchmark.folder.changes(recorded.images) if benchmark.folder else []
    named = f": {some(changed, _NAMED, '; ')}" if changed else ""
    raise DataRefused(f"the data of {benchmark.name} are not those that {since} was begun with{named}.")


def status(benchmark: Benchmark) -> Status:
    """Verify every file of the benchmark, without building or repairing anything."""
    directory = _directory(benchmark)
    if not directory.is_dir():
        return Status(directory, built=False, images={}, bytes=0, damaged=())
    size = sum(path.stat().st_size for path in directory.iterdir())
    manifest = _manifest(directory)
    if manifest is None:
        return Status(directory, built=True, images={}, bytes=size, damaged=(_MANIFEST,))
    damaged = tuple(name for name in _file_names(benchmark) if _intact(directory / name) is None)
    return Status(directory, built=True, images=manifest.images, bytes=size, damaged=damaged)


def entry_name(benchmark: Benchmark) -> str:
    """Return the name of a benchmark's directory in the cache."""
    content = f"-{files.sha256(benchmark.content.encode())[:_KEY]}" if benchmark.content else ""
    return f"{benchmark.name}-v{benchmark.version}{content}"


def _directory(benchmark: Benchmark) -> Path:
    return files.cache_dir("data", entry_name(benchmark))


def with_content(benchmark: Benchmark) -> Benchmark:
    """Return a benchmark that knows its content, if code alone makes it: that may change under its name."""
    if benchmark.content or benchmark.folder or benchmark.packages or benchmark.fetch:
        return benchmark
    hashes = {name: files.sha256(data) for name, data in _tensors(benchmark)[0].items()}
    return replace(benchmark, content=_digest(hashes))


def _file_name(domain: str, kind: Kind) -> str:
    return f"{domain}.{kind}.safetensors"


def kinds(benchmark: Benchmark) -> tuple[Kind, ...]:
    """Return which files each domain has."""
    return ("images", "labels", "groups") if benchmark.groups else ("images", "labels")


def _file_names(benchmark: Benchmark) -> list[str]:
    return [_file_name(domain, kind) for domain in benchmark.domains for kind in kinds(benchmark)]


def _manifest(directory: Path) -> _Manifest | None:
    """Return the manifest if there is one and its digest is that of its hashes."""
    try:
        manifest = read_record(directory / _MANIFEST, _Manifest)
    except (OSError, ValueError):
        return None
    return manifest if manifest.content == _digest(manifest.sha256) else None


def _require_manifest(benchmark: Benchmark) -> _Manifest:
    """Return the manifest, building the cache first if it is not there."""
    directory = prepare(benchmark)
    manifest = _manifest(directory)
    if manifest is None:
        raise DataRefused(
            f"{directory / _MANIFEST} cannot be read back. Check the disk, or set FEDSCAL_CACHE."
        )
    return manifest


def _digest(hashes: Mapping[str, str]) -> str:
    return files.sha256("".join(f"{name} {hashes[name]}\n" for name in sorted(hashes)).encode())


def _intact(path: Path) -> bytes | None:
    """Return the file's bytes if their hash is the manifest's."""
    manifest = _manifest(path.parent)
    try:
        return files.read_verified(path, manifest.sha256.get(path.name)) if manifest else None
    except OSError:
        return None


def _build_unless(ready: Callable[[], bool], benchmark: Benchmark) -> None:
    """Take the builder's lock, then build the cache unless another process has built it meanwhile."""
    directory = _directory(benchmark)
    # The lock is beside the directory, not in it: the directory is replaced as a whole.
    with files.one_builder(directory.parent):
        if ready():
            return
        if directory.exists():
            damaged = ", ".join(status(benchmark).damaged)
            _log.warning("the cache %s is damaged (%s) and is built again", directory, damaged)
        files.write_dir(directory, _contents(benchmark))


def _contents(benchmark: Benchmark) -> dict[str, bytes]:
    """Return every file of the cache directory by name."""
    with from_extra(benchmark.extra, f"benchmark={benchmark.name}"):
        packages = {package: metadata.version(package) for package in benchmark.packages}
    contents, counts = _tensors(benchmark)
    hashes = {name: files.sha256(data) for name, data in contents.items()}
    manifest = {
        "benchmark": benchmark.name,
        "version": benchmark.version,
        "classes": benchmark.classes,
        "packages": packages,
        "images": counts,
        "sha256": hashes,
        "content": _digest(hashes),
    }
    return contents | {_MANIFEST: json.dumps(manifest, indent=2).encode()}


def _tensors(benchmark: Benchmark) -> tuple[dict[str, bytes], dict[str, int]]:
    """Build all domains; return their files by name, and the number of images of each domain."""
    counts: dict[str, int] = {}
    contents: dict[str, bytes] = {}
    for domain in benchmark.domains:
        pixels, truth = _build_domain(benchmark, domain)
        counts[domain] = len(pixels)
        contents[_file_name(domain, "images")] = weights.to_bytes({"images": pixels})
        contents[_file_name(domain, "labels")] = weights.to_bytes({"labels": truth})
        if benchmark.groups:
            members = benchmark.groups(domain)
            if members.dtype != torch.int64 or members.shape != (len(pixels),):
                raise DataRefused(f"{benchmark.name}/{domain}: the groups do not fit the images.")
            contents[_file_name(domain, "groups")] = weights.to_bytes({"groups": members})
    return contents, counts


def _build_domain(benchmark: Benchmark, domain: str) -> tuple[Tensor, Tensor]:
    """Build a domain and check its types, shapes and labels."""
    pixels, truth = benchmark.build(domain)
    fits = pixels.dtype == torch.uint8 and pixels.shape[1:] == benchmark.shape
    labelled = truth.dtype == torch.int64 and bool(((truth >= 0) & (truth < len(benchmark.classes))).all())
    if not (fits and labelled and truth.shape == pixels.shape[:1]):
        raise DataRefused(f"{benchmark.name}/{domain}: the built images or labels do not fit the benchmark.")
    return pixels, truth
