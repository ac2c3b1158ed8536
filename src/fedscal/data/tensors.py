"""A program's own tensors as a benchmark: kept in the cache under a hash of their content.

``tensors:<hash>`` names them, so that worker processes, resumed runs and reports find them again, and other
content has another name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedscal.core import files, weights
from fedscal.core.convert import dump
from fedscal.core.documents import read_record
from fedscal.core.errors import DataRefused, UsageError, shown
from fedscal.core.lazy import torch
from fedscal.core.types import Images, Progress
from fedscal.data.benchmark import Benchmark
from fedscal.data.remote import site_name
from fedscal.data.views import AugmentedViews

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "tensors:"
_MANIFEST = "manifest.json"
_KEY = 20
SiteImages: TypeAlias = "Tensor | tuple[Tensor, Tensor] | Iterable[Any]"
"""Images, images with labels, or a DataLoader of either."""


@dataclass(frozen=True)
class _Manifest:
    """What was kept: the classes, the shape of an image, and the sha256 of every file."""

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    domains: tuple[str, ...]
    sha256: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the benchmark: another one for every content."""
        return PREFIX + files.sha256(json.dumps(dump(self), sort_keys=True).encode())[:_KEY]


def keep_tensors(sites: Mapping[str, SiteImages], classes: Sequence[str] = ()) -> str:
    """Write the images of sites to the cache; return the name of their benchmark.

    Args:
        sites: for each site uint8 images (n, C, H, W), or float ones with values from 0 to 1, which are
            rounded to 256 steps; beside them labels if there are any; or batches of these.
        classes: the names of the classes, for labels.
    """
    contents: dict[str, bytes] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for site, given in sites.items():
        pixels, truth = _gathered(site_name(site), given)
        shapes[site] = tuple(pixels.shape[1:])
        contents[f"{site}.images.safetensors"] = weights.to_bytes({"images": pixels})
        if truth is not None:
            checked = _labels(site, truth, len(pixels), len(classes))
            contents[f"{site}.labels.safetensors"] = weights.to_bytes({"labels": checked})
    hashes = {name: files.sha256(data) for name, data in contents.items()}
    manifest = _Manifest(tuple(classes), _one_shape(shapes), tuple(sorted(sites)), hashes)
    folder = _folder(manifest.name)
    with files.one_builder(folder.parent):
        if _read(folder) is None:
            files.write_dir(folder, {**contents, _MANIFEST: json.dumps(dump(manifest)).encode()})
    return manifest.name


def _gathered(site: str, given: SiteImages) -> tuple[Tensor, Tensor | None]:
    """Return all images of a site, and their labels if every batch has some."""
    batches = [given] if isinstance(given, torch.Tensor | tuple) else list(given)
    pairs = [batch if isinstance(batch, tuple | list) else (batch,) for batch in batches]
    if not pairs or not all(isinstance(part, torch.Tensor) for pair in pairs for part in pair[:2]):
        raise DataRefused(
            f"{shown(site)}: neither a tensor of images nor batches of them; torch.from_numpy makes one of "
            "an array."
        )
    pixels = torch.cat([_pixels(site, pair[0]) for pair in pairs])
    labelled = all(len(pair) > 1 for pair in pairs)
    return pixels, torch.cat([pair[1] for pair in pairs]) if labelled else None


def _pixels(site: str, images: Tensor) -> Tensor:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not len(images):
        raise DataRefused(f"{site}: images are (n, 1 or 3, height, width), not {tuple(images.shape)}.")
    images = images.detach().cpu()
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
        raise DataRefused(
            f"{site}: images are uint8, or floats from 0 to 1; give normalised ones as they were before, and "
            "mean= and std= of the normalisation."
        )
    return (images * 255).round().to(torch.uint8)


def _labels(site: str, truth: Tensor, images: int, classes: int) -> Tensor:
    truth = truth.detach().cpu()
    if not classes:
        raise UsageError(f"{site} has labels: classes=[...] names what they mean, from 0 on.")
    if truth.is_floating_point() or truth.shape != (images,):
        raise DataRefused(
            f"{site}: labels are one whole number an image, {images} here, not {truth.dtype} of "
            f"{tuple(truth.shape)}."
        )
    if not bool(((truth >= 0) & (truth < classes)).all()):
        span = f"{int(truth.min())} to {int(truth.max())}"
        raise DataRefused(
            f"{site}: labels of {classes} classes are from 0 to {classes - 1}, and these from {span}."
        )
    return truth.long()


def _one_shape(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int, int]:
    if not shapes:
        raise UsageError("there is no site: give images by the sites' names.")
    if len(set(shapes.values())) > 1:
        raise DataRefused(f"the sites' images have different shapes: {dict(shapes)}.")
    channels, height, width = next(iter(shapes.values()))
    return channels, height, width


def _folder(name: str) -> Path:
    return files.cache_dir("tensors", name.removeprefix(PREFIX))


def _read(folder: Path) -> _Manifest | None:
    """Return the manifest if it is whole, which its folder's name tells."""
    try:
        manifest = read_record(folder / _MANIFEST, _Manifest)
    except (OSError, ValueError):
        return None
    return manifest if _folder(manifest.name) == folder else None


def tensors_benchmark(name: str) -> Benchmark:
    """Return the benchmark of tensors that were kept under a name."""
    key = name.removeprefix(PREFIX)
    manifest = _read(_folder(name)) if key.isalnum() else None
    if manifest is None:
        raise UsageError(f"{shown(name)}: no such tensors in the cache; give them to fedscal.adapt again.")
    files.mark_used(_folder(name))
    return Benchmark(
        name=name,
        title="own tensors",
        classes=manifest.classes,
        domains=manifest.domains,
        shape=manifest.shape,
        views=AugmentedViews(beyond=None),
        build=_not_built,
        version=1,
        defaults={},
        folder=TensorStore(name, manifest),
    )


def _not_built(domain: str) -> tuple[Tensor, Tensor]:
    raise AssertionError(f"the images of {domain} were given, not built")


class TensorStore:
    """Tensors in the cache; every file is checked when it is read."""

    empty: Sequence[str] = ()

    def __init__(self, name: str, manifest: _Manifest, order: Sequence[str] = ()) -> None:
        self._name, self._manifest = name, manifest
        self._order = tuple(order or manifest.classes)

    def prepare(self, progress: Progress | None = None) -> None:
        """Do nothing: they were kept when they were given."""

    def images(self, domain: str) -> Images:
        """Return the images of a domain."""
        return self._tensor(domain, "images")

    def labels(self, domain: str) -> Tensor | None:
        """Return the labels of a domain in the order of its images; None if none were given."""
        if f"{domain}.labels.safetensors" not in self._manifest.sha256:
            return None
        numbers = torch.tensor([self._order.index(name) for name in self._manifest.classes])
        return numbers[self._tensor(domain, "labels")]

    def _tensor(self, domain: str, kind: str) -> Tensor:
        name = f"{domain}.{kind}.safetensors"
        path = _folder(self._name) / name
        data = files.read_verified(path, self._manifest.sha256[name])
        if data is None:
            raise DataRefused(f"{path} is damaged; remove its folder, and give the tensors again.")
        return weights.from_bytes(data, str(path))[kind]

    def digest(self) -> str:
        """Return one hash for all images and labels."""
        return files.sha256(json.dumps([self._name, self._order]).encode())

    def ordered(self, classes: Sequence[str]) -> TensorStore:
        """Return the same images, their labels numbered in another order of the classes."""
        return TensorStore(self._name, self._manifest, classes)

    def keys(self) -> Mapping[str, str]:
        """Return what identifies each domain's images."""
        return {d: self._manifest.sha256[f"{d}.images.safetensors"] for d in self._manifest.domains}

    def changes(self, keys: Mapping[str, str]) -> Sequence[str]:
        """Name none: other tensors have another name."""
        return ()

    def warnings(self) -> Sequence[str]:
        """Say nothing."""
        return ()

    def require_same_classes(self) -> None:
        """Check nothing: labels are numbers in one list of classes."""
