"""Benchmarks of a few images, for runs that take a fraction of a second, and for odd data."""

import torch
from torch import Tensor

from fedscal.core import rng
from fedscal.data.benchmark import Benchmark
from fedscal.data.views import AugmentedViews

CLASSES = 4
IMAGES = 48


def _squares(domain: str) -> tuple[Tensor, Tensor]:
    """A square in one of four corners, its place the class, its grey level the domain."""
    generator = rng.stream(0, "tiny", domain)
    labels = torch.arange(IMAGES) % CLASSES
    images = torch.randint(0, 60, (IMAGES, 1, 32, 32), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 4 + 14 * (label // 2), 4 + 14 * (label % 2)
        image[:, top : top + 10, left : left + 10] += {"a": 190, "b": 120, "c": 70}[domain]
    return images.to(torch.uint8), labels


def _one_class(domain: str) -> tuple[Tensor, Tensor]:
    images, labels = _squares(domain)
    keep = labels == 0 if domain != "a" else labels >= 0
    return images[keep], labels[keep]


def _identical(domain: str) -> tuple[Tensor, Tensor]:
    images, labels = _squares(domain)
    return (images, labels) if domain == "a" else (images[:1].repeat(IMAGES, 1, 1, 1), labels)


def _black(domain: str) -> tuple[Tensor, Tensor]:
    images, labels = _squares(domain)
    return (images, labels) if domain == "a" else (torch.zeros_like(images), labels)


def _all_black(domain: str) -> tuple[Tensor, Tensor]:
    images, labels = _squares(domain)
    return torch.zeros_like(images), labels


_BUILDERS = {
    "tiny": _squares,
    "one-class": _one_class,
    "identical": _identical,
    "black": _black,
    "all-black": _all_black,
}


def benchmarks() -> dict[str, Benchmark]:
    """Return the benchmarks by name; domain ``a`` is the source."""
    return {
        name: Benchmark(
            name=name,
            title=name,
            classes=tuple(f"corner {number}" for number in range(CLASSES)),
            domains=("a", "b", "c"),
            shape=(1, 32, 32),
            views=AugmentedViews(crop_area=(0.6, 1.0), crop_aspect=(0.8, 1.25), flip=False),
            build=build,
            version=1,
            packages=(),
            extra="digits",
            defaults={
                "source": "a",
                "pretrain_epochs": 30,
                "clients_per_domain": 3,
                "participation": 0.3,
                "rounds": 3,
                "local_epochs": 1,
                "workers": 1,
                "batch_size": 8,
            },
        )
        for name, build in _BUILDERS.items()
    }
