"""Folders laid out as the paper's data sets are on disk, of empty or of drawn images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

OFFICE_HOME = ("Art", "Clipart", "Product", "Real World")
OFFICE_31 = ("amazon", "dslr", "webcam")
CLASSES = ("Bed", "Bike", "Mug")
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def empty_tree(root: Path, domains: Mapping[str, int], classes: Sequence[str], inside: str = "") -> Path:
    """Make so many empty files a domain, dealt to the classes in turn: enough for what only counts."""
    for domain, images in domains.items():
        for label in classes:
            (root / domain / inside / label).mkdir(parents=True)
        for number in range(images):
            (root / domain / inside / classes[number % len(classes)] / f"{number}.jpg").touch()
    return root


def drawn_tree(
    root: Path, domains: Sequence[str], inside: str = "", images: int = 4, classes: Sequence[str] = CLASSES
) -> Path:
    """Draw a bright bar, further to the right for each class, on another ground in each domain."""
    width = 36 // len(classes)
    random = np.random.default_rng(0)
    for number, domain in enumerate(domains):
        for place, label in enumerate(classes):
            folder = root / domain / inside / label
            folder.mkdir(parents=True)
            for image in range(images):
                pixels = random.integers(0, 20 + 20 * number, (36, 36, 3), dtype=np.uint8)
                pixels[:, width * place : width * (place + 1)] += 90
                Image.fromarray(pixels).save(folder / f"{image}.png")
    return root
