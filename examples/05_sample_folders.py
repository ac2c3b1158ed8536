"""Save some digits as folders of images, to try with them what is meant for images of your own.

python examples/05_sample_folders.py

photos/<domain>/<class>/<image>    three domains with labels
sites/<site>/<image>               two sites without: other images of two of the domains
checked/<site>/<class>/<image>     a few labelled images of these sites, to check a model with
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from torch import Tensor

import fedscal

SITES = ("font", "mnist")


def save(images: Tensor, folder: Path, first: int) -> None:
    """Write images as PNG files that are numbered from the first on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images, first):
        Image.fromarray(image[0].numpy()).save(folder / f"{number:04}.png")


def main() -> None:
    """Deal each digit of each domain to the folders: 40 images, 30 more for a site, 10 more to check with."""
    benchmark = fedscal.BENCHMARKS["digits"]
    for domain in benchmark.domains:
        images, labels = benchmark.build(domain)
        for label, name in enumerate(benchmark.classes):
            mine = images[labels == label]
            save(mine[:40], Path("photos") / domain / name, first=0)
            if domain in SITES:
                save(mine[40:70], Path("sites") / domain, first=30 * label)
                save(mine[70:80], Path("checked") / domain / name, first=0)
    print("photos, sites, checked")


if __name__ == "__main__":
    main()
