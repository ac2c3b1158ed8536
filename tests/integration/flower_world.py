"""A federation small enough for tests: three sites with folders of images, and a source model for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import Zygote, once
from PIL import Image

SITES = {"a": 190, "b": 150, "c": 110}
KEYS = {"method": "fedscal", "participation": 1.0, "rounds": 2, "local_epochs": 1, "batch_size": 8}
METHODS = ("fedscal", "fedmoon", "fedwca")


def make_world(folder: Path, fedscal: Zygote) -> None:
    """Draw the images and train the source model."""
    for site, level in {"source": 210, **SITES}.items():
        root = folder / ("source" if site == "source" else "sites") / site
        draw(root, level, 6)
    words = [f"benchmark={folder / 'source'}", "source=source", "image_size=32", "pretrain_epochs=15"]
    ended = fedscal("pretrain", "method=fedscal", *words, "--out", folder / "model")
    assert ended.code == 0, ended.err


def draw(folder: Path, level: int, count: int) -> None:
    """Draw a square in one of four corners, its place the class, its grey level the site's."""
    generator = np.random.default_rng(level)
    for corner in range(4):
        place = folder / f"corner-{corner}"
        place.mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 40, (32, 32, 3))
            top, left = 4 + 14 * (corner // 2), 4 + 14 * (corner % 2)
            pixels[top : top + 10, left : left + 10] += level
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(place / f"canary-{level}-{number}.png")  # a name that is found nowhere else


@dataclass(frozen=True)
class World:
    """The folder of a small federation."""

    folder: Path
    fedscal: Zygote

    @property
    def model(self) -> Path:
        """The source model."""
        return self.folder / "model"

    def data(self, site: str) -> Path:
        """The images of a site."""
        return self.folder / "sites" / site

    def keys(self, **more: Any) -> dict[str, Any]:
        """The keys of a run over the sites."""
        return {
            **KEYS,
            "source_model": str(self.model),
            "clients": "flower:" + "+".join(SITES),
            **more,
        }

    def reference(self, name: str, **keys: Any) -> Path:
        """Return the same run on one machine, made once."""
        out = self.folder / f"reference-{name}"
        words = [f"{key}={value}" for key, value in {**KEYS, **keys}.items()]
        words += [f"clients={self.folder / 'sites'}", f"source_model={self.model}", "workers=1"]

        def make() -> None:
            ended = self.fedscal("run", *words, "--out", out, "--no-report", "--quiet")
            assert ended.code == 0, ended.err

        return once(out, make)


def read(path: Path) -> Any:
    """Read JSON."""
    return json.loads(path.read_bytes())
